"""Who gets which examples when several processes share the work."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

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

    Args:
        examples: The examples.
        rank: This process.
        world_size: Number of processes.
        seed: Seed of the order.
        neighbors: A neighbour sampler that is to draw anew every epoch, too.
    """

    def __init__(
        self, examples: Sized, rank: int, world_size: int, seed: int, neighbors: TorchNeighborSampler | None = None
    ) -> None:
        super().__init__(_sized(examples), num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
        self.neighbors = neighbors

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        super().set_epoch(epoch)
        if self.neighbors is not None:
            self.neighbors.set_epoch(epoch)


def process_of(trainer: Any) -> tuple[int, int]:
    """Rank and number of processes of a trainer's run; (0, 1) without a trainer."""
    return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)


def _sized(examples: Sized) -> Dataset[Any]:
    """What torch's sampler takes: it only asks for the length, though it names a narrower type."""
    return cast("Dataset[Any]", range(len(examples)))
