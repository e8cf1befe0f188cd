"""Concordant minus discordant partners of each point; Kendall's tau is their sum, up to normalisation."""

from __future__ import annotations

import numpy as np

from attree.metrics.functional.correlation import as_small, partitions
from attree.metrics.functional.ranking import Ranking
from attree.tensors.arrays import Floats, Ints

# Measured: below blocks of 32 values, comparing all of a block is cheaper than partitioning once more.
_BLOCK_BITS = 5
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
    for half, is_low, _ in partitions(values, _BLOCK_BITS):
        high = (~is_low).nonzero()[0]
        high_values = values.take(high)
        # Number of low values before it in the whole list, minus those of earlier blocks.
        smaller[high_values] += high - np.arange(len(high)) - high_values // (2 * half) * half
    size = 1 << _BLOCK_BITS
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
