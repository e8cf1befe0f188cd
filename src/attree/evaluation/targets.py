"""Which nodes or graphs are explained where nobody names them."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.errors import expect
from attree.subject import Subject
from attree.subject.subject import Targets


def choose_targets(number: int, available: int, seed: int) -> Tensor:
    """Distinct random positions in [0, available), ascending; all of them where fewer exist than asked for.

    >>> choose_targets(3, 10, seed=0).tolist() == choose_targets(3, 10, seed=0).tolist()
    True
    """
    expect(number >= 1, "targets", "an integer >= 1, or ids", number)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(available, generator=generator)[:number].sort().values


def named_targets(subject: Subject, targets: Targets, seed: int) -> Tensor:
    """The ids of what is explained: an integer draws as many at random, anything else names them.

    Args:
        subject: What is explained.
        targets: How many, or which: ids, a mask of nodes, or 'all'.
        seed: Seed of the draw.
    """
    if isinstance(targets, int) and not isinstance(targets, bool):
        return choose_targets(targets, subject.num_targets, seed).to(subject.device)
    return subject.targets(targets)
