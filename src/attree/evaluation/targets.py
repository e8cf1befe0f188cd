"""Which targets are explained: those that the user names, or some drawn at random; and this process's share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.defaults import NUM_TARGETS
from attree.errors import expect, expect_int, expect_seed
from attree.subject import Subject
from attree.subject.target_ids import Targets


@dataclass(frozen=True)
class Shard:
    """This process's share of the targets: every `world_size`-th, from `rank` on."""

    rank: int = 0
    world_size: int = 1

    def of(self, items: Tensor) -> Tensor:
        """The share of a tensor's entries."""
        return items[self.rank :: self.world_size]


def choose_targets(number: int, available: int, seed: int) -> Tensor:
    """Distinct random positions in [0, available), ascending; all of them where fewer exist than asked for.

    >>> choose_targets(3, 10, seed=0).tolist() == choose_targets(3, 10, seed=0).tolist()
    True
    """
    number = expect_int(number, "num_targets", at_least=1)
    generator = torch.Generator().manual_seed(expect_seed(seed))
    return torch.randperm(available, generator=generator)[:number].sort().values


def named_or_drawn(subject: Subject, targets: Targets | None, num_targets: int | None, seed: int) -> Tensor:
    """The ids of what is explained.

    Args:
        subject: What is explained.
        targets: Which ones: an id, several, a mask of nodes, or 'all'; None draws them.
        num_targets: How many to draw at random; None draws `defaults.NUM_TARGETS`. Given with `targets`, it is refused.
        seed: Seed of the draw.
    """
    if targets is None:
        known = subject.targets()
        drawn = choose_targets(NUM_TARGETS if num_targets is None else num_targets, known.numel(), seed)
        return known[drawn.to(known.device)]
    expect(num_targets is None, "num_targets", "None where `targets` names them", num_targets)
    return subject.targets(targets)
