"""Kendall's and Spearman's correlation when targets are resampled."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attree.metrics.functional.correlation import kendall, spearman
from attree.metrics.functional.ranking import Ranking

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT_PAIRS = 600
"""Pairs up to which every resample is exact."""

FEW_TARGETS = 20
"""With fewer targets the first order of the weights is not enough: every resample is exact, of thinned pairs."""

THINNED_PAIRS = 2500
"""Pairs that are kept of more, evenly of every target, where every resample is exact."""


class RankedPairs:
    r"""Rank correlations of columns over the same pairs, in every resample of the targets.

    With :math:`s_{ij} = \mathrm{sign}(x_i - x_j)`, Kendall's tau-b is a ratio of sums over two pairs, and Spearman's
    rho one of sums over three, each weighed by how often the pairs' targets are drawn:

    .. math:: \sum_{ij} w_i w_j s^x_{ij} s^y_{ij}, \qquad \sum_i w_i r^x_i r^y_i, \quad r_i = \sum_j w_j s_{ij} / 2

    Up to `EXACT_PAIRS` pairs these sums are evaluated as they stand. Of more, each sum is expanded to the first order
    in w about 1: that takes one number a pair, found in O(n log n), however many resamples there are.

    Args:
        owner: Position of every pair's target, ascending.
        weights: How often each target is drawn in each resample, [resamples, targets].
        seed: Seed of the choice of pairs where some are left out.
    """

    def __init__(self, owner: Ints, weights: Floats, seed: int = 0) -> None:
        self.owner, self.weights = owner, weights
        self.is_exact = len(owner) <= EXACT_PAIRS or weights.shape[1] < FEW_TARGETS
        self.kept = _thinned(owner, seed) if self.is_exact else np.arange(len(owner))
        self._every = np.concatenate([np.ones_like(weights[:1]), weights])
        self._signs: dict[int, tuple[Ranking, NDArray[np.int8]]] = {}

    def kendall(self, x: Ranking, y: Ranking) -> Floats:
        """Kendall's tau-b in every resample."""
        if not (x.defined and y.defined):
            return self._undefined()
        if self.is_exact:
            a, b = self._sign(x), self._sign(y)
            sums = [self._double_sum(matrix) for matrix in (a * b, np.abs(a), np.abs(b))]
            return self._without_all(_ratio(*sums), kendall, x, y)
        concordance = concordance_by_point(x, y)
        untied = [len(x) - column.counts[column.dense].astype(float) for column in (x, y)]
        return _ratio(*(self._first_order(2 * values, 2) for values in (concordance, *untied)))

    def spearman(self, x: Ranking, y: Ranking) -> Floats:
        """Spearman's rho in every resample."""
        if not (x.defined and y.defined):
            return self._undefined()
        if self.is_exact:
            by_pair = self._every[:, self.owner[self.kept]]
            a, b = (by_pair @ self._sign(column).T.astype(float) for column in (x, y))
            products = (by_pair * a * b, by_pair * a * a, by_pair * b * b)
            return self._without_all(_ratio(*(one.sum(axis=1) for one in products)), spearman, x, y)
        a, b = _centred(x), _centred(y)
        return _ratio(
            self._first_order(a * b + (_signed_sums(x, b) + _signed_sums(y, a)) / 2, 3),
            self._first_order(a * a + _signed_sums(x, a), 3),
            self._first_order(b * b + _signed_sums(y, b), 3),
        )

    def _undefined(self) -> Floats:
        return np.full(len(self.weights), math.nan)

    def _first_order(self, derivative: Floats, degree: int) -> Floats:
        """A sum over products of so many weights, from its derivative by each pair's weight where all are 1."""
        by_target = sums_by_target(derivative, self.owner, self.weights.shape[1])
        return self.weights @ by_target - (degree - 1) / degree * by_target.sum()

    def _sign(self, column: Ranking) -> NDArray[np.int8]:
        """Sign of the difference of every two kept pairs; made once a column."""
        known = self._signs.get(id(column))
        if known is None:
            rank = column.dense[self.kept]
            known = column, np.sign(rank[:, None] - rank[None, :]).astype(np.int8)
            self._signs[id(column)] = known
        return known[1]

    def _double_sum(self, matrix: NDArray[np.int8]) -> Floats:
        present, starts = np.unique(self.owner[self.kept], return_index=True)
        rows = np.add.reduceat(matrix, starts, axis=1, dtype=np.float64)
        own = self._every[:, present]
        return ((own @ np.add.reduceat(rows, starts, axis=0)) * own).sum(axis=1)

    def _without_all(
        self, found: Floats, statistic: Callable[[Ranking, Ranking], Tensor], x: Ranking, y: Ranking
    ) -> Floats:
        """Leave out the first entry, of every target once; where pairs were left out, move the rest by its error."""
        if len(self.kept) == len(self.owner):
            return found[1:]
        return found[1:] + (float(statistic(x, y)) - found[0])


def concordance_by_point(x: Ranking, y: Ranking) -> Floats:
    """For each point, how many others are concordant with it less how many are discordant.

    The largest tie group of y (most effects are exactly 0) is settled by counting; only the other points are compared
    with one another, in O(m log m).

    >>> import torch
    >>> concordance_by_point(Ranking(torch.tensor([1.0, 2.0, 3.0])), Ranking(torch.tensor([0.0, 0.0, 5.0]))).tolist()
    [1.0, 1.0, 2.0]
    """
    group = int(y.counts.argmax())
    side = np.sign(y.dense - group)
    found = np.empty(len(x))
    inside, rest = side == 0, (side != 0).nonzero()[0]
    size = len(x.counts)
    # Against the points outside the group, a point of the group sees the sides they lie on.
    above, below = (np.bincount(x.dense[side == one], minlength=size).astype(float) for one in (1, -1))
    found[inside] = (lead(below) - lead(above))[x.dense[inside]]
    members = lead(np.bincount(x.dense[inside], minlength=size).astype(float))
    found[rest] = members[x.dense[rest]] * side[rest] + _concordance(x.dense[rest], y.dense[rest])
    return found


def _concordance(a: Ints, b: Ints) -> Floats:
    """Concordant less discordant partners of each of some points, given by ranks."""
    if len(a) == 0:
        return np.zeros(0)
    lower, upper = _dominated(a, b), _dominated(a, b.max() - b)  # a smaller; b smaller, or larger
    tied_lower, tied_upper = _within(a, b)
    counts = np.bincount(b)
    under = (np.cumsum(counts) - counts)[b]
    over = len(b) - under - counts[b]
    return (lower + (over - upper - tied_upper) - upper - (under - lower - tied_lower)).astype(float)


def _within(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """For each point, how many of equal a have a smaller b, and how many a larger one."""
    span = int(b.max()) + 1
    key = a * span + b
    ordered = np.sort(key)
    first, last = np.searchsorted(ordered, key), np.searchsorted(ordered, key, side="right")
    begin = np.searchsorted(ordered, a * span)
    end = np.searchsorted(ordered, (a + 1) * span)
    return first - begin, end - last


def _dominated(a: Ints, b: Ints) -> Ints:
    """For each point, how many have both a smaller a and a smaller b.

    Read in the order of a (equal a: larger b first), it is how many earlier values are smaller. These are counted bit
    by bit from the highest: among values that agree in all higher bits, one whose bit is set has before it all the
    values whose bit is not.
    """
    order = np.lexsort((-b, a))
    count = len(a)
    # Equal values become a permutation in which the earlier is the larger, so that none counts as smaller.
    place = np.empty(count, np.int64)
    place[np.lexsort((-np.arange(count), b[order]))] = np.arange(count)
    values, smaller = place.copy(), np.zeros(count, np.int64)
    for bit in range((count - 1).bit_length() - 1, -1, -1):
        half = 1 << bit
        is_high = (values & half) != 0
        block = (values >> (bit + 1)) << bit  # all blocks before are complete: as many low values, and as many high
        lows = np.cumsum(~is_high)
        smaller[values[is_high]] += (lows - block)[is_high]
        highs = np.arange(1, count + 1) - lows
        target = np.where(is_high, block + half + highs, block + lows) - 1
        arranged = np.empty_like(values)
        arranged[target] = values
        values = arranged
    found = np.empty(count, np.int64)
    found[order] = smaller[place]
    return found


def lead(counts: Floats) -> Floats:
    """For each rank, how many counted values lie below it less how many lie above."""
    return 2 * np.cumsum(counts) - counts - counts.sum()


def sums_by_target(values: Floats, owner: Ints, targets: int) -> Floats:
    """Sum the values of each target."""
    return np.bincount(owner, values, minlength=targets).astype(np.float64)


def _centred(column: Ranking) -> Floats:
    """Each value's midrank less the mean of all."""
    return (column.midranks - (len(column) + 1) / 2)[column.dense]


def _signed_sums(column: Ranking, values: Floats) -> Floats:
    """For each point, the sum of values of points above it in a column, less that of points below."""
    return -lead(sums_by_target(values, column.dense, len(column.counts)))[column.dense]


def _ratio(total: Floats, first: Floats, second: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = total / np.sqrt((first * second).clip(min=0))
    return np.where(np.isfinite(found), found.clip(-1.0, 1.0), math.nan)


def _thinned(owner: Ints, seed: int) -> Ints:
    """Positions of at most `THINNED_PAIRS` pairs, of every target the same share, drawn at random."""
    count = len(owner)
    if count <= THINNED_PAIRS:
        return np.arange(count)
    order = np.random.default_rng(seed).permutation(count)
    order = order[np.argsort(owner[order], kind="stable")]
    return order[(np.arange(THINNED_PAIRS) * (count / THINNED_PAIRS)).astype(np.int64)]
