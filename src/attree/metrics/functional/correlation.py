"""Pearson's and Spearman's correlation, Kendall's tau-b in O(n log n), and each point's concordant partners."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attree.metrics.functional.ranking import (
    Ranking,
    Values,
    as_ranking,
    check_columns,
    on_device_of,
    run_lengths,
    scalar,
    tied_pairs,
    unit_deviations,
)
from attree.tensors.arrays import Floats, Ints

# Measured: below blocks of 16 values, comparing all neighbours is cheaper than partitioning once more.
_BLOCK_BITS = 4
_CHUNK = 1 << 15


def pearson(x: Values, y: Values) -> Tensor:
    r"""Pearson's linear correlation, computed in float64 for arguments of any dtype.

    .. math:: r = \frac{\sum_i (x_i - \bar x)(y_i - \bar y)}{\lVert x - \bar x \rVert \, \lVert y - \bar y \rVert}

    Runs on the device of the arguments, or on the host if the device has no float64.

    Args:
        x: A vector, or its ranking.
        y: A vector of the same length, or its ranking.

    Returns:
        A 0-d float64 tensor on the device of `x`; NaN if either is constant, has fewer than 2 values or contains
        NaN or an infinity.

    >>> import torch
    >>> pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
    tensor(0.9820, dtype=torch.float64)
    """
    check_columns(x=x, y=y)
    if len(x) < 2:
        return scalar(math.nan, x)
    first, second = (c.deviations if isinstance(c, Ranking) else unit_deviations(c) for c in (x, y))
    if not (isinstance(y, Ranking) and first.device.type == second.device.type == "cpu"):
        return on_device_of(x, (first * second).sum().clamp_(-1.0, 1.0))
    with y.room() as room:
        return on_device_of(x, torch.mul(first, second, out=torch.from_numpy(room)).sum().clamp_(-1.0, 1.0))


def spearman(x: Values, y: Values) -> Tensor:
    r"""Spearman's rank correlation: Pearson's correlation of the midranks.

    Tied values share the mean of their ranks. With midrank m and count c of each distinct value, the variance is
    :math:`\sum c \, (m - \frac{n+1}{2})^2`. Runs on the host (see `Ranking`).

    Args:
        x: A vector, or its ranking.
        y: A vector of the same length, or its ranking.

    Returns:
        A 0-d float64 tensor on the device of `x`; NaN if either is constant, contains NaN or has fewer than 2 values.

    >>> import torch
    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 0.0, 5.0]))
    tensor(0.7746, dtype=torch.float64)
    """
    check_columns(x=x, y=y)
    first, second = as_ranking(x), as_ranking(y)
    if not (first.defined and second.defined):
        return scalar(math.nan, x)
    # A product and a sum rather than a dot product: BLAS would start threads, which costs more than it saves.
    with second.room() as room:
        rho = float(np.multiply(first.rank_deviations, second.rank_deviations, out=room).sum())
    return scalar(min(1.0, max(-1.0, rho)), x)


def kendall(x: Values, y: Values) -> Tensor:
    r"""Kendall's rank correlation with ties, tau-b (Kendall, "The treatment of ties in ranking problems", 1945).

    .. math:: \tau_b = \frac{C - D}{\sqrt{(P - T_x)(P - T_y)}}

    Of the :math:`P = n(n-1)/2` pairs of points, :math:`C` are concordant, :math:`D` discordant, and :math:`T_x` and
    :math:`T_y` are tied in x and in y. All counts are exact integers.

    Most deltas are exactly 0, because most edges carry no flow to the target. So the largest tie group is handled
    first, by counting: no pair inside it is concordant or discordant, and each point outside is compared with the whole
    group at once. Only the other points are sorted by x, then y; their discordant pairs are the inversions of a
    permutation. Runs on the host (see `Ranking`).

    SciPy's `kendalltau` gives the same number. It sorts both columns in every call, but the deltas are the same for all
    methods, and the scores of a random method are the same in all epochs. It also does not treat large tie groups
    separately. For 16,000 pairs with 90 % ties it takes 2.8 times as long as this function, and 11 times as long if
    both columns are ranked already; without ties, 0.84 and 1.7 times (`benchmarks/kendall.py`).

    Args:
        x: A vector, or its ranking.
        y: A vector of the same length, or its ranking.

    Returns:
        A 0-d float64 tensor on the device of `x`; NaN if either is constant, contains NaN or has fewer than 2 values.

    >>> import torch
    >>> kendall(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 0.0, 5.0]))
    tensor(0.7071, dtype=torch.float64)
    """
    check_columns(x=x, y=y)
    first, second = as_ranking(x), as_ranking(y)
    if not (first.defined and second.defined):
        return scalar(math.nan, x)
    pairs = math.comb(len(first), 2)
    untied = (pairs - first.num_tied_pairs) * (pairs - second.num_tied_pairs)
    tau = _concordant_minus_discordant(first, second) / math.sqrt(untied)
    return scalar(min(1.0, max(-1.0, tau)), x)


def _concordant_minus_discordant(x: Ranking, y: Ranking) -> int:
    """Return the number of concordant minus discordant pairs of points, C - D."""
    if x.counts.max() > y.counts.max():
        x, y = y, x
    group = int(y.counts.argmax())
    size = int(y.counts[group])
    outside, bits = y.outside_largest_tie, len(y.counts).bit_length()
    points = (x.dense.take(outside) << bits) + y.dense.take(outside)
    points.sort()
    a = points >> bits
    is_above = (points & ((1 << bits) - 1)) > group

    # For every point: how many of the group have a smaller x, minus how many have a larger one. Arrays are as long as
    # there are points outside the group: a column without ties has as many values as all points.
    a_counts = run_lengths(a)
    below = x.num_smaller.take(a) - np.repeat(a_counts.cumsum() - a_counts, a_counts)
    lead = 2 * below + x.counts.take(a) - np.repeat(a_counts, a_counts) - size
    against_group = 2 * int(lead[is_above].sum()) - int(lead.sum())

    ties = tied_pairs(a_counts) + y.num_tied_pairs - math.comb(size, 2)
    both_tied, discordant = _tied_and_discordant(points, bits)
    return against_group + math.comb(len(outside), 2) - ties + both_tied - 2 * discordant


def _tied_and_discordant(points: NDArray[np.int64], bits: int) -> tuple[int, int]:
    """Return how many pairs of points tie in both a and b, and how many are ordered oppositely by a and b.

    Args:
        points: `(a << bits) + b` of each point, ascending.
        bits: Number of bits of b.
    """
    n = len(points)
    both_tied = tied_pairs(run_lengths(points)) if (points[1:] == points[:-1]).any() else 0
    # Sorted by (b, place), the places are a permutation whose inversions are the discordant pairs. Points of equal a
    # are already ascending in b, and points of equal b ascending in place, so ties are never inverted.
    bits_n = n.bit_length()
    places = ((points & ((1 << bits) - 1)) << bits_n) + np.arange(n)
    places.sort()
    places &= (1 << bits_n) - 1
    return both_tied, _inversions(places)


def _inversions(permutation: NDArray[np.int64]) -> int:
    """Count the pairs i < j with p[i] > p[j] of a permutation p of 0..n-1.

    The values of a block agree in all higher bits. Moving the low values of a block before its high values, in order,
    takes as many steps as there are inversions between its two halves.
    """
    n, total = len(permutation), 0
    values = as_small(permutation)
    for half, _, places in partitions(values, _BLOCK_BITS):
        blocks = n // (2 * half)
        total += int(places.sum()) - _places_of_low(blocks, half, len(places) - blocks * half)
    # Blocks of 2**_BLOCK_BITS values are now in ascending order, so only close neighbours can be inverted.
    for start in range(0, n, _CHUNK):
        window = values[start : start + _CHUNK + (1 << _BLOCK_BITS)]
        for distance in range(1, min(1 << _BLOCK_BITS, len(window))):
            left = window[: min(_CHUNK, len(window) - distance)]
            total += int(np.count_nonzero(left > window[distance : distance + len(left)]))
    return total


def as_small(permutation: NDArray[np.int64]) -> NDArray[Any]:
    """Return a copy of a permutation, of 32 bits if that is enough."""
    copied: NDArray[Any] = permutation.astype(np.int32 if len(permutation) < 2**31 else np.int64)
    return copied


def partitions(values: NDArray[Any], block_bits: int) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.int64]]]:
    """Sort a permutation in place by its bits, from the highest bit down to blocks of `2**block_bits` values.

    A block is a run of values that agree in all higher bits. Each step moves the low values of every block before its
    high values and keeps their order. Yields, before each step: the size of half a block, which values are low, and the
    positions of the low values.
    """
    n = len(values)
    for bit in range((n - 1).bit_length() - 1, block_bits - 1, -1):
        half = 1 << bit
        is_low = (values & half) == 0
        places = is_low.nonzero()[0]
        yield half, is_low, places
        low, high = values.take(places), values.compress(~is_low)
        # All blocks except the last are complete, with as many low values as high ones.
        blocks = n // (2 * half)
        body = blocks * half
        tail = len(low) - body
        halves = values[: 2 * body].reshape(blocks, 2, half)
        halves[:, 0] = low[:body].reshape(blocks, half)
        halves[:, 1] = high[:body].reshape(blocks, half)
        values[2 * body : 2 * body + tail] = low[body:]
        values[2 * body + tail :] = high[body:]


def _places_of_low(blocks: int, half: int, tail: int) -> int:
    """Sum the positions of the low values after a step; the last, incomplete block has `tail` low values."""
    starts = 2 * half * (half * math.comb(blocks, 2) + tail * blocks)
    return starts + blocks * math.comb(half, 2) + math.comb(tail, 2)


# Measured: below blocks of 32 values, comparing all of a block is cheaper than partitioning once more.
_PARTNER_BLOCK_BITS = 5
_BLOCKS_AT_ONCE = 1 << 10


def concordance_by_point(x: Ranking, y: Ranking) -> Floats:
    """Return, for each point, how many others are concordant with it minus how many are discordant.

    The largest tie group of x or y is handled by counting (most effects are exactly 0). Only the other points are
    compared with one another, in O(m log m).

    >>> import torch
    >>> concordance_by_point(Ranking(torch.tensor([1.0, 2.0, 3.0])), Ranking(torch.tensor([0.0, 0.0, 5.0]))).tolist()
    [1.0, 1.0, 2.0]
    """
    if x.counts.max() > y.counts.max():
        x, y = y, x
    group = int(y.counts.argmax())
    side = np.sign(y.dense - group)
    concordance = np.empty(len(x))
    inside, outside = side == 0, (side != 0).nonzero()[0]
    size = len(x.counts)
    # A point of the group is compared with the points outside it by the side on which they lie.
    above, below = (np.bincount(x.dense[side == sign], minlength=size).astype(float) for sign in (1, -1))
    concordance[inside] = (lead(below) - lead(above))[x.dense[inside]]
    members = lead(np.bincount(x.dense[inside], minlength=size).astype(float))
    concordance[outside] = members[x.dense[outside]] * side[outside] + _concordance(x.dense[outside], y.dense[outside])
    return concordance


def _concordance(a: Ints, b: Ints) -> Floats:
    """Return concordant minus discordant partners of each point; points are given by ranks.

    Ranks give the number of points with a smaller or larger a, and likewise for b. So only the points with both a
    smaller a and a smaller b are counted; ties are then corrected for.
    """
    if len(a) == 0:
        return np.zeros(0)
    (below_a, above_a, a_ties), (below_b, _, b_ties) = _around(a), _around(b)
    difference = 4 * _dominated(a, b) + above_a - below_a - 2 * below_b
    if a_ties:
        difference += 2 * _within(a, b)[0]
    if b_ties:
        lower, upper = _within(b, a)
        difference += lower - upper
    return difference.astype(np.float64)


def _around(ranks: Ints) -> tuple[Ints, Ints, bool]:
    """Return, for each value, how many are smaller and how many are larger; and whether any two are equal."""
    counts = np.bincount(ranks)
    below = np.cumsum(counts) - counts
    return below[ranks], (len(ranks) - below - counts)[ranks], bool((counts > 1).any())


def _within(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Return, for each point, how many points of equal a have a smaller b, and how many have a larger b."""
    counts = np.bincount(a)
    lower, upper = np.zeros(len(a), np.int64), np.zeros(len(a), np.int64)
    tied = (counts[a] > 1).nonzero()[0]
    a_tied, b_tied = a[tied], b[tied]
    _, place, copies = np.unique(a_tied * (int(b.max()) + 1) + b_tied, return_inverse=True, return_counts=True)
    counts = np.bincount(a_tied)
    upto, end = np.cumsum(copies)[place], np.cumsum(counts)[a_tied]
    lower[tied] = upto - copies[place] - (end - counts[a_tied])
    upper[tied] = end - upto
    return lower, upper


def _dominated(a: Ints, b: Ints) -> Ints:
    """Return, for each point, how many points have both a smaller a and a smaller b."""
    count, span = len(a), int(b.max()) + 1
    places = np.arange(count)
    # Sort by a (equal a: larger b first); then count the earlier values that are smaller.
    order = np.argsort(a * span - b)
    # Number equal values so that the earlier is the larger; then none counts as smaller.
    permutation = np.empty(count, np.int64)
    permutation[np.argsort(b[order] * count - places)] = places
    dominated = np.empty(count, np.int64)
    dominated[order] = _smaller_before(permutation)[permutation]
    return dominated


def _smaller_before(permutation: Ints) -> Ints:
    """Return, for each value of a permutation of 0..n-1, how many smaller values precede it.

    Counts bit by bit from the highest: among values that agree in all higher bits, a value whose bit is set comes after
    all earlier values whose bit is not set. The remaining short blocks are compared value by value.
    """
    values, smaller = as_small(permutation), np.zeros(len(permutation), np.int64)
    for half, is_low, _ in partitions(values, _PARTNER_BLOCK_BITS):
        high = (~is_low).nonzero()[0]
        high_values = values.take(high)
        # Number of low values before it in the whole list, minus those of earlier blocks.
        smaller[high_values] += high - np.arange(len(high)) - high_values // (2 * half) * half
    size = 1 << _PARTNER_BLOCK_BITS
    padded = np.concatenate([values, np.full(-len(values) % size, len(values), values.dtype)]).reshape(-1, size)
    earlier = np.tri(size, k=-1, dtype=bool)
    for begin in range(0, len(padded), _BLOCKS_AT_ONCE):
        block = padded[begin : begin + _BLOCKS_AT_ONCE]
        counts = ((block[:, :, None] > block[:, None, :]) & earlier).sum(axis=2, dtype=np.uint8).reshape(-1)
        block_values = values[begin * size : begin * size + counts.size]
        smaller[block_values] += counts[: len(block_values)]
    return smaller


def lead(counts: Floats) -> Floats:
    """Return, for each rank, how many counted values lie below it minus how many lie above; ranks are the last axis."""
    return 2 * np.cumsum(counts, axis=-1) - counts - counts.sum(axis=-1, keepdims=True)
