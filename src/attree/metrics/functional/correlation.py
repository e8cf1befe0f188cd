"""Pearson's and Spearman's correlation."""

from __future__ import annotations

import math

from torch import Tensor

from attree.metrics.functional.ranking import (
    Ranking,
    Values,
    as_ranking,
    check_columns,
    on_device_of,
    scalar,
    unit_deviations,
)


def pearson(x: Values, y: Values) -> Tensor:
    r"""Pearson's linear correlation, in float64 whatever the dtype of the arguments.

    .. math:: r = \frac{\sum_i (x_i - \bar x)(y_i - \bar y)}{\lVert x - \bar x \rVert \, \lVert y - \bar y \rVert}

    Runs on the device of its arguments, or on the host if that has no float64.

    Args:
        x: a vector, or its ranking.
        y: a vector of the same length, or its ranking.

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
    return on_device_of(x, (first * second).sum().clamp_(-1.0, 1.0))


def spearman(x: Values, y: Values) -> Tensor:
    r"""Spearman's rank correlation: Pearson's correlation of the midranks.

    Tied values share the mean of the places they take. With m and c the midrank and the number of copies of every
    distinct value, the variance is :math:`\sum c \, (m - \frac{n+1}{2})^2`. Runs on the host (see `Ranking`).

    Args:
        x: a vector, or its ranking.
        y: a vector of the same length, or its ranking.

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
    rho = float((first.rank_deviations * second.rank_deviations).sum())
    return scalar(min(1.0, max(-1.0, rho)), x)
