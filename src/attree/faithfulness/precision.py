"""The floating-point type that reductions are computed and measured in."""

from __future__ import annotations

import torch


def exact_dtype(device: torch.device) -> torch.dtype:
    """The floating-point type of exact updates: float64 wherever the device has it.

    Reductions often change probabilities by less than float32 can tell; rank statistics would then rank noise.
    """
    return torch.float32 if device.type == "mps" else torch.float64
