r"""How much each target moves a statistic: an infinitesimal jackknife over targets.

Pairs of one target are not independent, so a target is the unit that is drawn. Give target k the weight :math:`w_k`,
which every pair of it has. A statistic :math:`\theta(w)` of the weighted pairs then has a derivative for each target,

.. math:: U_k = \frac{\partial \theta}{\partial w_k} \Big|_{w = 1}, \qquad \sum_k U_k = 0,

and :math:`\sum_k U_k^2` estimates its variance when targets are drawn anew (Efron, "The Jackknife, the Bootstrap and
Other Resampling Plans", 1982, chapter 6). The derivatives of all statistics here are sums over pairs that take
O(n log n). Nothing is drawn at random.

A target with a large share :math:`h_k` of the pairs pulls the statistic towards itself, which makes its own derivative
too small. As the jackknife that leaves out whole targets does, :math:`U_k / (1 - h_k)` corrects this.
`attree.metrics.functional.intervals` turns the derivatives into intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from attree.errors import expect
from attree.metrics.functional.auroc import positives
from attree.metrics.functional.correlation import concordance_by_point, lead
from attree.metrics.functional.faithfulness import STATISTICS
from attree.metrics.functional.ranking import Ranking, Values, as_ranking, as_tensor, check_columns
from attree.tensors.arrays import Floats, Ints

T = TypeVar("T")

FAITHFULNESS = "faithfulness"

Scale = Literal["correlation", "correlations", "probability", "mean"]
"""What a statistic is, which decides the scale of its interval: a correlation, a mean of the correlations of targets, a
probability (AUROC), or another mean."""

MANY_TARGETS = 50
"""Fewest targets for the interval of a pooled statistic, and of a mean of correlations near 1."""

NEAR_ONE = 0.75
"""A mean of correlations above this is near 1. Most targets are near 1 then, so that few of them hardly show the rare
ones that are not."""

FEWEST_TARGETS = 10
"""Fewest targets that decide an AUROC with an interval: targets with a positive, and targets with a lost comparison."""


@dataclass(frozen=True)
class Influence:
    """A statistic and how much each target moves it.

    Attributes:
        value: The statistic over all targets.
        by_target: Its corrected derivative by the weight of each target, [targets]. NaN if it has no interval.
        effective: How many targets of equal weight would decide it as evenly: with shares h of the pairs, 1 / sum h^2.
        scale: What it is.
        is_enough: Whether the targets are enough for an interval.
    """

    value: float
    by_target: Floats
    effective: float
    scale: Scale = "mean"
    is_enough: bool = True

    @property
    def error(self) -> float:
        """The standard error of the statistic, when targets are drawn anew."""
        return math.sqrt(float((self.by_target**2).sum()))

    def minus(self, other: Influence) -> Influence:
        """Return the difference of two statistics of the same targets."""
        effective = min(self.effective, other.effective)
        with np.errstate(invalid="ignore"):  # a single target decides both: the difference of infinities is undefined
            by_target = self.by_target - other.by_target
        is_enough = self.is_enough and other.is_enough
        return Influence(self.value - other.value, by_target, effective, is_enough=is_enough)

    def out_of(self, population: int) -> Influence:
        """Return the influence when the targets are drawn, each at most once, from a finite number of targets.

        The error shrinks by the square root of the share that was not drawn. If all targets there are were drawn, the
        statistic is exact: no target that was not drawn could move it.

        Args:
            population: Number of targets there are.
        """
        targets = len(self.by_target)
        if population <= targets:
            return replace(self, by_target=np.zeros(targets))
        return replace(self, by_target=self.by_target * math.sqrt(1 - targets / population))


def undefined(targets: int) -> Influence:
    """Return the influence on a statistic that is not defined."""
    return Influence(math.nan, np.full(targets, math.nan), 0.0)


def influence_on_mean(values: Floats, scale: Scale = "mean") -> Influence:
    """Return the influence of each target on the mean of one value per target; NaN values do not count.

    The error is that of the usual t interval: the standard deviation over the square root of the number of values.

    >>> influence_on_mean(np.array([1.0, 3.0, 8.0, np.nan])).error
    2.081665999466133
    """
    counts = np.isfinite(values)
    number = int(counts.sum())
    if number == 0:
        return undefined(len(values))
    mean = float(values[counts].mean())
    is_enough = not (scale == "correlations" and abs(mean) > NEAR_ONE and number < MANY_TARGETS)
    deviations = np.where(counts, values - mean, 0.0)
    # 1 / (number * (number - 1)) instead of 1 / number^2, as each value is its own share of the mean.
    by_target = deviations / math.sqrt(number * (number - 1)) if number > 1 else np.full(len(values), math.nan)
    return Influence(mean, by_target, float(number), scale, is_enough)


class TargetInfluence:
    r"""Influences of targets on the statistics of columns over the same pairs.

    With :math:`s_{ij} = \mathrm{sign}(x_i - x_j)`, Kendall's tau-b is a ratio of sums over two pairs, and Spearman's
    rho one of sums over three:

    .. math:: \sum_{ij} w_i w_j s^x_{ij} s^y_{ij}, \qquad \sum_i w_i r^x_i r^y_i, \quad r_i = \sum_j w_j s_{ij} / 2

    Values that depend on one column alone are computed once, because each column is compared with several others.

    Args:
        owner: Position of every pair's target, ascending.
        targets: Number of targets.
    """

    def __init__(self, owner: Ints, targets: int) -> None:
        self.owner, self.targets = owner, targets
        self._are_many = targets >= MANY_TARGETS
        self._shares = self._sums(np.ones(len(owner))) / max(len(owner), 1)
        self._cached: dict[tuple[str, int], tuple[Ranking, Any]] = {}

    def pearson(self, x: Ranking, y: Ranking) -> Influence:
        """Return Pearson's correlation. It has no interval, so its influences are unknown.

        A few targets with large neighbourhoods decide it. A sample without them cannot know it, whatever is computed
        from the sample (`benchmarks/coverage.py`).
        """
        if not (x.defined and y.defined):
            return undefined(self.targets)
        value = float((x.deviations * y.deviations).sum())
        return replace(undefined(self.targets), value=min(max(value, -1.0), 1.0))

    def kendall(self, x: Ranking, y: Ranking) -> Influence:
        """Return the influences on Kendall's tau-b."""
        if not (x.defined and y.defined):
            return undefined(self.targets)
        concordance = concordance_by_point(x, y)
        untied = (self._once(self._untied, column) for column in (x, y))
        return self._ratio(float(concordance.sum()), 2 * self._sums(concordance), *untied)

    def spearman(self, x: Ranking, y: Ranking) -> Influence:
        """Return the influences on Spearman's rho."""
        if not (x.defined and y.defined):
            return undefined(self.targets)
        a, b = (self._once(_centred, column) for column in (x, y))
        derivative = a * b + (_signed_sums(x, b) + _signed_sums(y, a)) / 2
        squares = (self._once(self._squared_ranks, column) for column in (x, y))
        return self._ratio(float((a * b).sum()), self._sums(derivative), *squares)

    def auroc(self, scores: Ranking, labels: Values) -> Influence:
        """Return the influences on the AUROC; without an interval if too few targets decide it.

        Too few are fewer than `MANY_TARGETS`; fewer than half of the targets, or fewer than `FEWEST_TARGETS`, with a
        positive; and fewer than `FEWEST_TARGETS` with a positive that does not win all its comparisons.
        """
        positive, rank = positives(labels), scores.dense
        count = 0 if positive is None else int(np.count_nonzero(positive))
        if positive is None or count == 0 or count == len(positive) or scores.has_nan:
            return undefined(self.targets)
        others = len(positive) - count
        by_rank = np.bincount(rank[positive], minlength=len(scores.counts)).astype(float)
        # Wins minus losses of each positive over all negatives, and of all positives over each negative.
        gain = np.where(positive, lead(scores.counts - by_rank)[rank], -lead(by_rank)[rank])
        total = float(gain[positive].sum())
        value = 0.5 + total / (2 * count * others)
        by_target = np.zeros(self.targets)
        shares = {}
        for is_positive, number in ((True, count), (False, others)):
            group = positive == is_positive
            share = self._sums(group.astype(float)) / number
            shares[is_positive] = share
            with np.errstate(divide="ignore", invalid="ignore"):
                by_target += (self._sums(np.where(group, gain, 0.0)) - total * share) / (1 - share)
        with_positive = np.count_nonzero(shares[True])
        losing = np.count_nonzero(self._sums((positive & (gain < others)).astype(float)))
        is_enough = min(with_positive, losing) >= FEWEST_TARGETS and 2 * with_positive >= self.targets
        is_enough &= self._are_many
        by_target = by_target / (2 * count * others) if is_enough else np.full(self.targets, math.nan)
        return Influence(value, by_target, 1 / float((shares[True] ** 2).sum()), "probability")

    def _ratio(self, top: float, top_by_target: Floats, *roots: tuple[float, Floats]) -> Influence:
        """Return the influences on top / sqrt(product of both roots), given each sum and its derivatives."""
        bottom = math.sqrt(math.prod(total for total, _ in roots))
        value = top / bottom
        by_target = top_by_target / bottom - value / 2 * sum(sums / total for total, sums in roots)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_target = by_target / (1 - self._shares) if self._are_many else np.full(self.targets, math.nan)
        effective = 1 / float((self._shares**2).sum())
        return Influence(float(np.clip(value, -1.0, 1.0)), by_target, effective, "correlation")

    def _untied(self, column: Ranking) -> tuple[float, Floats]:
        """Return the number of ordered pairs of points that do not tie in a column, and its derivatives."""
        untied = len(column) - column.counts[column.dense].astype(float)
        return float(untied.sum()), 2 * self._sums(untied)

    def _squared_ranks(self, column: Ranking) -> tuple[float, Floats]:
        """Return the sum of a column's squared centred ranks, and its derivatives."""
        ranks = self._once(_centred, column)
        return float((ranks * ranks).sum()), self._sums(ranks * ranks + _signed_sums(column, ranks))

    def _once(self, function: Callable[[Ranking], T], column: Ranking) -> T:
        """Return the function's result for a column; call the function once per column."""
        key = function.__name__, id(column)
        if key not in self._cached:
            self._cached[key] = column, function(column)  # store the column, so that its id is not reused
        result: T = self._cached[key][1]
        return result

    def _sums(self, values: Floats) -> Floats:
        """Sum the values of each target."""
        return np.bincount(self.owner, values, minlength=self.targets).astype(np.float64)


def faithfulness_influences(
    scores: Mapping[str, Values], delta_pc: Values, delta_ne: Values, changed: Values, owner: Values
) -> dict[tuple[str, str], Influence]:
    """Return how much each target moves the faithfulness statistics of several methods.

    Args:
        scores: Score of every pair, or its ranking, by method.
        delta_pc: Decline of the predicted class's probability.
        delta_ne: Change of the negative entropy.
        changed: Whether the predicted class changed.
        owner: Position of every pair's target, ascending from 0.

    Returns:
        The influences by method and statistic. The statistics are those of `faithfulness_statistics`.

    >>> import torch
    >>> scores, effects = torch.rand(2, 60, generator=torch.Generator().manual_seed(0))
    >>> owner = torch.arange(20).repeat_interleave(3)
    >>> influences = faithfulness_influences({"gatt": scores}, effects, effects, effects > 0.5, owner)
    >>> influences["gatt", "pc_pearson"].by_target.shape
    (20,)
    """
    check_columns(owner=owner, delta_pc=delta_pc, delta_ne=delta_ne, changed=changed, **scores)
    targets = as_tensor(owner).detach().cpu().numpy().astype(np.int64)
    expect(bool((np.diff(targets) >= 0).all()), "owner", "positions of targets in ascending order", "others")
    if len(targets) == 0:
        return {}
    influence = TargetInfluence(targets, int(targets[-1]) + 1)
    rankings = {method: as_ranking(column) for method, column in scores.items()}
    return influences_on(influence, rankings, as_ranking(delta_pc), as_ranking(delta_ne), changed)


def influences_on(
    influence: TargetInfluence, scores: Mapping[str, Ranking], delta_pc: Ranking, delta_ne: Ranking, changed: Values
) -> dict[tuple[str, str], Influence]:
    """Do the work of `faithfulness_influences` for a `TargetInfluence`, which several protocols can share."""
    deltas = {"delta_pc": delta_pc, "delta_ne": delta_ne}
    correlations = {"pearson": influence.pearson, "kendall": influence.kendall, "spearman": influence.spearman}
    influences: dict[tuple[str, str], Influence] = {}
    for method, ranking in scores.items():
        of_method: dict[str, Influence] = {}
        for statistic, (function, against) in STATISTICS.items():
            if against == "changed":
                of_method[statistic] = influence.auroc(ranking, changed)
            else:
                of_method[statistic] = correlations[function.__name__](ranking, deltas[against])
        of_method[FAITHFULNESS] = _mean(list(of_method.values()))
        influences |= {(method, statistic): single for statistic, single in of_method.items()}
    return influences


def _mean(influences: list[Influence]) -> Influence:
    """Return the influences on the mean of several statistics."""
    return Influence(
        float(np.mean([single.value for single in influences])),
        np.mean([single.by_target for single in influences], axis=0),
        min(single.effective for single in influences),
    )


def _centred(column: Ranking) -> Floats:
    """Return each value's midrank minus the mean midrank."""
    return (column.midranks - (len(column) + 1) / 2)[column.dense]


def _signed_sums(column: Ranking, values: Floats) -> Floats:
    """Return, for each point, the sum of `values` over the points above it in a column minus that over those below."""
    by_rank = np.bincount(column.dense, values, minlength=len(column.counts)).astype(np.float64)
    return -lead(by_rank)[column.dense]
