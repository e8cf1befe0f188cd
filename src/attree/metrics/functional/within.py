"""Statistics within targets: one value per target, so that every prediction counts the same.

"Which edges of this prediction matter?" is a question about one target. Statistics over the pooled pairs of all targets
also see differences between targets: with many neighbours every edge matters less, and a method that knows no more than
the number of neighbours correlates with the effects. Here the edges of a target are compared with one another only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attree.metrics.functional.ranking import check_columns
from attree.metrics.functional.sets import edges_needed
from attree.tensors.limits import exact_dtype


def pearson_by_target(scores: Tensor, effects: Tensor, owner: Tensor, num_targets: int) -> Tensor:
    """Pearson's correlation of scores and effects over the edges of each target.

    A target whose edges all have the same effect, for instance 0, has nothing to find: its value is NaN, and it does
    not count. Scores that are all equal within a target say nothing about its edges: their value is 0. If any score or
    effect is NaN or infinite, all values are NaN.

    Args:
        scores: The method's score of each pair, [P].
        effects: The effect of reducing each pair's edge, [P].
        owner: Position of every pair's target, [P].
        num_targets: Number of targets.

    Returns:
        The correlation of each target, [T], in float64 where the device has it.

    >>> effects, owner = torch.tensor([0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    >>> pearson_by_target(torch.tensor([1.0, 1.0, 0.0, 0.2, 0.1, 0.3, 0.1]), effects, owner, 3)
    tensor([0.5000, 1.0000,    nan], dtype=torch.float64)
    >>> pearson_by_target(torch.ones(7), effects, owner, 3).tolist()
    [0.0, 0.0, nan]
    """
    check_columns(scores=scores, effects=effects, owner=owner)
    dtype = exact_dtype(scores.device)
    x, y = (column.detach().to(dtype) for column in (scores, effects.to(scores.device)))
    owner = owner.to(x.device)
    if not bool(x.isfinite().all() and y.isfinite().all()):
        return x.new_full((num_targets,), torch.nan)
    (a, is_flat), (b, is_even) = (deviations_by_target(column, owner, num_targets) for column in (x, y))
    correlation = x.new_zeros(num_targets).index_add_(0, owner, a * b).clamp_(-1.0, 1.0)
    return correlation.masked_fill(is_flat, 0.0).masked_fill(is_even, torch.nan)


def strongest_effects(effects: Tensor, owner: Tensor, num_targets: int) -> Tensor:
    """The size of the largest effect of a single edge on each target; 0 for a target without pairs.

    >>> strongest_effects(torch.tensor([0.1, -0.4, 0.2]), torch.tensor([0, 0, 2]), 3)
    tensor([0.4000, 0.0000, 0.2000])
    """
    sizes = effects.detach().abs()
    return sizes.new_zeros(num_targets).scatter_reduce_(0, owner.to(sizes.device), sizes, "amax")


def edges_of_effect(effects: Tensor, owner: Tensor, num_targets: int, mass: float = 0.9) -> Tensor:
    """How many edges hold most of each target's effect, the strongest first; NaN for targets without an effect.

    Args:
        effects: The effect of reducing each pair's edge, [P]; only its size counts.
        owner: Position of every pair's target, ascending.
        num_targets: Number of targets.
        mass: Share of the sum of sizes that the edges hold.

    >>> edges_of_effect(torch.tensor([0.1, -0.8, 0.1, 0.0, 0.0]), torch.tensor([0, 0, 0, 1, 1]), 2).tolist()
    [2.0, nan]
    """
    needed = edges_needed(effects, owner, num_targets, mass)
    return needed.masked_fill(strongest_effects(effects, owner, num_targets) == 0, torch.nan)


def deviations_by_target(column: Tensor, owner: Tensor, num_targets: int) -> tuple[Tensor, Tensor]:
    """Return the deviations from each target's mean, of norm 1 in each target; and which targets are constant.

    Args:
        column: A value of each pair, [P].
        owner: Position of every pair's target, [P].
        num_targets: Number of targets.
    """
    counts = owner.bincount(minlength=num_targets).clamp(min=1)
    zeros = column.new_zeros(num_targets)
    lowest = column.new_full((num_targets,), torch.inf).scatter_reduce_(0, owner, column, "amin")
    highest = column.new_full((num_targets,), -torch.inf).scatter_reduce_(0, owner, column, "amax")
    is_constant = lowest >= highest  # also of a target without pairs
    # Centred twice, and scaled before squaring, so that neither a large mean nor tiny values cost digits.
    for _ in range(2):
        column = column - (zeros.index_add(0, owner, column) / counts)[owner]
    column = column / strongest_effects(column, owner, num_targets).masked_fill(is_constant, 1.0)[owner]
    norms = zeros.index_add(0, owner, column * column).sqrt().masked_fill(is_constant, 1.0)
    return column / norms[owner], is_constant
