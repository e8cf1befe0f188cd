"""Which nodes or graphs are explained: those that the user names, or some drawn at random."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.errors import expect, expect_int, expect_seed
from attree.subject import Subject
from attree.subject.subject import Targets

NUM_TARGETS = 100
"""How many targets are drawn where the user says nothing."""


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
        num_targets: How many to draw at random; None draws `NUM_TARGETS`. Given with `targets`, it is refused.
        seed: Seed of the draw.
    """
    if targets is None:
        known = subject.targets()
        drawn = choose_targets(NUM_TARGETS if num_targets is None else num_targets, known.numel(), seed)
        return known[drawn.to(known.device)]
    expect(num_targets is None, "num_targets", "None where `targets` names them", num_targets)
    return subject.targets(targets)
