"""Pearson's, Kendall's and Spearman's correlation in each resample of the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attree.metrics.functional.concordance import concordance_by_point, lead
from attree.metrics.functional.correlation import kendall, spearman
from attree.metrics.functional.ranking import Ranking
from attree.tensors.arrays import Floats, Ints

T = TypeVar("T")

EXACT_PAIRS = 600
"""Maximum number of pairs for which each resample is exact."""

FEW_TARGETS = 20
"""With fewer targets the first order in the weights is too coarse: each resample is exact, over a sample of pairs."""

SOME_TARGETS = 50
"""With fewer targets Spearman is exact up to `THINNED_PAIRS` pairs, because its first order has a larger error."""

THINNED_PAIRS = 2500
"""Size of the sample of pairs, an equal share of each target, for which exact resamples are computed."""


class _Moments(NamedTuple):
    """Deviations of a column from its overall mean, [pairs]; their sums and variances per resample, [resamples]."""

    deviations: Floats
    sums: Floats
    variances: Floats


class ResampledPairs:
    r"""Correlations of columns over the same pairs, in each resample of the targets.

    In a resample, the weight :math:`w` of a pair is the number of times that its target was drawn. Pearson's
    correlation is a ratio of sums over pairs. With :math:`s_{ij} = \mathrm{sign}(x_i - x_j)`, Kendall's tau-b is a
    ratio of sums over two pairs, and Spearman's rho one of sums over three:

    .. math:: \sum_{ij} w_i w_j s^x_{ij} s^y_{ij}, \qquad \sum_i w_i r^x_i r^y_i, \quad r_i = \sum_j w_j s_{ij} / 2

    Pearson's sums are always exact. The others are exact up to `EXACT_PAIRS` pairs, and with fewer than `FEW_TARGETS`
    targets (Spearman: `SOME_TARGETS`). Otherwise each sum is expanded to the first order in w around 1. That takes one
    number per pair, found in O(n log n), for any number of resamples.

    Values that depend on one column alone are computed once, because each column is compared with several others.

    Args:
        owner: Position of every pair's target, ascending.
        weights: How often each target is drawn in each resample, [resamples, targets].
        seed: Seed of the sample of pairs.
    """

    def __init__(self, owner: Ints, weights: Floats, seed: int = 0) -> None:
        self.owner, self.weights = owner, weights
        self.is_exact = len(owner) <= EXACT_PAIRS or weights.shape[1] < FEW_TARGETS
        self.kept = _thinned(owner, seed) if self.is_exact else np.arange(len(owner))
        self._counts = weights @ np.bincount(owner, minlength=weights.shape[1])
        # The first row draws every target once, which gives the statistic of all pairs.
        self._every = np.concatenate([np.ones_like(weights[:1]), weights])
        self._known: dict[tuple[str, int], tuple[Ranking, Any]] = {}

    def pearson(self, x: Ranking, y: Ranking) -> Floats:
        """Return Pearson's correlation in each resample."""
        if not (x.defined and y.defined):
            return self._undefined()
        first, second = (self._once(self._moments, column) for column in (x, y))
        products = self._weighted(first.deviations * second.deviations)
        covariance = products - first.sums * second.sums / self._counts
        with np.errstate(divide="ignore", invalid="ignore"):
            found = covariance / np.sqrt((first.variances * second.variances).clip(min=0))
        return np.where(np.isfinite(found), found, math.nan)

    def kendall(self, x: Ranking, y: Ranking) -> Floats:
        """Return Kendall's tau-b in each resample."""
        if not (x.defined and y.defined):
            return self._undefined()
        if self.is_exact:
            a, b = (self._once(self._sign, column) for column in (x, y))
            untied = (self._once(self._all_untied, column) for column in (x, y))
            return self._without_all(_ratio(self._double_sum(a * b), *untied), kendall, x, y)
        concordance = self._first_order(2 * concordance_by_point(x, y), 2)
        return _ratio(concordance, *(self._once(self._untied, column) for column in (x, y)))

    def spearman(self, x: Ranking, y: Ranking) -> Floats:
        """Return Spearman's rho in each resample."""
        if not (x.defined and y.defined):
            return self._undefined()
        if self.is_exact or (self.weights.shape[1] < SOME_TARGETS and len(self.owner) <= THINNED_PAIRS):
            a, b = (self._once(self._ranks, column) for column in (x, y))
            squares = (self._once(self._all_squares, column) for column in (x, y))
            products = np.einsum("ij,ij,ij->i", self._by_pair, a, b)
            return self._without_all(_ratio(products, *squares), spearman, x, y)
        a, b = (self._once(_centred, column) for column in (x, y))
        product = self._first_order(a * b + (_signed_sums(x, b) + _signed_sums(y, a)) / 2, 3)
        return _ratio(product, *(self._once(self._squares, column) for column in (x, y)))

    def _moments(self, column: Ranking) -> _Moments:
        """Return sums and variances of a column around its overall mean, for numerical accuracy."""
        deviations = column.deviations.cpu().numpy()
        sums, squares = self._weighted(deviations), self._weighted(deviations * deviations)
        with np.errstate(divide="ignore", invalid="ignore"):
            variances = squares - sums * sums / self._counts
        # Remove rounding errors of columns that are constant in a resample.
        return _Moments(deviations, sums, np.where(variances <= 1e-13 * squares, 0.0, variances))

    def _untied(self, column: Ranking) -> Floats:
        """Return the number of pairs of points that do not tie in a column, to the first order."""
        return self._first_order(2 * (len(column) - column.counts[column.dense].astype(float)), 2)

    def _squares(self, column: Ranking) -> Floats:
        """Return the sum of a column's squared ranks, to the first order."""
        ranks = self._once(_centred, column)
        return self._first_order(ranks * ranks + _signed_sums(column, ranks), 3)

    def _all_untied(self, column: Ranking) -> Floats:
        """Return the exact number of pairs of points that do not tie in a column."""
        return self._double_sum(np.abs(self._once(self._sign, column)))

    def _all_squares(self, column: Ranking) -> Floats:
        """Return the exact sum of a column's squared ranks."""
        ranks = self._once(self._ranks, column)
        found: Floats = np.einsum("ij,ij,ij->i", self._by_pair, ranks, ranks)
        return found

    @cached_property
    def _by_pair(self) -> Floats:
        """Number of times that each sampled pair is drawn, [1 + resamples, kept]."""
        return self._every[:, self.owner[self.kept]]

    def _ranks(self, column: Ranking) -> Floats:
        """Return, for each sampled pair, the drawn pairs below minus those above, [1 + resamples, kept]."""
        _, place = np.unique(column.dense[self.kept], return_inverse=True)
        order = place.argsort(kind="stable")
        _, starts = np.unique(place[order], return_index=True)
        by_rank = np.add.reduceat(self._by_pair[:, order], starts, axis=1)
        return lead(by_rank)[:, place]

    def _sign(self, column: Ranking) -> NDArray[np.int8]:
        """Return the sign of the difference of every two sampled pairs."""
        rank = column.dense[self.kept]
        return np.sign(rank[:, None] - rank[None, :]).astype(np.int8)

    def _once(self, function: Callable[[Ranking], T], column: Ranking) -> T:
        """Return the function's result for a column; call the function once per column."""
        key = function.__name__, id(column)
        if key not in self._known:
            self._known[key] = column, function(column)  # store the column, so that its id is not reused
        found: T = self._known[key][1]
        return found

    def _undefined(self) -> Floats:
        return np.full(len(self.weights), math.nan)

    def _weighted(self, values: Floats) -> Floats:
        """Return the weighted sum of one value per pair, in each resample."""
        return self.weights @ sums_by_target(values, self.owner, self.weights.shape[1])

    def _first_order(self, derivative: Floats, degree: int) -> Floats:
        """Expand a sum over products of `degree` weights to the first order, given its derivative at weights of 1."""
        return self._weighted(derivative) - (degree - 1) / degree * derivative.sum()

    def _double_sum(self, matrix: NDArray[np.int8]) -> Floats:
        """Return a weighted sum over every two sampled pairs, in each resample."""
        present, starts = np.unique(self.owner[self.kept], return_index=True)
        rows = np.add.reduceat(matrix, starts, axis=1, dtype=np.float64)
        own = self._every[:, present]
        return ((own @ np.add.reduceat(rows, starts, axis=0)) * own).sum(axis=1)

    def _without_all(
        self, found: Floats, statistic: Callable[[Ranking, Ranking], Tensor], x: Ranking, y: Ranking
    ) -> Floats:
        """Drop the first entry, which is for all targets; if pairs were sampled, shift the rest by its error."""
        if len(self.kept) == len(self.owner):
            return found[1:]
        return found[1:] + (float(statistic(x, y)) - found[0])


def sums_by_target(values: Floats, owner: Ints, targets: int) -> Floats:
    """Sum the values of each target."""
    return np.bincount(owner, values, minlength=targets).astype(np.float64)


def _centred(column: Ranking) -> Floats:
    """Return each value's midrank minus the mean midrank."""
    return (column.midranks - (len(column) + 1) / 2)[column.dense]


def _signed_sums(column: Ranking, values: Floats) -> Floats:
    """Return, for each point, the sum of `values` over the points above it in a column minus that over those below."""
    return -lead(sums_by_target(values, column.dense, len(column.counts)))[column.dense]


def _ratio(total: Floats, first: Floats, second: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = total / np.sqrt((first * second).clip(min=0))
    return np.where(np.isfinite(found), found.clip(-1.0, 1.0), math.nan)


def _thinned(owner: Ints, seed: int) -> Ints:
    """Return positions of at most `THINNED_PAIRS` random pairs, an equal share of each target."""
    count = len(owner)
    if count <= THINNED_PAIRS:
        return np.arange(count)
    order = np.random.default_rng(seed).permutation(count)
    order = order[np.argsort(owner[order], kind="stable")]
    return order[(np.arange(THINNED_PAIRS) * (count / THINNED_PAIRS)).astype(np.int64)]
