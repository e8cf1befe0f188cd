"""The widest floating-point type of a device, for what must not drown in rounding."""

from __future__ import annotations

import warnings
from functools import cache

import torch

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices that have no float64; everything works in float32 there."""


def exact_dtype(device: torch.device) -> torch.dtype:
    """The floating-point type of exact updates and of sums: float64 wherever the device has it.

    Reductions often change probabilities by less than float32 can tell; rank statistics would then rank noise. A
    device without float64 causes one warning in a process.

    >>> exact_dtype(torch.device("cpu"))
    torch.float64
    """
    if device.type not in WITHOUT_FLOAT64:
        return torch.float64
    _say_narrow(device.type)
    return torch.float32


@cache
def _say_narrow(kind: str) -> None:
    warnings.warn(
        f"Devices of type {kind} have no float64: reductions and scores are computed in float32 there, so the "
        "smallest changes of predictions are rounding noise. Move model and data to the CPU to rank them too.",
        stacklevel=3,
    )
