"""Which examples go where: splits into training, validation and test, and shares of the processes of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler
from torch_geometric.data import Data

from attree.errors import expect, expect_int, expect_number

if TYPE_CHECKING:
    from attree.data.neighbor_sampling import TorchNeighborSampler


def index_mask(index: np.ndarray, size: int) -> Tensor:
    """Return a boolean mask of length `size` that is true at `index`."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.from_numpy(index)] = True
    return mask


SPLIT = (0.6, 0.2)
"""Fractions of training and validation nodes in a random split; the rest is for testing."""


def random_parts(size: int, seed: int) -> list[np.ndarray]:
    """Split the nodes 0 .. size - 1 at random into those for training, validation and testing."""
    ends = [round(SPLIT[0] * size), round(sum(SPLIT) * size)]
    return np.split(np.random.default_rng(expect_int(seed, "split_seed")).permutation(size), ends)


def random_fraction(size: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Draw `fraction` of the nodes 0 .. size - 1 without replacement."""
    return rng.permutation(size)[: round(fraction * size)]


def random_per_class(y: Tensor, rng: np.random.Generator, per_class: int = 100) -> np.ndarray:
    """Draw `per_class` nodes of every class without replacement; the paper draws 100.

    If a class has fewer nodes, all of them are drawn, and none is left for testing.
    """
    order = rng.permutation(y.numel())
    shuffled = y.numpy()[order]
    by_class = [order[shuffled == label][:per_class] for label in np.unique(shuffled)]
    return np.concatenate(by_class)


def paper_masks(graph: Data, train: np.ndarray, num_val: int, rng: np.random.Generator) -> None:
    """Set the masks of the paper's protocol on `graph`: train on the nodes in `train`, test on all others.

    The paper uses the last epoch and no validation nodes. For a validation curve, this function also samples `num_val`
    test nodes as validation nodes; they stay in the test set. Choosing a checkpoint or a hyperparameter by them would
    leak test labels; use a public split for that.
    """
    size = graph.y.numel()
    graph.train_mask = index_mask(train, size)
    graph.test_mask = ~graph.train_mask
    test = graph.test_mask.nonzero().view(-1).numpy()
    graph.val_mask = index_mask(rng.permutation(test)[:num_val], size)


def check_split_arguments(seed: int, num_val: int) -> None:
    """Raise unless the arguments of a random split are valid."""
    expect_int(seed, "seed")
    expect_int(num_val, "num_val", 1)


def check_fractions(val_fraction: float, test_fraction: float, examples: str) -> None:
    """Raise unless the fractions for validation and testing are valid and leave `examples` to train on."""
    expect_number(val_fraction, "val_fraction", above=0, below=1)
    expect_number(test_fraction, "test_fraction", above=0, below=1)
    held_out = val_fraction + test_fraction
    expect(held_out < 1, "val_fraction + test_fraction", f"below 1, so that {examples} are left to train on", held_out)


def shard_mask(mask: Tensor, rank: int, world_size: int) -> Tensor:
    """Keep every `world_size`-th true entry of a mask, from the `rank`-th on. The shards partition the true entries."""
    if world_size == 1:
        return mask
    positions = mask.nonzero().view(-1)[rank::world_size]
    return mask.new_zeros(mask.shape).index_fill_(0, positions, True)


class EvaluationShard(DistributedSampler):
    """Sampler that gives each process every `world_size`-th example, in order. Each example is used exactly once.

    Lightning's distributed sampler repeats examples until all processes have equally many, so it counts some twice.
    Lightning does not replace an existing `DistributedSampler`.
    """

    def __init__(self, examples: Sized, rank: int, world_size: int) -> None:
        super().__init__(_sized(examples), num_replicas=world_size, rank=rank, shuffle=False)
        self._share = range(rank, len(examples), world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._share)

    def __len__(self) -> int:
        return len(self._share)


class TrainingShard(DistributedSampler):
    """Sampler that gives each process its share of the training examples, reshuffled every epoch.

    All processes get equally many examples, so that all take the same number of steps and none waits forever. For
    this, up to `world_size` - 1 examples per epoch go to two processes. All others go to exactly one.

    A loader of these examples takes its seed from `generator`, which depends only on `seed`, `rank` and the epoch. If
    the loader drew from the global generator, a resumed run would draw at another time than an uninterrupted one, and
    dropout would continue with other numbers.

    Args:
        examples: The examples.
        rank: This process.
        world_size: Number of processes.
        seed: Seed of the order.
        neighbors: A neighbour sampler; `set_epoch` sets its epoch too.
        epoch: The first epoch. It is needed because Lightning starts the loader's workers before it first calls
            `set_epoch`.
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
        """Set the epoch, which decides the order. Lightning calls this before every epoch."""
        super().set_epoch(epoch)
        state = np.random.SeedSequence((self.seed, self.rank, epoch)).generate_state(1, np.uint64)
        self.generator.manual_seed(int(state[0]))
        if self.neighbors is not None:
            self.neighbors.set_epoch(epoch)


def process_of(trainer: Any) -> tuple[int, int]:
    """Return a trainer's rank and number of processes; (0, 1) without a trainer."""
    return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)


def epoch_of(trainer: Any) -> int:
    """Return the epoch at which a trainer's fit starts or resumes; 0 without a trainer."""
    return 0 if trainer is None else trainer.fit_loop.epoch_progress.current.processed


def _sized(examples: Sized) -> Dataset[Any]:
    """Return a stand-in of the type that torch's sampler declares; the sampler reads only the number of examples."""
    return cast("Dataset[Any]", range(len(examples)))
