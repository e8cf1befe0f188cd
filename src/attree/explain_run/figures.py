"""The figures of `attree explain`: case studies, computation trees, histograms and deletion curves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from attree.attribution import ComputationTree, Random
from attree.callbacks.reporting import warn_only
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator, MetricName
from attree.explain_run.targets import ExplainedTargets
from attree.faithfulness import PROTOCOLS, delete_edges
from attree.report.case_studies import draw_case_studies, draw_score_histograms
from attree.report.computation_tree import computation_tree
from attree.report.score_figures import deletion_curve, dpc_scatter

COUNTS = (0, 1, 2, 3, 5, 10, 20, 50)
"""Numbers of edges that the deletion curve removes."""

DRAWS = 3
"""Number of random draws that the random curve is averaged over."""

MOST_COPIED_EDGES = 30_000_000
"""Maximum number of edges in all forward passes of a deletion curve together: about a minute of work."""

MOST_TREE_NODES = 60
"""Maximum number of nodes of a drawn computation tree."""


def draw_targets(explained: ExplainedTargets, evaluator: Evaluator, positions: Sequence[int]) -> dict[str, Figure]:
    """Draw case studies and computation trees of some targets. Warn about figures that cannot be drawn.

    Args:
        explained: All targets.
        evaluator: The evaluator of all targets.
        positions: Positions of the targets to draw.

    Returns:
        The figures by name.
    """
    figures: dict[str, Figure] = {}
    part = torch.tensor(positions, dtype=torch.int64)
    with warn_only("Case studies"):
        figures |= draw_case_studies(evaluator, len(positions), evaluator.targets.cpu()[part])
    subject = evaluator.subject
    if subject.level == "node" and subject.graph.types is None:  # a tree's nodes have numbers, not names
        with warn_only("Computation trees"):
            for target in explained.ids.cpu()[part].tolist():
                tree = ComputationTree(subject.attention, target, max_nodes=MOST_TREE_NODES, prune=True)
                figures[f"tree_{target}"] = computation_tree(tree)
    return figures


def draw_together(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """Draw the figures of all targets together. Warn about figures that cannot be drawn.

    Args:
        evaluator: The evaluator of the targets.
        evaluation: The result of the evaluator.

    Returns:
        The figures by name.
    """
    figures: dict[str, Figure] = {}
    with warn_only("Figures of all targets"):
        figures |= draw_score_histograms(evaluation)
        for protocol, reduction in evaluation.reductions.items():
            names = {method: str(MetricName(method, "pc_pearson", protocol)) for method in evaluation.pair_scores}
            pearsons = {
                method: evaluation.metrics[name] for method, name in names.items() if name in evaluation.metrics
            }
            figures[f"dpc_{protocol}"] = dpc_scatter(
                evaluation.pair_scores, reduction.delta_pc, protocol, pearsons=pearsons
            )
    with warn_only("The deletion curve"):
        figures |= _deletion(evaluator, evaluation)
    return figures


def _deletion(evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
    """Draw the deletion curve of the first targets, as many as `MOST_COPIED_EDGES` allows."""
    pairs, subject = evaluation.pairs, evaluator.subject
    by_name = {protocol.name: protocol for protocol in evaluator.protocols}
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
        notes.append(f"of {pairs.targets.numel()}: the other neighbourhoods are too large")
    return {"deletion": deletion_curve(counts, curves | {"random": chance}, ", ".join(notes))}
