"""Which targets to show first: those that a reader can check at a glance."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.evaluation import Evaluation

READABLE = (4, 60)
"""Fewest and most edges of a neighbourhood that is easy to read: fewer show nothing, more are a thicket."""

LARGE = 200
CONFIDENT = 0.8


def telling_order(
    evaluation: Evaluation,
    predictions: Tensor | None = None,
    true_classes: Tensor | None = None,
    has_truth: Tensor | None = None,
) -> Tensor:
    """Positions of an evaluation's targets, the most telling first: right, with true edges, small, confident.

    Ties go to the target whose prediction depends most on a single edge. A target whose true class is unknown comes
    after those predicted right and before those predicted wrong.

    Args:
        evaluation: The result.
        predictions: Class probabilities of the targets, [T, classes]; None takes the evaluation's.
        true_classes: True classes of the targets, [T], negative where unknown; None takes the evaluation's.
        has_truth: Whether each target has edges that are known to explain it, [T]; None if that is unknown.

    Returns:
        A permutation of the targets, [T].
    """
    pairs = evaluation.pairs
    zeros = torch.zeros(pairs.targets.numel(), device=pairs.ptr.device)
    effect = zeros.clone()
    for reduction in evaluation.reductions.values():
        strength = reduction.delta_pc.abs().nan_to_num(nan=0.0).to(effect)
        largest = zeros.clone().scatter_reduce(0, pairs.owner, strength, "amax", include_self=True)
        effect = torch.maximum(effect, largest)
    return order_targets(
        pairs.ptr.diff(),
        evaluation.predictions if predictions is None else predictions,
        evaluation.about.labels if true_classes is None else true_classes,
        has_truth,
        effect,
    )


def order_targets(
    sizes: Tensor,
    predictions: Tensor | None = None,
    true_classes: Tensor | None = None,
    has_truth: Tensor | None = None,
    effect: Tensor | None = None,
) -> Tensor:
    """Like `telling_order`, from these numbers alone; ties keep their order.

    Args:
        sizes: How many edges are around each target, [T].
        predictions: Class probabilities, [T, classes], or None.
        true_classes: True classes, [T], negative where unknown, or None.
        has_truth: Whether each target has edges that are known to explain it, [T], or None.
        effect: The largest effect of a single edge on each target, [T], or None.
    """
    device = sizes.device
    keys = []
    if predictions is not None:
        confidence, predicted = predictions.to(device).max(dim=1)
        if true_classes is not None:
            true = true_classes.to(device)
            keys.append(torch.where(true < 0, 1.0, 2.0 * (predicted != true)))
    if has_truth is not None:
        keys.append((~has_truth.to(device)).float())
    keys.append(torch.where(sizes > LARGE, 2.0, ((sizes < READABLE[0]) | (sizes > READABLE[1])).float()))
    if predictions is not None:
        keys.append((confidence < CONFIDENT).float())
    if effect is not None:
        keys.append(-effect)
    order = torch.arange(sizes.numel(), device=device)
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order
