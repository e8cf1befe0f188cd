"""Case studies of an evaluator's targets: what each method says of the first few."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from attree.attention import LoopedGraph
from attree.evaluation import Evaluation, Evaluator
from attree.report.case_study import case_study
from attree.report.histogram import score_histogram


def draw_case_studies(
    evaluator: Evaluator, count: int, ids: Tensor | None = None, targets: Tensor | None = None
) -> dict[str, Figure]:
    """One figure each for the first few targets of the model as it is now, by name.

    Args:
        evaluator: Says what is explained and by which methods.
        count: How many targets are drawn.
        ids: Where targets are positions in a batch: what they are called elsewhere, [targets].
        targets: Which targets; None draws those that have ground truth, or the chosen ones where none has.
    """
    subject, truth = evaluator.subject, evaluator.truth
    known = set() if truth is None else set(truth.targets.tolist())
    figures = {}
    for position, target in enumerate((evaluator.explained if targets is None else targets)[:count].tolist()):
        scores = {name: method.attribute(subject, [target]).dense(target) for name, method in evaluator.methods.items()}
        name = f"case_study_{target if ids is None else int(ids[position])}"
        if subject.batch is None:
            edges = truth.edges_of(target) if truth is not None and target in known else None
            figures[name] = case_study(subject.graph, target, subject.num_layers, scores, edges)
        else:
            figures[name] = _draw_graph(subject.graph, subject.batch == target, scores)
    return figures


def draw_score_histograms(evaluation: Evaluation) -> dict[str, Figure]:
    """Scores where the prediction changed and where not, by name: one figure a protocol."""
    return {
        f"scores_{protocol}": score_histogram(evaluation.pair_scores, reduction.changed)
        for protocol, reduction in evaluation.reductions.items()
    }


def _draw_graph(graph: LoopedGraph, nodes: Tensor, scores: dict[str, Tensor]) -> Figure:
    """Draw one graph of a batch, cut out so that its nodes count from 0."""
    number = nodes.cumsum(0) - 1
    inside = nodes[graph.source]
    proper = inside & (graph.source != graph.destination)
    alone = LoopedGraph(number[graph.edge_index[:, proper]], int(nodes.sum()))
    loops = inside & (graph.source == graph.destination)
    cut = {name: torch.cat([values[proper], values[loops]]) for name, values in scores.items()}
    return case_study(alone, None, 0, cut)
