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

    Among targets that are equal in all this, the one whose prediction hangs most on a single edge comes first. What is
    not known of a target stands between what speaks for it and what speaks against it.

    Args:
        evaluation: The result.
        predictions: Class probabilities of the targets, [T, classes]; None takes the evaluation's.
        true_classes: True classes of the targets, [T], negative where unknown; None takes the evaluation's.
        has_truth: Whether each target has edges that are known to explain it, [T]; None if that is unknown.

    Returns:
        A permutation of the targets, [T].
    """
    pairs = evaluation.pairs
    count, device = pairs.targets.numel(), pairs.ptr.device
    predictions = evaluation.predictions if predictions is None else predictions
    true_classes = evaluation.about.labels if true_classes is None else true_classes
    zeros = torch.zeros(count, device=device)
    keys = []
    if predictions is not None:
        confidence, predicted = predictions.to(device).max(dim=1)
        if true_classes is not None:
            true = true_classes.to(device)
            keys.append(torch.where(true < 0, 1.0, 2.0 * (predicted != true)))
    if has_truth is not None:
        keys.append((~has_truth.to(device)).float())
    size = pairs.ptr.diff()
    keys.append(torch.where(size > LARGE, 2.0, ((size < READABLE[0]) | (size > READABLE[1])).float()))
    if predictions is not None:
        keys.append((confidence < CONFIDENT).float())
    effect = zeros.clone()
    for reduction in evaluation.reductions.values():
        strength = reduction.delta_pc.abs().nan_to_num(nan=0.0).to(effect)
        largest = zeros.clone().scatter_reduce(0, pairs.owner, strength, "amax", include_self=True)
        effect = torch.maximum(effect, largest)
    keys.append(-effect)
    order = torch.arange(count, device=device)
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order
