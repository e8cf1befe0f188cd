"""The content of a page, as one dictionary of plain values for the browser or the notebook."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from attree.attention import Attention
from attree.attribution import method_label
from attree.data import GroundTruth
from attree.errors import AttreeError, expect, expect_instance, expect_int, expect_list
from attree.evaluation import Evaluation
from attree.evaluation.metric_names import OF_CLASSES, WITHIN, MetricName
from attree.faithfulness import PROTOCOLS
from attree.report.drawn_targets import instructive_order
from attree.report.page.network import PageNetwork
from attree.report.page.target import Explained, relations_of
from attree.report.style import method_looks
from attree.source.target_labels import LABEL_VALUES, LINK_NAMES
from attree.tensors.arrays import Bools, expand, find

TITLE = "How attention explains the model"
MAX_EDGES = 1000
MAX_TARGETS = 200

Curves = Mapping[str, Sequence[tuple[int, float]]]


def page_content(
    evaluation: Evaluation,
    *,
    title: str | None = None,
    attention: Attention | None = None,
    predictions: Tensor | None = None,
    true_classes: Tensor | None = None,
    class_names: Sequence[str] | None = None,
    node_names: Sequence[str] | None = None,
    truth: GroundTruth | None = None,
    curves: Curves | None = None,
    summary: Mapping[str, str] | None = None,
    max_targets: int = MAX_TARGETS,
    max_edges: int = MAX_EDGES,
    is_live: bool = False,
    has_network: bool = False,
    measured: Evaluation | None = None,
) -> dict[str, Any]:
    """Return the content of a page; `attree.report.page.write_page` documents the arguments that both have.

    The targets are in the order of `instructive_order`; at most `max_targets` are kept. If `is_live`, the page can
    query a model, and the content has the model's ids of targets and edges. If it `has_network`, the page computes
    predictions by itself, as far as it can. If the measured targets are not those shown, `measured` is their
    evaluation: metrics and verdict are taken from it.
    """
    expect_instance(evaluation, "evaluation", Evaluation)
    expect_instance(title, "title", str, optional=True)
    expect_instance(attention, "attention", Attention, optional=True)
    expect_instance(predictions, "predictions", Tensor, optional=True)
    expect_instance(true_classes, "true_classes", Tensor, optional=True)
    expect_instance(truth, "truth", GroundTruth, optional=True)
    for argument, names in (("class_names", class_names), ("node_names", node_names)):
        if names is not None:
            expect_list(names, argument, str, "a list of names, or None")
    pairs, count, about = evaluation.pairs, evaluation.targets.numel(), evaluation.target_labels
    attention = evaluation.attention if attention is None else attention
    predictions = evaluation.predictions if predictions is None else predictions
    truth = evaluation.truth if truth is None else truth
    node_names = about.node_names if node_names is None else node_names
    if true_classes is None and predictions is not None:
        true_classes = about.labels
    expect(count > 0, "evaluation", "one of at least one target", "none")
    expect(len(evaluation.pair_scores) > 0, "evaluation", "one with scores of at least one method", "none")
    expect_int(max_targets, "max_targets", 1)
    expect_int(max_edges, "max_edges", 1, 20_000)
    if attention is not None:
        pairs.check(attention.graph, attention.num_layers)
    if predictions is not None:
        fits = predictions.dim() == 2 and len(predictions) == count
        expect(fits, "predictions", f"class probabilities of shape [{count}, classes]", tuple(predictions.shape))
    if true_classes is not None:
        expect(true_classes.shape == (count,), "true_classes", f"of shape [{count}]", tuple(true_classes.shape))
    if node_names is not None:
        number = pairs.graph.num_nodes
        expect(len(node_names) == number, "node_names", f"{number} names, one per node", len(node_names))
    highest = _highest_class(evaluation, predictions, true_classes)
    if about.measured is not None:  # the names of the data are those of labels, which have the values no and yes
        class_names = LABEL_VALUES
    elif class_names is None and about.class_names is None and pairs.level == "edge" and highest < len(LINK_NAMES):
        class_names = LINK_NAMES
    elif class_names is None and about.class_names is not None and len(about.class_names) > highest:
        class_names = about.class_names
    if class_names is not None:
        expect(len(class_names) > highest, "class_names", f"at least {highest + 1} names", len(class_names))
    is_graph = pairs.num_layers is None
    is_true = None if truth is None else _is_true(evaluation, truth)
    groups = node_groups(evaluation, attention, predictions, class_names, node_names)
    network, why_not = _network(evaluation) if has_network and not is_live else (None, "")
    explained = Explained(
        evaluation,
        attention,
        is_true,
        max_edges,
        node_names if is_graph else None,
        None if groups is None else groups.of_node,
        is_live,
        network,
    )
    has_true_edge = None
    if is_true is not None:
        true_edges = torch.zeros(count).index_add(0, pairs.owner.cpu(), torch.as_tensor(is_true).float())
        has_true_edge = true_edges > 0
    order = instructive_order(evaluation, predictions, true_classes, has_true_edge)
    order = order[:max_targets].cpu()
    # Layouts multiply many small matrices. Threads only slow this down: it takes four times the CPU time on two cores.
    with threadpool_limits(limits=1, user_api="blas"):
        targets = [explained.target(position) for position in order.tolist()]
    for position, target in zip(order.tolist(), targets, strict=True):
        if predictions is not None:
            row = predictions[position]
            target["predicted"], target["confidence"] = int(row.argmax()), float(row.max())
        if true_classes is not None and int(true_classes[position]) >= 0:  # negative: unknown
            target["true"] = int(true_classes[position])
        if label := about.label_name(position):
            target["label"] = label
    if network is not None:
        try:
            network.check(evaluation)
        except AttreeError as error:
            network, why_not = None, str(error)
            for target in targets:
                target.pop("inputs", None)
    if network is not None:
        for position, target in zip(order.tolist(), targets, strict=True):
            for protocol, effect in target["effects"].items():
                if "inputs" in target and "after" not in effect:
                    effect.update(network.after(evaluation, position, protocol))
    looks = method_looks(evaluation.pair_scores)
    measured = evaluation if measured is None else measured
    # The picture shows what the headline names; where no method predicts effects, the measured effects themselves.
    opening = [name for name in (measured.verdict.method, "occlusion") if name in evaluation.pair_scores]
    return {
        "title": title or evaluation.title or TITLE,
        "kind": "graph" if is_graph else pairs.level,
        "relations": relations_of(evaluation),
        "methods": [
            {"name": name, "label": evaluation.method_labels.get(name, name), "color": looks[name].color}
            for name in evaluation.pair_scores
        ],
        "opensWith": next(iter([*opening, *evaluation.pair_scores])),
        "protocols": [{"name": name, "meaning": _meaning(evaluation, name)} for name in evaluation.reductions],
        "statistics": dict(measured.statistic_labels),
        "predictsNumbers": evaluation.predicts_numbers,
        "metrics": _metrics(measured),
        "headline": measured.verdict.headline,
        "leading": WITHIN,
        "verdict": [*measured.verdict.headline.splitlines(), *measured.verdict.sentences],
        "summary": [list(entry) for entry in (summary or {}).items()],
        "curves": [
            {"name": name, "points": [[int(step), float(value)] for step, value in points]}
            for name, points in (curves or {}).items()
        ],
        "classNames": None if class_names is None else [str(name) for name in class_names],
        "nodeNames": None if node_names is None or is_graph else _names_in_use(evaluation, node_names, order),
        "groups": None if groups is None else groups.content(),
        "serves": is_live,
        "network": None if network is None else network.content(),
        "withoutNetwork": why_not,
        "nodeMethod": None if evaluation.nodes is None else method_label(evaluation.nodes.method),
        "numTargets": measured.targets.numel(),
        "numPairs": len(measured.pairs),
        "targets": targets,
    }


def _network(evaluation: Evaluation) -> tuple[PageNetwork | None, str]:
    """Return the network for the page, or why there is none."""
    try:
        return PageNetwork.of(evaluation), ""
    except AttreeError as error:
        return None, str(error)


def _metrics(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return every metric with its method, protocol and statistic; other scalars have only a name."""
    content, intervals = [], evaluation.intervals
    for name, value in evaluation.metrics.items():
        metric = MetricName.parse(name)
        if metric is not None and evaluation.predicts_numbers and metric.statistic in OF_CLASSES:
            continue
        parts: dict[str, Any] = {} if metric is None else {"method": metric.method, "protocol": metric.protocol}
        low, high = intervals.get(name, (math.nan, math.nan))
        if all(map(math.isfinite, (value, low, high))):
            parts["interval"] = [float(low), float(high)]
        content.append({"name": name if metric is None else metric.statistic, "value": float(value), **parts})
    return content


def _meaning(evaluation: Evaluation, protocol: str) -> str:
    default = PROTOCOLS[protocol].meaning if protocol in PROTOCOLS else ""
    return evaluation.meanings.get(protocol, default)


def _highest_class(evaluation: Evaluation, predictions: Tensor | None, true_classes: Tensor | None) -> int:
    """Return the highest class on the page; -1 if there is none."""
    highest = [-1 if predictions is None else predictions.shape[1] - 1]
    if true_classes is not None:
        highest.append(int(true_classes.max()))
    for reduction in evaluation.reductions.values():
        if reduction.probability is not None:
            highest.append(reduction.probability.shape[1] - 1)
    return max(highest)


def _is_true(evaluation: Evaluation, truth: GroundTruth) -> Bools:
    """Return whether each pair's edge is a true edge of its target; targets without ground truth have none."""
    pairs = evaluation.pairs
    ascending, order = truth.targets.to(pairs.targets.device).sort()
    place, has_truth = find(ascending, pairs.targets)
    if not bool(has_truth.any()):
        return np.zeros(len(pairs), dtype=bool)
    position, has_truth = order[place][pairs.owner], has_truth[pairs.owner]
    source, destination = pairs.graph.edge_index[:, pairs.edges]
    labels: Bools = (truth.labels(position, source, destination) & has_truth).cpu().numpy()
    return labels


def _names_in_use(evaluation: Evaluation, names: Sequence[str], positions: Tensor) -> dict[str, str]:
    """Return the names of the nodes in the pairs of some targets, by node id."""
    pairs = evaluation.pairs
    _, place = expand(pairs.ptr, positions.to(pairs.ptr.device))
    ends = [pairs.graph.edge_index[:, pairs.edges[place]].flatten()]
    if pairs.level == "node" and pairs.graph.types is None:
        ends.append(pairs.targets[positions])
    nodes = torch.cat(ends).unique().tolist()
    numbers = pairs.graph.whole_ids(nodes)
    return {str(number): str(names[node]) for node, number in zip(nodes, numbers, strict=True)}


UNKNOWN = 255
"""Group of a node without a known group."""


@dataclass(frozen=True)
class NodeGroups:
    """Groups of the nodes of a graph.

    Attributes:
        meaning: What the groups mean, such as "predicted class".
        names: Names of the groups.
        of_node: The group of each node, [N], on the CPU.
        shapes: Whether groups also have different shapes.
    """

    meaning: str
    names: Sequence[str]
    of_node: Tensor
    shapes: bool = False

    def content(self) -> dict[str, Any]:
        """Return the groups as plain values for the page."""
        return {"meaning": self.meaning, "names": [str(name) for name in self.names], "shapes": self.shapes}


def node_groups(
    evaluation: Evaluation,
    attention: Attention | None,
    predictions: Tensor | None,
    class_names: Sequence[str] | None,
    node_names: Sequence[str] | None,
) -> NodeGroups | None:
    """Return the groups by which a page colours nodes; None if no grouping applies.

    Args:
        evaluation: The evaluation.
        attention: The captured forward pass; its output predicts a class for every node.
        predictions: Class probabilities of the targets, [T, classes].
        class_names: Names of the classes.
        node_names: Names of the nodes. If all look like `C12`, their letters are the groups.
    """
    graph = evaluation.pairs.graph
    if graph.types is not None:
        kinds = graph.types.type_of_nodes(torch.arange(graph.num_nodes))
        return NodeGroups("type of node", graph.types.node_types, kinds.clamp(max=UNKNOWN), shapes=True)
    if evaluation.pairs.num_layers is not None:
        if evaluation.pairs.level != "node" or evaluation.target_labels.measured is not None:
            return None
        return _by_prediction(evaluation, attention, predictions, class_names)
    return None if node_names is None else _by_kind(node_names)


def _by_prediction(
    evaluation: Evaluation,
    attention: Attention | None,
    predictions: Tensor | None,
    class_names: Sequence[str] | None,
) -> NodeGroups | None:
    """Return the nodes grouped by predicted class; None if the model's output does not give the class of every node."""
    output = None if attention is None else attention.output
    if predictions is None or not isinstance(output, Tensor) or output.dim() != 2:
        return None
    classes = predictions.shape[1]
    if output.shape != (evaluation.pairs.graph.num_nodes, classes) or not 2 <= classes < UNKNOWN:
        return None
    predicted = output.detach().argmax(dim=1).cpu()
    # In most models, but not in all, the highest output is the predicted class. The known predictions must agree.
    if not torch.equal(predicted[evaluation.pairs.targets.cpu()], predictions.argmax(dim=1).cpu()):
        return None
    names = [f"class {number}" for number in range(classes)] if class_names is None else class_names[:classes]
    return NodeGroups("predicted class", names, predicted)


def _by_kind(node_names: Sequence[str]) -> NodeGroups | None:
    matches = [re.fullmatch(r"([A-Za-z]{1,3})\d+", name) for name in node_names]
    kinds = [match[1] if match else None for match in matches]
    distinct_kinds = sorted({kind for kind in kinds if kind is not None}, key=lambda kind: (-kinds.count(kind), kind))
    if not 2 <= len(distinct_kinds) < UNKNOWN or None in kinds:
        return None
    place = {kind: number for number, kind in enumerate(distinct_kinds)}
    return NodeGroups("kind of node", distinct_kinds, torch.tensor([place[kind] for kind in kinds if kind is not None]))
