"""Rank a column of numbers once for all rank statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attree.errors import expect
from attree.tensors.precision import WITHOUT_FLOAT64, exact_dtype


class Ranking:
    """A column of values and its ranks: which values tie, and their order.

    Spearman, Kendall and AUROC depend on the order of a column only. A method's scores enter five of the seven
    faithfulness statistics, and all methods share the deltas. To compute several statistics, rank each column once and
    pass the ranking in place of the tensor.

    The sort runs on the host in NumPy for tensors of any device. For the 16,000 pairs of a training epoch NumPy sorts
    about four times faster than torch on a CPU, and a column is small to copy from a GPU. Do not change the tensor in
    place while its ranking is in use.

    Args:
        values: One number per pair, of any real dtype. Infinities rank as the largest and smallest numbers. NaN has no
            rank: it sets `has_nan`, and then every statistic of the ranking is NaN.

    Attributes:
        values: The given tensor, detached.
        dense: For each value, the number of distinct smaller values, [n].
        counts: How often each distinct value occurs, in ascending order of value, [distinct].
        has_nan: Whether any value is NaN.

    >>> ranking = Ranking(torch.tensor([0.5, -1.0, 0.5, 7.0]))
    >>> ranking.dense, ranking.counts
    (array([1, 0, 1, 2]), array([1, 2, 1]))
    >>> ranking.midranks[ranking.dense]
    array([2.5, 1. , 2.5, 4. ])
    """

    def __init__(self, values: Tensor) -> None:
        check_columns(values=values)
        self.values = values.detach()
        keys = sort_keys(values)
        # Most edges carry no flow, so most scores and deltas are exactly 0: only the others need to be sorted.
        others = np.flatnonzero(keys)
        num_zeros = len(keys) - len(others)
        if 2 * num_zeros < len(keys):
            num_zeros, order = 0, np.argsort(keys)
        else:
            order = others[np.argsort(keys[others])]
        ascending = keys[order]
        self.counts = run_lengths(ascending)
        ranks = np.repeat(np.arange(len(self.counts)), self.counts)
        zero = 0
        if num_zeros:
            negative = int(np.searchsorted(ascending, 0))
            zero = int(ranks[negative]) if negative < len(ranks) else len(self.counts)
            ranks[negative:] += 1
            self.counts = np.insert(self.counts, zero, num_zeros)
        self.dense: NDArray[np.int64] = np.full(len(keys), zero, np.int64)
        self.dense[order] = ranks
        self.has_nan = bool(np.isnan(ascending[-1:]).any())

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def defined(self) -> bool:
        """Whether a correlation with this column is defined: it has two distinct values and no NaN."""
        return len(self.counts) > 1 and not self.has_nan

    @cached_property
    def num_tied_pairs(self) -> int:
        """Number of pairs of equal values."""
        return tied_pairs(self.counts)

    @cached_property
    def deviations(self) -> Tensor:
        """Deviations of the values from their mean, scaled to a vector of norm 1; NaN for a constant column."""
        return unit_deviations(self.values)

    @cached_property
    def rank_deviations(self) -> NDArray[np.float64]:
        """Deviations of the midranks from their mean, scaled to a vector of norm 1."""
        centred = self.midranks - (len(self) + 1) / 2
        return (centred / math.sqrt((self.counts * centred**2).sum())).take(self.dense)

    @cached_property
    def outside_largest_tie(self) -> NDArray[np.int64]:
        """Positions of the values that are not in the largest group of equal values."""
        return (self.dense != self.counts.argmax()).nonzero()[0]

    @cached_property
    def num_smaller(self) -> NDArray[np.int64]:
        """For each distinct value, the number of values that are smaller, copies included."""
        return np.cumsum(self.counts) - self.counts

    @contextmanager
    def room(self) -> Iterator[NDArray[np.float64]]:
        """Lend an array as long as the column, for products with other columns.

        Fetching memory anew for millions of values costs more than the products. A ranking keeps one such array; a
        second thread that asks for it meanwhile gets another.
        """
        array = vars(self).pop("_room", None)
        try:
            array = np.empty(len(self)) if array is None else array
            yield array
        finally:
            vars(self)["_room"] = array

    @cached_property
    def midranks(self) -> NDArray[np.float64]:
        """Midrank of each distinct value: the mean of the ranks (from 1) of its copies."""
        return np.cumsum(self.counts) - (self.counts - 1) / 2


Values: TypeAlias = Tensor | Ranking


def sort_keys(values: Tensor) -> NDArray[Any]:
    """Return the values as an array on the host, in a dtype that represents each value exactly."""
    values = values.detach().cpu()  # before the conversion, because the device may have no float64
    if values.dtype != torch.uint64:  # the only dtype with integers that int64 cannot hold
        values = values.to(torch.float64 if values.is_floating_point() else torch.int64)
    return values.numpy()


def unit_deviations(values: Tensor) -> Tensor:
    """Return the deviations from the mean divided by their norm, in float64; NaN for a constant.

    The values are centred twice, and scaled before they are squared. So neither a large mean nor tiny or huge values
    cost digits. Values of a device without float64 are moved to the host.
    """
    column = in_float64(values)
    deviations = column - column.mean()
    deviations -= deviations.mean()
    low, high = torch.aminmax(deviations)
    deviations /= torch.maximum(-low, high)
    # The mean of equal numbers can have a rounding error, so constants are detected by their extremes.
    lowest, highest = torch.aminmax(column)
    norm = deviations.square().sum().sqrt()
    return deviations.div_(torch.where(lowest == highest, math.nan, norm))


def check_columns(**columns: Values) -> None:
    """Raise an `ArgumentError` for the first column that is not a real vector of the first column's length."""
    length: int | None = None
    for name, column in columns.items():
        if isinstance(column, Tensor):
            if column.ndim != 1:
                expect(False, name, "one-dimensional", f"shape {tuple(column.shape)}")
            expect(not column.is_complex(), name, "real", column.dtype)
        else:
            expect(isinstance(column, Ranking), name, "a tensor or a Ranking", type(column).__name__)
        if length is None:
            length = len(column)
        elif len(column) != length:
            expect(False, name, f"of length {length} as `{next(iter(columns))}` is", len(column))


def run_lengths(ascending: NDArray[Any]) -> NDArray[np.int64]:
    """Return how often each distinct value of a sorted array occurs.

    >>> run_lengths(np.array([2, 2, 2, 5]))
    array([3, 1])
    """
    starts = (ascending[1:] != ascending[:-1]).nonzero()[0] + 1
    bounds = np.concatenate(([0], starts, [len(ascending)]))
    return (bounds[1:] - bounds[:-1])[: len(ascending)]  # an empty array has no run, not one of length 0


def tied_pairs(counts: NDArray[np.int64]) -> int:
    """Return the number of pairs inside groups of the given sizes."""
    return int((counts * (counts - 1)).sum()) // 2


def as_ranking(column: Values) -> Ranking:
    """Return the column's ranking; compute it if the column is a tensor."""
    return column if isinstance(column, Ranking) else Ranking(column)


def as_tensor(column: Values) -> Tensor:
    """Return the column's values as the given tensor."""
    return column.values if isinstance(column, Ranking) else column


def scalar(value: float, like: Values) -> Tensor:
    """Return `value` as a 0-d tensor on the device of `like`, float64 if the device has it."""
    return on_device_of(like, torch.tensor(value, dtype=torch.float64))


def in_float64(values: Tensor) -> Tensor:
    """Return values in float64 and without gradients: on their device, or on the host if the device has no float64."""
    where = torch.device("cpu") if values.device.type in WITHOUT_FLOAT64 else values.device
    return values.detach().to(where).to(torch.float64)


def on_device_of(like: Values, value: Tensor) -> Tensor:
    """Return a float64 tensor on the device of `like`, converted to float32 if the device has no float64."""
    device = as_tensor(like).device
    return value.to(exact_dtype(device)).to(device)
