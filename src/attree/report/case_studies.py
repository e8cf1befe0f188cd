"""Case studies of an evaluator's targets: what each method says of a few."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from attree.attention import Graph
from attree.attribution import AttributionMethod, subject_pairs
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.names import MetricName
from attree.report.case_study import case_study, neighbourhood_name
from attree.report.histogram import score_histogram
from attree.report.telling import order_targets
from attree.subject import Subject

MOST_CANDIDATES = 200
"""How many targets are looked at to find some that are easy to read."""


def draw_case_studies(
    evaluator: Evaluator,
    count: int,
    targets: Tensor | None = None,
) -> dict[str, Figure]:
    """One figure each for a few targets of the model as it is now, by name.

    Args:
        evaluator: Says what is explained and by which methods.
        count: How many targets are drawn.
        targets: Which targets; None draws those with ground truth, or the evaluator's own where none has any: first
            those whose neighbourhood is easy to read. They are the same however long the model is trained.
    """
    subject, truth, labels = evaluator.subject, evaluator.truth, evaluator.labels
    known = set() if truth is None else set(truth.targets.tolist())
    figures = {}
    for target in (_readable_first(evaluator) if targets is None else targets)[:count].tolist():
        scores = {name: _judged(method, subject, target) for name, method in evaluator.methods.items()}
        number = labels.id_of(target)
        caption = labels.prediction(subject, target)
        if subject.batch is None:
            true = truth.edges_of(target) if truth is not None and target in known else None
            roots = subject.roots([target]).node.tolist()
            drawn = case_study(
                subject.graph,
                roots[0] if subject.level == "node" else None,
                subject.num_layers,
                scores,
                true,
                name=neighbourhood_name(subject, target, number, labels.node_names),
                caption=caption,
                node_names=labels.node_names,
                edges=subject_pairs(subject, [target]).edges,
                roots=roots,
            )
        else:
            nodes = subject.batch == target
            drawn = _draw_graph(subject.graph, nodes, scores, f"Graph {number}", caption, labels.node_names)
        figures[f"case_study_{number}"] = drawn
    return figures


def _readable_first(evaluator: Evaluator) -> Tensor:
    """The targets to draw, those with neither too few nor too many edges around them first."""
    candidates = evaluator.explained[:MOST_CANDIDATES]
    sizes = subject_pairs(evaluator.subject, candidates.tolist()).ptr.diff()
    return candidates[order_targets(sizes).to(candidates.device)]


def draw_score_histograms(evaluation: Evaluation) -> dict[str, Figure]:
    """Scores where the prediction changed and where not, by name: one figure a protocol.

    The AUROC over a panel is the evaluation's own: of all draws of a random method, of all processes.
    """
    figures = {}
    for protocol, reduction in evaluation.reductions.items():
        names = {method: str(MetricName(method, "p_auroc", protocol)) for method in evaluation.pair_scores}
        aurocs = {method: evaluation.metrics[name] for method, name in names.items() if name in evaluation.metrics}
        figures[f"scores_{protocol}"] = score_histogram(evaluation.pair_scores, reduction.changed, aurocs)
    return figures


def _judged(method: AttributionMethod, subject: Subject, target: int) -> Tensor:
    """A method's score of every edge for a target: of those that it is judged on, and 0 of all others."""
    pairs = subject_pairs(subject, [target])
    scores = method.score_pairs(subject, pairs)
    return scores.new_zeros(subject.graph.num_edges).index_copy_(0, pairs.edges, scores)


def _draw_graph(
    graph: Graph,
    nodes: Tensor,
    scores: dict[str, Tensor],
    name: str,
    caption: str,
    node_names: Sequence[str] | None,
) -> Figure:
    """Draw one graph of a batch, cut out so that its nodes count from 0."""
    number = nodes.cumsum(0) - 1
    inside = nodes[graph.source]
    proper = inside & (graph.source != graph.destination)
    alone = Graph(number[graph.edge_index[:, proper]], int(nodes.sum()))
    loops = inside & (graph.source == graph.destination)
    cut = {name: torch.cat([values[proper], values[loops]]) for name, values in scores.items()}
    own = None if node_names is None else [node_names[node] for node in nodes.nonzero().view(-1).tolist()]
    return case_study(alone, None, 0, cut, name=name, caption=caption, node_names=own)
