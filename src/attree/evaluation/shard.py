"""Which targets are this process's where several evaluate together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """This process's share of the targets: every `world_size`-th, from `rank` on."""

    rank: int = 0
    world_size: int = 1

    def of(self, items: Tensor) -> Tensor:
        """The share of a tensor's entries."""
        return items[self.rank :: self.world_size]
