"""A hash of a network's weights, to see later whether they have changed without a copy of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

WeightsHash = dict[str, int]
"""A hash of each tensor of a network, by name."""

CHUNK = 2**22
"""Number of entries that are hashed at a time, so that a large tensor takes little memory."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by their size in bytes."""


def hash_weights(state: Mapping[str, Any]) -> WeightsHash:
    """Return a hash of the tensors of a state dict, computed where the tensors are.

    Each is the sum of its entries' bits, each times an odd number that depends on the place, modulo 2**64. So one
    changed entry always changes the hash, and several leave it unchanged with a probability of about 2**-64. NaN equals
    NaN, and 0 differs from -0. A sum of integers does not depend on the order, so a hash is the same every time.
    """
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    sums = {name: _hash(value) for name, value in tensors.items()}
    by_device: dict[torch.device, list[str]] = {}
    for name, value in sums.items():
        by_device.setdefault(value.device, []).append(name)
    numbers: dict[str, int] = {}
    for names in by_device.values():  # one message per device, not one per tensor
        numbers |= dict(zip(names, torch.stack([sums[name] for name in names]).tolist(), strict=True))
    # The shape too, because an empty tensor has no entries, and dtypes of one size could hold the same bits.
    return {name: hash((numbers[name], str(value.dtype), tuple(value.shape))) for name, value in tensors.items()}


def _hash(tensor: Tensor) -> Tensor:
    """Return the hash of one tensor as a 0-d integer tensor on its device."""
    values = tensor.detach().contiguous().reshape(-1)
    values = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    bits = values.view(INTEGERS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for begin in range(0, len(bits), CHUNK):
        part = bits[begin : begin + CHUNK].long()
        place = torch.arange(begin, begin + len(part), device=values.device) * -7046029254386353131
        place = (place ^ (place >> 29)) * -4658895280553007687
        total += (part * (place ^ (place >> 32) | 1)).sum()
    return total
