"""Random splits into training, validation and test nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.errors import expect, expect_int, expect_number


def index_mask(index: np.ndarray, size: int) -> Tensor:
    """Return a boolean mask of length `size` that is true at `index`."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.from_numpy(index)] = True
    return mask


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
