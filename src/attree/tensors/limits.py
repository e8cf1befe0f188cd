"""Limits of a device: default memory budgets, and the widest floating-point type that it supports."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from attree.defaults import RESOLUTION, RESOLUTION_FLOAT32
from attree.errors import expect_number

WALK_MEMORY = 256 * 2**20
"""Default bytes of working memory for walks over computation trees."""

KEPT_WALK_MEMORY = 256 * 2**20
"""Default bytes for walks that are kept in memory to be used again."""

REDUCTION_MEMORY = 512 * 2**20
"""Default bytes of working memory for a reduction."""

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Device types that do not support float64; attree computes in float32 there."""


def chunk_bounds(cost: Tensor, budget: float) -> list[tuple[int, int]]:
    """Cut a list of costs into consecutive chunks of at most `budget` each (a single item may exceed it).

    >>> chunk_bounds(torch.tensor([3.0, 3.0, 3.0, 9.0, 1.0]), budget=6.0)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    expect_number(budget, "budget", above=0)
    if cost.numel() and float(cost.sum()) <= budget:
        return [(0, cost.numel())]
    # There are few chunks, so each one is found by bisection on the CPU, whatever the device of `cost`.
    total = cost.detach().cpu().double().numpy().cumsum()
    bounds, begin, spent = [], 0, 0.0
    while begin < total.size:
        end = max(int(total.searchsorted(spent + budget, side="right")), begin + 1)
        bounds.append((begin, end))
        begin, spent = end, float(total[end - 1])
    return bounds


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the floating-point type for exact updates and sums: float64 if the device supports it, else float32.

    A reduction often changes probabilities by less than float32 can resolve; rank statistics would then rank noise. A
    device without float64 causes one warning per process.

    >>> exact_dtype(torch.device("cpu"))
    torch.float64
    """
    if device.type not in WITHOUT_FLOAT64:
        return torch.float64
    _warn_float32(device.type)
    return torch.float32


def resolution(dtype: torch.dtype) -> float:
    """Return the smallest effect that counts if a model runs in this type.

    >>> resolution(torch.float64), resolution(torch.float32)
    (1e-09, 0.0001)
    """
    return RESOLUTION if dtype == torch.float64 else max(RESOLUTION_FLOAT32, 8 * torch.finfo(dtype).eps)


def round_to(values: Tensor, step: float) -> Tensor:
    """Return values rounded to multiples of a step, without negative zeros; equal multiples are equal numbers.

    >>> round_to(torch.tensor([0.12, -0.04, 0.31]), 0.25).tolist()
    [0.0, 0.0, 0.25]
    """
    return (values / step).round_().mul_(step).add_(0.0)


@cache
def _warn_float32(device_type: str) -> None:
    warnings.warn(
        f"Devices of type {device_type} have no float64: reductions and scores are computed in float32 there, so the "
        "smallest changes of predictions are rounding noise. Move model and data to the CPU to rank them too.",
        stacklevel=3,
    )
