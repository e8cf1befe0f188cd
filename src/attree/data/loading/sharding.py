"""Who gets which examples when several processes share the work."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from attree.data.loading.neighbor_sampler import TorchNeighborSampler


def shard_mask(mask: Tensor, rank: int, world_size: int) -> Tensor:
    """Keep every `world_size`-th true entry of a mask from the `rank`-th on: shards are disjoint, their union whole."""
    if world_size == 1:
        return mask
    kept = mask.nonzero().view(-1)[rank::world_size]
    return mask.new_zeros(mask.shape).index_fill_(0, kept, True)


class EvaluationShard(DistributedSampler):
    """Gives each process every `world_size`-th example, in order and each exactly once.

    Lightning's own distributed sampler repeats examples until all processes have equally many, which counts some
    twice. Lightning leaves a `DistributedSampler` that is already there alone.
    """

    def __init__(self, examples: Sized, rank: int, world_size: int) -> None:
        super().__init__(_sized(examples), num_replicas=world_size, rank=rank, shuffle=False)
        self._share = range(rank, len(examples), world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._share)

    def __len__(self) -> int:
        return len(self._share)


class TrainingShard(DistributedSampler):
    """Gives each process its share of the training examples, shuffled anew every epoch from one seed.

    All processes get equally many, so that all take the same number of steps and none waits for ever. To that end up
    to `world_size` - 1 examples of an epoch are given twice, to different processes; all others exactly once.

    A loader of these examples takes its own seed from `generator`, which depends on nothing but `seed`, `rank` and the
    epoch. From the global random state a run that is resumed would take it at another time than the unbroken one, and
    dropout would go on with other numbers.

    Args:
        examples: The examples.
        rank: This process.
        world_size: Number of processes.
        seed: Seed of the order.
        neighbors: A neighbour sampler that is to draw anew every epoch, too.
        epoch: The epoch to begin with. Lightning makes a loader's iterator, whose workers set out at once, before it
            calls `set_epoch` for the first time.
    """

    def __init__(
        self,
        examples: Sized,
        rank: int,
        world_size: int,
        seed: int,
        neighbors: TorchNeighborSampler | None = None,
        epoch: int = 0,
    ) -> None:
        super().__init__(_sized(examples), num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
        self.neighbors = neighbors
        self.generator = torch.Generator()
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        super().set_epoch(epoch)
        state = np.random.SeedSequence((self.seed, self.rank, epoch)).generate_state(1, np.uint64)
        self.generator.manual_seed(int(state[0]))
        if self.neighbors is not None:
            self.neighbors.set_epoch(epoch)


def process_of(trainer: Any) -> tuple[int, int]:
    """Rank and number of processes of a trainer's run; (0, 1) without a trainer."""
    return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)


def epoch_of(trainer: Any) -> int:
    """The epoch that a trainer's fit begins with, or is resumed at; 0 without a trainer."""
    return 0 if trainer is None else trainer.fit_loop.epoch_progress.current.processed


def _sized(examples: Sized) -> Dataset[Any]:
    """What torch's sampler takes: it only asks for the length, though it names a narrower type."""
    return cast("Dataset[Any]", range(len(examples)))
