"""The figures of a call with few targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from attree.attribution import ComputationTree, Random
from attree.callbacks.outcome import warn_only
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator, MetricName
from attree.explain_run.explained import Explained
from attree.faithfulness import PROTOCOLS, delete_edges
from attree.report.case_studies import draw_case_studies, draw_score_histograms
from attree.report.computation_tree import computation_tree
from attree.report.deletion_curve import deletion_curve
from attree.report.dpc_scatter import dpc_scatter

COUNTS = (0, 1, 2, 3, 5, 10, 20, 50)
"""How many edges are dropped at once."""

DRAWS = 3
"""Random draws that the random curve is the mean of."""

MOST_COPIED_EDGES = 30_000_000
"""Edges that all forward passes behind a deletion curve may run on together: about a minute's work."""

MOST_TREE_NODES = 60


def draw_targets(explained: Explained, evaluator: Evaluator, positions: Sequence[int]) -> dict[str, Figure]:
    """Case studies and computation trees of some targets, by name; what cannot be drawn is a warning.

    Args:
        explained: What is explained.
        evaluator: What evaluated it.
        positions: Which targets, by their places among all.
    """
    figures: dict[str, Figure] = {}
    part = torch.tensor(positions, dtype=torch.int64)
    with warn_only("Case studies"):
        figures |= draw_case_studies(evaluator, len(positions), evaluator.targets.cpu()[part])
    if explained.first_nodes is None:
        with warn_only("Computation trees"):
            attention = evaluator.subject.attention
            for target in explained.ids.cpu()[part].tolist():
                tree = ComputationTree(attention, target, max_nodes=MOST_TREE_NODES, prune=True)
                figures[f"tree_{target}"] = computation_tree(tree)
    return figures


def draw_figures(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """The figures of all targets together, by name; one that cannot be drawn is a warning.

    Args:
        evaluator: What evaluated them.
        evaluation: What came of it.
    """
    figures: dict[str, Figure] = {}
    with warn_only("Figures of all targets"):
        figures |= draw_score_histograms(evaluation)
        for protocol, reduction in evaluation.reductions.items():
            names = {method: str(MetricName(method, "pc_pearson", protocol)) for method in evaluation.pair_scores}
            known = {method: evaluation.metrics[name] for method, name in names.items() if name in evaluation.metrics}
            figures[f"dpc_{protocol}"] = dpc_scatter(
                evaluation.pair_scores, reduction.delta_pc, protocol, pearsons=known
            )
    with warn_only("The deletion curve"):
        figures |= _deletion(evaluator, evaluation)
    return figures


def _deletion(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """The deletion curve of as many targets as their neighbourhoods allow."""
    pairs, subject = evaluation.pairs, evaluator.subject
    by_name = {one.name: one for one in evaluator.protocols}
    protocol = by_name.get("removal", next(iter(by_name.values()), PROTOCOLS["removal"]))
    drawn = [name for name, method in evaluator.methods.items() if isinstance(method, Random)]
    scores = {name: values for name, values in evaluation.pair_scores.items() if name not in drawn}
    for draw in Random().draws(DRAWS):
        scores[f"random {draw.seed}"] = draw.score_pairs(subject, pairs)
    sizes = pairs.owner[pairs.flow].bincount(minlength=pairs.targets.numel())
    counts = [number for number in COUNTS if number <= int(sizes.max())]
    copied = (sizes * len(counts) * len(scores)).cumsum(0)
    number = int((copied <= MOST_COPIED_EDGES).sum())
    expect(number > 0, "targets", f"neighbourhoods of at most {MOST_COPIED_EDGES:,} edges in all", int(copied[0]))
    few = pairs.of_targets(torch.arange(number, device=pairs.edges.device))
    curves = delete_edges(subject, few, {name: values[: len(few)] for name, values in scores.items()}, counts, protocol)
    chance = torch.stack([curves.pop(name) for name in list(curves) if name.startswith("random ")]).mean(dim=0)
    notes = [] if protocol.name == "removal" else [f"protocol {protocol.name}"]
    if number < pairs.targets.numel():
        notes.append(f"of {pairs.targets.numel()}: the neighbourhoods of more are too large")
    return {"deletion": deletion_curve(counts, curves | {"random": chance}, ", ".join(notes))}
