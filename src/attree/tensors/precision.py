"""Precision: the type to compute in, rounding of effects, and whether numbers are equal up to rounding errors."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from attree.defaults import RESOLUTION, RESOLUTION_FLOAT32

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Device types that do not support float64; attree computes in float32 there."""


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


def rounding_error(expected: Tensor, dtype: torch.dtype, floor: float = 1.0) -> float:
    """Return the largest difference from these numbers that is a rounding error: sqrt(eps) of the largest number.

    Args:
        expected: The numbers; those that are not finite do not count.
        dtype: The type in which they were computed.
        floor: Numbers below it are not compared relative to their own size; 1 fits logits, 0 compares any size.

    >>> rounding_error(torch.tensor([4.0, float("nan")]), torch.float64) == 4 * 2.0**-26
    True
    """
    largest = float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0
    return torch.finfo(dtype).eps ** 0.5 * max(largest, floor)


def difference(got: Tensor, expected: Tensor, dtype: torch.dtype) -> float | None:
    """Return the largest difference between outputs; None if it is a rounding error of this type.

    Expected outputs that are not finite, as in a model that has diverged, are ignored.
    """
    if expected.numel() == 0:
        return None
    largest = float((got - expected).abs().where(expected.isfinite(), 0).max())
    return None if largest <= rounding_error(expected, dtype) else largest


def same(got: Tensor, expected: Tensor, dtype: torch.dtype | None = None, floor: float = 1.0) -> bool:
    """Whether numbers are equal up to rounding errors of a type: the one comparison of computed numbers in attree.

    Args:
        got: Numbers.
        expected: The numbers that they should be. NaN equals NaN.
        dtype: The type in which they were computed; None takes that of `expected`.
        floor: Numbers below it are not compared relative to their own size, see `rounding_error`.
    """
    if got.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return torch.equal(got, expected)
    tolerance = rounding_error(expected, dtype or expected.dtype, floor)
    return torch.allclose(got.to(expected.dtype), expected, rtol=0.0, atol=tolerance, equal_nan=True)


@cache
def _warn_float32(device_type: str) -> None:
    warnings.warn(
        f"Devices of type {device_type} have no float64: reductions and scores are computed in float32 there, so the "
        "smallest changes of predictions are rounding noise. Move model and data to the CPU to rank them too.",
        stacklevel=3,
    )
