"""Datasets of graphs: those that a user gives, and those behind the loaders of a trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from attree.callbacks.random_state import seeded_apart
from attree.errors import UnsupportedModelError, expect


def as_dataset(given: Any) -> Any:
    """Return the user's data as a sequence of graphs."""
    if isinstance(given, Batch):
        return given.to_data_list()
    if isinstance(given, Data | HeteroData):
        return [given]
    sized = isinstance(given, Iterable) and hasattr(given, "__len__") and hasattr(given, "__getitem__")
    fits = sized and len(given) > 0 and isinstance(seeded_apart(0, lambda: given[0]), Data | HeteroData)
    expect(fits, "data", "a Data, a Batch, or a list or dataset of Data", type(given).__name__)
    return given


def is_same_dataset(one: Any, other: Any) -> bool:
    """Whether two datasets are the same object, or hold the same single graph."""
    if one is other:
        return True
    if len(one) != 1 or len(other) != 1:
        return False
    first, second = seeded_apart(0, lambda: one[0]), seeded_apart(0, lambda: other[0])
    return first is second or all(_is_equal(first, second, key) for key in ("x", "edge_index"))


def _is_equal(first: Data | HeteroData, second: Data | HeteroData, key: str) -> bool:
    """Whether two graphs have equal tensors under a key, for all types of a heterogeneous graph."""
    if isinstance(first, HeteroData) != isinstance(second, HeteroData):
        return False
    if isinstance(first, HeteroData):
        ours, theirs = first.collect(key, allow_empty=True), second.collect(key, allow_empty=True)
        return ours.keys() == theirs.keys() and all(_are_equal(ours[kind], theirs[kind]) for kind in ours)
    return _are_equal(first.get(key), second.get(key))


def _are_equal(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())


def trainer_loaders(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """Yield the loaders that the trainer has already opened, by split. No loader is opened again."""
    stage = trainer.state.fn
    if stage == TrainerFn.FITTING:
        yield "train", trainer.train_dataloader
    if stage in (TrainerFn.FITTING, TrainerFn.VALIDATING):
        yield "val", trainer.val_dataloaders
    if stage == TrainerFn.TESTING:
        yield "test", trainer.test_dataloaders


def loader_datasets(loader: Any, seed: int) -> Iterator[Any]:
    """Yield the datasets of graphs behind a loader: its whole graph, its dataset, or the graphs of its first batch."""
    whole = getattr(loader, "data", None)
    whole = getattr(loader, "graph", None) if whole is None else whole
    if isinstance(loader, Data | HeteroData):
        yield as_dataset(loader)
    elif isinstance(loader, list | tuple):
        for one in loader:
            yield from loader_datasets(one, seed)
    elif isinstance(loader, dict):
        for one in loader.values():
            yield from loader_datasets(one, seed)
    elif isinstance(whole, Data | HeteroData):  # of neighbour loaders and loaders of one whole graph
        yield as_dataset(_with_links(whole) if hasattr(loader, "edge_label_index") else whole)
    elif (dataset := _dataset_of(loader)) is not None:
        if len(dataset) and isinstance(seeded_apart(seed, lambda: dataset[0]), Data | HeteroData):
            yield dataset
    elif isinstance(loader, Iterable) and not isinstance(loader, Iterator):  # to read an iterator would consume it
        batches = seeded_apart(seed, lambda: list(islice(loader, 1)))
        yield from (as_dataset(batch) for batch in batches if isinstance(batch, Data | HeteroData))


def _with_links(graph: Data | HeteroData) -> Data:
    """Return the graph of a link loader, marked as a graph of links. The loader, not the graph, holds the pairs."""
    if isinstance(graph, HeteroData):
        raise UnsupportedModelError(
            "Expected a loader of a whole heterogeneous graph, but got one that draws links: argument `data` of "
            "ExplainCallback can be the graph with `edge_label_index` in one type of edges."
        )
    graph = copy.copy(graph)
    graph.edge_label_index = graph.edge_index[:, :0]
    return graph


def _dataset_of(loader: Any) -> Any:
    """Return the dataset of a loader if its items can be read by index; else None."""
    dataset = getattr(loader, "dataset", None)
    return dataset if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else None
