"""How well scores predict effects: seven statistics over the pooled pairs of all targets, and one within targets.

"Which edges of this prediction matter?" is a question about one target. Statistics over the pooled pairs of all targets
also see differences between targets: with many neighbours every edge matters less, and a method that knows no more than
the number of neighbours correlates with the effects. Within targets, the edges of a target are compared with one
another only, and every target counts the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from attree.metrics.functional.auroc import as_labels, auroc
from attree.metrics.functional.correlation import kendall, pearson, spearman
from attree.metrics.functional.ranking import Ranking, Values, as_ranking, check_columns
from attree.metrics.functional.sets import edges_needed
from attree.tensors.precision import exact_dtype


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
    return pearsons_by_target([scores], effects, owner, num_targets)[0]


def pearsons_by_target(columns: Sequence[Tensor], effects: Tensor, owner: Tensor, num_targets: int) -> list[Tensor]:
    """Pearson's correlation of the scores of several methods with the same effects, see `pearson_by_target`.

    >>> effects, owner = torch.tensor([0.5, 0.0, 0.0, 0.5]), torch.tensor([0, 0, 1, 1])
    >>> torch.stack(pearsons_by_target([effects, -effects], effects, owner, 2)).round(decimals=6).tolist()
    [[1.0, 1.0], [-1.0, -1.0]]
    """
    for scores in columns:
        check_columns(scores=scores, effects=effects, owner=owner)
    deviations = TargetDeviations(effects, owner, num_targets)
    return [TargetDeviations(scores, owner, num_targets).correlation(deviations) for scores in columns]


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


def median(values: Tensor) -> Tensor:
    """Return the median, halfway between the two middle values of an even number; NaN without any or with a NaN.

    It is `values.quantile(0.5)`, which PyTorch refuses for more than 2^24 values.

    Args:
        values: Any number of values, [N].

    >>> median(torch.tensor([4.0, 1.0, 2.0, 8.0]))
    tensor(3.)
    """
    column, count = values.cpu(), values.numel()
    if count == 0 or bool(column.isnan().any()):
        return values.new_tensor(float("nan"))
    lower, upper = (column.kthvalue(rank).values for rank in ((count + 1) // 2, count // 2 + 1))
    return lower.lerp(upper, 0.5).to(values)


def effect_sizes(strongest: Tensor, edges: Tensor) -> dict[str, Tensor]:
    """Return the medians over targets of their strongest effect and of the edges that hold most of it; NaN without any.

    Args:
        strongest: The strongest effect on each target, see `strongest_effects`.
        edges: The number of edges that hold most of each target's effect, see `edges_of_effect`.

    Returns:
        `strongest`, `edges_90`, and `targets_with`, the number of targets with an effect.
    """
    return {
        "strongest": median(strongest),
        "edges_90": median(edges[~edges.isnan()]),
        "targets_with": (strongest > 0).sum().to(strongest.dtype),
    }


class TargetDeviations:
    """A column's deviations from the mean of each target, of norm 1 in each target.

    Args:
        column: A value of each pair, [P].
        owner: Position of every pair's target, [P].
        num_targets: Number of targets.

    Attributes:
        values: The deviations, [P], in float64 where the device has it.
        is_constant: Whether all edges of a target have the same value, [T]; also of a target without pairs.
        is_finite: Whether no value is NaN or infinite.
    """

    def __init__(self, column: Tensor, owner: Tensor, num_targets: int) -> None:
        column = column.detach().to(exact_dtype(column.device))
        self._owner = owner = owner.to(column.device)
        self._sizes = owner.bincount(minlength=num_targets)
        self._order = None if bool((owner[1:] >= owner[:-1]).all()) else owner.argsort(stable=True)
        self.is_finite = not column.numel() or all(bool(extreme.isfinite()) for extreme in torch.aminmax(column))
        lowest = column.new_full((num_targets,), torch.inf).scatter_reduce_(0, owner, column, "amin")
        highest = column.new_full((num_targets,), -torch.inf).scatter_reduce_(0, owner, column, "amax")
        self.is_constant = lowest >= highest
        # Centred twice, and scaled before squaring, so that neither a large mean nor tiny values cost digits. One array
        # takes what each pair gets of its target: fetching memory anew for millions of pairs costs more than the sums.
        counts, room = self._sizes.clamp(min=1), torch.empty_like(column)
        column = column - torch.index_select(self._sums(column) / counts, 0, owner, out=room)
        column -= torch.index_select(self._sums(column) / counts, 0, owner, out=room)
        scale = column.new_zeros(num_targets).scatter_reduce_(0, owner, torch.abs(column, out=room), "amax")
        scale.masked_fill_(self.is_constant, 1.0)
        column /= torch.index_select(scale, 0, owner, out=room)
        norms = self._sums(torch.mul(column, column, out=room)).sqrt_().masked_fill_(self.is_constant, 1.0)
        self.values = column.div_(torch.index_select(norms, 0, owner, out=room))

    def correlation(self, effects: TargetDeviations) -> Tensor:
        """Return the correlation of each target with the effects of its edges, see `pearson_by_target`."""
        if not (self.is_finite and effects.is_finite):
            return self.values.new_full(self._sizes.shape, torch.nan)
        correlation = self._sums(self.values * effects.values.to(self.values)).clamp_(-1.0, 1.0)
        is_undefined = effects.is_constant.to(correlation.device)
        return correlation.masked_fill_(self.is_constant, 0.0).masked_fill_(is_undefined, torch.nan)

    def _sums(self, column: Tensor) -> Tensor:
        """Return the sum of a column over the edges of each target.

        Both ways add the edges of a target in their order. On a CPU, sums of consecutive edges are four times as fast.
        """
        if column.device.type != "cpu":
            return column.new_zeros(self._sizes.numel()).index_add_(0, self._owner, column)
        column = column if self._order is None else column.index_select(0, self._order)
        return torch.segment_reduce(column, "sum", lengths=self._sizes, unsafe=True)


STATISTICS: Final[dict[str, tuple[Callable[[Values, Values], Tensor], str]]] = {
    "pc_pearson": (pearson, "delta_pc"),
    "pc_kendall": (kendall, "delta_pc"),
    "pc_spearman": (spearman, "delta_pc"),
    "ne_pearson": (pearson, "delta_ne"),
    "ne_kendall": (kendall, "delta_ne"),
    "ne_spearman": (spearman, "delta_ne"),
    "p_auroc": (auroc, "changed"),
}
"""Function of each statistic and the column that the scores are compared with."""


def faithfulness_statistics(scores: Values, delta_pc: Values, delta_ne: Values, changed: Values) -> dict[str, Tensor]:
    """Measure how well scores predict the effect of reducing an edge's attention, by the seven statistics of GAtt.

    Shin, Li, Cao and Shin, "Faithful and Accurate Self-Attention Attribution for Message Passing Neural Networks
    via the Computation Tree Viewpoint" (AAAI 2025), correlate a method's scores with the change of the prediction
    confidence (dPC) and of the negative entropy (dNE). They also measure whether the scores separate the edges whose
    reduction changes the predicted class (dP) from the others. Each argument has one entry per (target, edge) pair.

    Every column is sorted once. The deltas do not depend on the method: to score several methods, compute
    `Ranking(delta_pc)` and `Ranking(delta_ne)` once and pass them.

    Args:
        scores: The method's score of each pair.
        delta_pc: p[k] - p'[k], with k the predicted class and p' the output after the reduction.
        delta_ne: The change of the negative entropy.
        changed: 1 (or True) if the predicted class changed.

    Returns:
        0-d float64 tensors under the keys of `STATISTICS`, in that order, then `faithfulness`, their mean. An undefined
        statistic (constant column, one class, NaN among the values) is NaN. Then the mean is NaN too, because a mean of
        fewer than seven statistics would not be comparable.

    >>> scores = torch.tensor([0.9, 0.5, 0.0, 0.0])
    >>> deltas = torch.tensor([0.3, 0.1, 0.0, 0.0])
    >>> values = faithfulness_statistics(scores, deltas, deltas, deltas > 0.2)
    >>> {name: round(value.item(), 4) for name, value in values.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'pc_pearson': 0.9733, 'pc_kendall': 1.0, 'pc_spearman': 1.0,
     'ne_pearson': 0.9733, 'ne_kendall': 1.0, 'ne_spearman': 1.0, 'p_auroc': 1.0, 'faithfulness': 0.9924}
    """
    check_columns(scores=scores, delta_pc=delta_pc, delta_ne=delta_ne, changed=changed)
    ranking = as_ranking(scores)
    columns: dict[str, Tensor | Ranking] = {
        "delta_pc": as_ranking(delta_pc),
        "delta_ne": as_ranking(delta_ne),
        "changed": as_labels(changed, "changed"),
    }
    values = {name: function(ranking, columns[column]) for name, (function, column) in STATISTICS.items()}
    values["faithfulness"] = torch.stack(list(values.values())).mean()
    return values
