"""Pearson's and Spearman's correlation."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attree.metrics.ranking import Ranking, Values, as_ranking, as_tensor, check_columns, scalar


def pearson(x: Values, y: Values) -> Tensor:
    r"""Pearson's linear correlation, in float64 whatever the dtype of the arguments.

    .. math:: r = \frac{\sum_i (x_i - \bar x)(y_i - \bar y)}{\lVert x - \bar x \rVert \, \lVert y - \bar y \rVert}

    Deviations are centred twice and scaled before they are squared, so that neither a large mean nor tiny or huge
    values cost digits. Runs on the device of its arguments.

    Args:
        x: a vector, or its ranking.
        y: a vector of the same length, or its ranking.

    Returns:
        A 0-d float64 tensor on the device of `x`; NaN if either is constant, has fewer than 2 values or contains
        NaN or an infinity.

    >>> pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
    tensor(0.9820, dtype=torch.float64)
    """
    check_columns(x=x, y=y)
    if len(x) < 2:
        return scalar(math.nan, x)
    return (_unit_deviations(as_tensor(x)) * _unit_deviations(as_tensor(y))).sum().clamp(-1.0, 1.0)


def _unit_deviations(values: Tensor) -> Tensor:
    """Return the deviations from the mean, divided by their norm; NaN for a constant."""
    column = values.detach().to(torch.float64)
    deviations = column - column.mean()
    deviations = deviations - deviations.mean()
    deviations = deviations / deviations.abs().amax()
    # The mean of equal numbers can be off by a rounding, so a constant is told from its extremes.
    lowest, highest = torch.aminmax(column)
    return torch.where(lowest == highest, math.nan, deviations / deviations.square().sum().sqrt())


def spearman(x: Values, y: Values) -> Tensor:
    r"""Spearman's rank correlation: Pearson's correlation of the midranks.

    Tied values share the mean of the places they take. With m and c the midrank and the number of copies of every
    distinct value, the variance is :math:`\sum c \, (m - \frac{n+1}{2})^2`. Runs on the host (see `Ranking`).

    Args:
        x: a vector, or its ranking.
        y: a vector of the same length, or its ranking.

    Returns:
        A 0-d float64 tensor on the device of `x`; NaN if either is constant, contains NaN or has fewer than 2 values.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 0.0, 5.0]))
    tensor(0.7746, dtype=torch.float64)
    """
    check_columns(x=x, y=y)
    first, second = as_ranking(x), as_ranking(y)
    if not (first.defined and second.defined):
        return scalar(math.nan, x)
    a, b = _centred(first), _centred(second)
    # Products and sums rather than dot products: BLAS would start threads, which costs more than it saves.
    variances = (first.counts * a**2).sum() * (second.counts * b**2).sum()
    rho = (a[first.dense] * b[second.dense]).sum() / math.sqrt(variances)
    return scalar(min(1.0, max(-1.0, float(rho))), x)


def _centred(ranking: Ranking) -> NDArray[np.float64]:
    """Return the midrank of each distinct value, less the mean rank."""
    return ranking.midranks - (len(ranking) + 1) / 2
