"""Ids of what is explained, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from attree.errors import ArgumentError, expect

Targets = int | Sequence[int] | Tensor | Literal["all"]
"""What can be explained: one node, pair or graph, several (ids, or a mask), or all."""


def as_targets(targets: Targets, count: int, device: torch.device, what: str = "node") -> Tensor:
    """Ids of what is explained as a tensor, checked.

    Args:
        targets: Ids, a mask, or 'all'.
        count: How many there are.
        device: Where the result goes.
        what: What they are, in words.
    """
    expected = f"'all', {what} ids or a mask of {what}s"
    if isinstance(targets, str):
        expect(targets == "all", "targets", expected, targets)
        return torch.arange(count, device=device)
    try:
        ids = torch.as_tensor(targets, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"Expected argument `targets` to be {expected}, but got {targets!r}.") from None
    if ids.dtype == torch.bool and ids.dim() > 0:
        expect(ids.shape == (count,), "targets", f"a mask of {count} {what}s", tuple(ids.shape))
        return ids.nonzero().view(-1)
    ids = ids.reshape(-1)
    fine = ids.numel() == 0 or not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    expect(fine, "targets", "integers", ids.dtype)
    ids = ids.long()
    outside = ids[(ids < 0) | (ids >= count)]
    expect(outside.numel() == 0, "targets", f"{what} ids in [0, {count})", outside[:3].tolist())
    expect(ids.unique().numel() == ids.numel(), "targets", f"distinct {what} ids", "some more than once")
    return ids
