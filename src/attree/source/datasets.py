"""Datasets of graphs as sequences that are read once, and what a model predicts on a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from attree.data.random_state import seeded_apart
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.head import count_classes

PARTS = ("train", "val", "test")

SAMPLED = ("n_id", "e_id", "input_id", "batch_size")
"""Keys that PyG's samplers add to the stores of a sampled subgraph."""


class Graphs(Sequence[Data]):
    """The graphs of several datasets as one sequence. Each graph is read once, when it is first needed.

    To read a graph may draw random numbers (augmentation). Each graph is read with its own seed, so that training's
    random numbers do not change and all processes read the same graphs.

    Args:
        datasets: Lists or datasets of graphs.
        seed: Seed for datasets that draw random numbers.
    """

    def __init__(self, datasets: Sequence[Any], seed: int = 0) -> None:
        self._datasets = datasets
        self._sizes = [len(dataset) for dataset in datasets]
        self._seed = seed
        self._read: dict[int, Data] = {}

    def __len__(self) -> int:
        return sum(self._sizes)

    @overload
    def __getitem__(self, position: int) -> Data: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Data]: ...
    def __getitem__(self, position: int | slice) -> Data | Sequence[Data]:
        if isinstance(position, slice):
            return [self[place] for place in range(*position.indices(len(self)))]
        if position not in self._read:
            dataset, within = self._place(position)
            self._read[position] = seeded_apart(self._seed + position, lambda: dataset[within])
        return self._read[position]

    def _place(self, position: int) -> tuple[Any, int]:
        """Return the dataset of a position, and the index within it."""
        if position >= 0:
            for dataset, size in zip(self._datasets, self._sizes, strict=True):
                if position < size:
                    return dataset, position
                position -= size
        raise IndexError(position)

    def count_classes(self) -> int | None:
        """Return the number of classes; None if every graph would have to be read to count them."""
        counts = [count_dataset_classes(dataset) for dataset in self._datasets]
        return None if not counts or None in counts else max(count for count in counts if count is not None)


def count_dataset_classes(dataset: Any) -> int | None:
    """Return the number of classes of a dataset; None if its graphs are not in memory."""
    if isinstance(dataset, InMemoryDataset):
        return int(dataset.num_classes) if count_classes(getattr(dataset[0], "y", None)) is not None else None
    if not isinstance(dataset, list | tuple) or not all(isinstance(graph, Data) for graph in dataset):
        return None
    counts = [count_classes(graph.get("y")) for graph in dataset]
    class_counts = [count for count in counts if count is not None]
    return max(class_counts) if class_counts and len(class_counts) == len(counts) else None


def as_dataset(data: Any) -> Any:
    """Return the user's data as a sequence of graphs."""
    if isinstance(data, Batch):
        return data.to_data_list()
    if isinstance(data, Data | HeteroData):
        return [data]
    sized = isinstance(data, Iterable) and hasattr(data, "__len__") and hasattr(data, "__getitem__")
    fits = sized and len(data) > 0 and isinstance(seeded_apart(0, lambda: data[0]), Data | HeteroData)
    expect(fits, "data", "a Data, a Batch, or a list or dataset of Data", type(data).__name__)
    return data


def without_repeats(dataset: Any) -> Any:
    """Return a dataset without the repeats of its graphs: `[graph] * 10` is one graph, read ten times an epoch.

    A dataset that is no list is one graph if its first two items and its last one are the same object.
    """
    if isinstance(dataset, list | tuple):
        return list({id(graph): graph for graph in dataset}.values())
    if len(dataset) < 2:
        return dataset
    first, *others = seeded_apart(0, lambda: [dataset[position] for position in (0, 1, len(dataset) - 1)])
    return [first] if all(graph is first for graph in others) else dataset


def is_same_dataset(dataset: Any, other: Any) -> bool:
    """Whether two datasets are the same object, or hold the same single graph."""
    if dataset is other:
        return True
    if len(dataset) != 1 or len(other) != 1:
        return False
    first, second = seeded_apart(0, lambda: dataset[0]), seeded_apart(0, lambda: other[0])
    return first is second or all(_is_equal(first, second, key) for key in ("x", "edge_index"))


def _is_equal(first: Data | HeteroData, second: Data | HeteroData, key: str) -> bool:
    """Whether two graphs have equal tensors under a key, for all types of a heterogeneous graph."""
    if isinstance(first, HeteroData) != isinstance(second, HeteroData):
        return False
    if isinstance(first, HeteroData):
        ours, theirs = first.collect(key, allow_empty=True), second.collect(key, allow_empty=True)
        return ours.keys() == theirs.keys() and all(_are_equal(ours[kind], theirs[kind]) for kind in ours)
    return _are_equal(first.get(key), second.get(key))


def _are_equal(first: Any, second: Any) -> bool:
    return isinstance(first, Tensor) and isinstance(second, Tensor) and torch.equal(first.cpu(), second.cpu())


def explained_type(graph: HeteroData, named: Any = None) -> str | None:
    """Return the type of nodes whose outputs are explained; None if the model predicts pairs of nodes.

    Args:
        graph: A heterogeneous graph.
        named: The type, or a pair of the type and its nodes, as PyG's `input_train_nodes`; None looks for labels.

    Raises:
        ArgumentError: No type has labels, or several have.
        UnsupportedModelError: The graph is a sampled subgraph.
    """
    sampled = [key for key in SAMPLED for store in graph.stores if key in store]
    if sampled:
        raise UnsupportedModelError(
            f"Expected a whole heterogeneous graph, but got a sampled subgraph (it has `{sampled[0]}`): argument "
            "`data` can be the whole graph."
        )
    node_type = named[0] if isinstance(named, tuple) else named
    if isinstance(node_type, str):
        expect(node_type in graph.node_types, "data", f"of one of the types {', '.join(graph.node_types)}", node_type)
        return node_type
    labelled = [kind for kind in graph.node_types if isinstance(graph[kind].get("y"), Tensor)]
    split = [kind for kind in labelled if any(f"{part}_mask" in graph[kind] for part in PARTS)]
    for kinds in (labelled, split):
        if len(kinds) == 1:
            return kinds[0]
    if not labelled and pairs_to_predict(graph) is not None:
        return None
    raise ArgumentError(
        "Expected exactly one type of nodes of the heterogeneous graph to have labels `y` (or labels and masks), or "
        f"one type of edges to have `edge_label_index`, but got labels of {', '.join(labelled) or 'no type'}."
    )


def pairs_to_predict(graph: Data | HeteroData) -> Tensor | None:
    """Return the pairs of nodes to predict, `edge_label_index` [2, P]; None if no type of edges has it, or several."""
    stores = graph.edge_stores if isinstance(graph, HeteroData) else [graph]
    indices = [store["edge_label_index"] for store in stores if "edge_label_index" in store]
    return indices[0] if len(indices) == 1 and isinstance(indices[0], Tensor) else None
