"""`attree.explain`: explain the prediction for one node, pair of nodes or graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from attree.attribution import METHODS, AttributionMethod, make_methods, subject_pairs
from attree.data import GroundTruth
from attree.defaults import SEED
from attree.errors import ArgumentError, expect, expect_instance, expect_int
from attree.evaluation import Evaluation
from attree.evaluation.evaluate import check_defined
from attree.evaluation.on_disk import DiskSubjects, check_plain, check_untrained
from attree.explanation.explanation import TargetExplanation
from attree.faithfulness import Reducer, ReductionProtocol, resolve_protocol, score_pairs
from attree.faithfulness.occlusion import reduce_all
from attree.report.drawn_targets import strongest_first
from attree.source import Reading, disk_source_of, explained_by_user
from attree.source.target_labels import TargetLabels, describe_network, predicted_classes
from attree.subject import Head, Subject
from attree.subject.arguments_from_data import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.missed_by_attention import bypass_of, what_attention_misses
from attree.subject.readout import Readout
from attree.subject.target_roots import Level

METHOD = "occlusion"
PROTOCOL = "removal"

Target = int | tuple[int, int]
"""A node, a graph of a batch, a column of `edge_label_index`, or the two nodes of a pair."""


def explain(
    model: nn.Module,
    data: Any,
    target: Target = 0,
    method: str | AttributionMethod = METHOD,
    protocol: str | ReductionProtocol = PROTOCOL,
    truth: GroundTruth | None = None,
    *,
    call: Call | None = None,
    level: Level | None = None,
    readout: Readout | None = None,
    mode: Mode | None = None,
    return_type: ReturnType | None = None,
    label: int | None = None,
    node_type: str | None = None,
    seed: int = SEED,
) -> TargetExplanation:
    """Explain one prediction of a model: the edges that it depends on, and the prediction without each of them.

    .. code-block:: python

        explanation = attree.explain(model, data, 42)
        print(explanation)                     # one sentence, and the strongest edges
        explanation.plot().savefig("42.png")   # the neighbourhood of node 42
        explanation.subgraph(5).to_graphml("42.graphml")

    Args:
        model: A PyG attention model.
        data: The graph that the model runs on, a batch of graphs, a list, dataset, data module, trainer or run, or a
            `Subject` of the model, as in `attree.evaluate`; or an `OnDiskGraph`, of which only the target's
            neighbourhood is read.
        target: The target to explain: a node id, the number of a graph in a batch, list or dataset (0 for a single
            graph), the column of a pair in `edge_label_index`, or a pair (u, v) of nodes.
        method: The method that scores the edges: a name (`occlusion`, `gatt`, ...) or an `AttributionMethod`. The exact
            effect of every edge is measured for every method; by default it is also the score.
        protocol: How an edge is reduced: `removal`, `weight`, `coefficient`, `authors`, or a `ReductionProtocol`.
        truth: Ground-truth edges of some nodes; the figure marks them.
        call: Function that calls the model with the data; None uses the model's forward. See `attree.evaluate`.
        level: What each row of the output belongs to: `node`, `edge` or `graph`; None infers it.
        readout: Graph-level models: how nodes are pooled into a graph; None infers it from the model.
        mode: What the model predicts; None infers it from the outputs.
        return_type: The kind of outputs: `raw`, `probs` or `log_probs`; None infers it.
        label: The label or number to explain, if the model predicts several.
        node_type: For heterogeneous graphs, the node type to explain if the model returns outputs of several types.
        seed: Seed of methods that use random numbers.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> explanation = explain(GAT(8, 16, 2, out_channels=3), graph, 7)
    >>> explanation.sentence.startswith("The network predicts class")
    True
    >>> list(explanation.to_pandas().columns[:4])
    ['source', 'destination', 'score', 'effect']
    """
    expect_instance(truth, "truth", GroundTruth, optional=True)
    if (on_disk := disk_source_of(data)) is not None:
        check_plain(truth=truth, level=level, readout=readout, node_type=node_type)
        subjects = DiskSubjects(model, on_disk.graph, call=call, mode=mode, return_type=return_type, label=label)
        named = make_methods([method], seed=seed)
        check_untrained(named)
        (scorer,) = named.values()
        return explain_on_disk(subjects, expect_int(target, "target"), scorer, protocol)
    target_id, data = _target_id(target, data)
    reading = Reading(call, level, node_type, readout, Head(mode, return_type, label))
    explained = explained_by_user(model, data, [target_id], None, reading, truth, seed)
    (scorer,) = make_methods([method], seed=seed).values()
    subject, ids = explained.subject, explained.targets
    return explain_subject(subject, int(ids[0]), scorer, protocol, explained.labels, explained.truth)


def explain_on_disk(
    subjects: DiskSubjects, target: int, method: AttributionMethod, protocol: str | ReductionProtocol = PROTOCOL
) -> TargetExplanation:
    """Explain the prediction for one node of a graph on disk, on its exact neighbourhood.

    Args:
        subjects: Makes subjects of the model.
        target: The node.
        method: The method that scores the edges.
        protocol: How an edge is reduced.
    """
    ids = subjects.targets([target])
    cut = subjects.around(ids, subjects.hops_for([method]))
    subject, labels = subjects.subject(cut)
    return explain_subject(subject, int(np.searchsorted(cut.nodes, target)), method, protocol, labels)


def explain_evaluated(
    evaluation: Evaluation,
    target: int,
    method: str | AttributionMethod | None = None,
    protocol: str | ReductionProtocol | None = None,
) -> TargetExplanation:
    """Explain one prediction of an evaluated model; the target need not be one of the evaluated targets.

    Args:
        evaluation: The result of an evaluation.
        target: A node, pair or graph.
        method: The method that scores the edges; None uses the recommended one, or the exact effect if there is none.
        protocol: How an edge is reduced; None uses `removal` if it was evaluated, or else the last evaluated protocol.
    """
    expect_int(target, "target")
    if evaluation.subject is None:
        raise ArgumentError(
            "Expected argument `evaluation` to have a model, but got one that was read from files: "
            "attree.explain(model, data, target) explains any target."
        )
    graph = evaluation.pairs.graph
    if graph.origin is not None:  # of other nodes, the neighbourhoods are not there
        place = (evaluation.targets == target).nonzero().view(-1)
        expect(place.numel() == 1, "target", "one of the evaluated nodes of a graph on disk", target)
        target = int(evaluation.pairs.targets[place])
    if method is None:
        best = evaluation.verdict.method
        # A user-defined method cannot be created from its name.
        method = best if best is not None and best in METHODS else METHOD
    if protocol is None:
        protocols = list(evaluation.reductions)
        protocol = PROTOCOL if not protocols or PROTOCOL in protocols else protocols[-1]
    (scorer,) = make_methods([method]).values()
    return explain_subject(evaluation.subject, target, scorer, protocol, evaluation.all_target_labels, evaluation.truth)


def _target_id(target: Any, data: Any) -> tuple[int, Any]:
    """Return the target id and the data; a pair of nodes becomes the only pair in the data."""
    is_pair = isinstance(target, Sequence) and not isinstance(target, str) and len(target) == 2
    if not is_pair:
        return expect_int(target, "target"), data
    ends = [expect_int(node, "target") for node in target]
    has_links = isinstance(data, Data) and "edge_label_index" in data
    expect(has_links, "target", "an id, as the data has no `edge_label_index` for a pair of nodes", tuple(ends))
    nodes = int(data.num_nodes)
    expect(max(ends) < nodes, "target", f"nodes in [0, {nodes})", tuple(ends))
    data = copy.copy(data)
    data.edge_label_index = torch.tensor(ends, device=data.edge_index.device).view(2, 1)
    if "edge_label" in data:  # labels of the replaced pairs
        del data["edge_label"]
    return 0, data


def explain_subject(
    subject: Subject,
    target: int,
    method: AttributionMethod,
    protocol: str | ReductionProtocol,
    labels: TargetLabels | None = None,
    truth: GroundTruth | None = None,
) -> TargetExplanation:
    """Score and reduce every edge around one target.

    Args:
        subject: The subject.
        target: A node, pair or graph.
        method: The method that scores the edges.
        protocol: How an edge is reduced.
        labels: True classes and names of all targets.
        truth: Ground-truth edges of some nodes.
    """
    resolved = resolve_protocol(protocol, subject.model)
    effects = Reducer(subject).record()
    subject = subject.with_attention(effects.attention)
    ids = subject.targets([target])
    check_defined(subject, ids)
    pairs = subject_pairs(subject, ids)
    beyond = reduce_all(effects, subject, pairs, resolved, with_probability=True)
    sentences = [] if method.reads_effects else what_attention_misses(subject, bypass_of(subject))
    for sentence in filter(None, (beyond.sentence(subject), *sentences)):
        warnings.warn(sentence, stacklevel=3)
    reduction = beyond.reduction
    pairs = reduction.pairs
    scores = score_pairs(method, subject, pairs, effects)
    evaluation = Evaluation(
        metrics={},
        pairs=pairs,
        pair_scores={method.name: scores},
        reductions={resolved.name: reduction},
        predictions=predicted_classes(subject, ids),
        has_intervals=False,
        method_labels={method.name: method.label},
        settings={method.name: method.settings()},
        meanings={resolved.name: resolved.meaning},
        target_labels=(TargetLabels() if labels is None else labels).at(ids),
        network=describe_network(subject),
        subject=subject,
        attention=None if subject.layers.untraced else subject.attention,
        roots=None if subject.layers.untraced else subject.roots(ids),
        truth=truth,
    )
    return TargetExplanation(evaluation, subject, strongest_first(scores, reduction.delta_pc))
