"""The graphs to explain, each read once, and the targets that are drawn from them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from attree.callbacks.user_graphs import pairs_to_predict
from attree.data import GroundTruth
from attree.data.random_state import seeded_apart
from attree.errors import expect
from attree.evaluation.config import choose_targets
from attree.subject.head import count_classes

Subset = Literal["all", "train", "val", "test"]
"""The subset of nodes or graphs that targets are chosen from."""


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
        counts = [_count_classes(dataset) for dataset in self._datasets]
        return None if not counts or None in counts else max(count for count in counts if count is not None)


@dataclass(frozen=True)
class Drawn:
    """The targets of a run, with a fingerprint of the data that they were drawn from.

    Attributes:
        targets: Node ids of the one graph, or positions of graphs, ascending.
        data: Fingerprint of the data.
    """

    targets: Tensor
    data: str


@dataclass(frozen=True)
class ExplainedData:
    """The data to explain a model on: nodes or pairs of one graph, or many graphs.

    Attributes:
        graphs: One graph, or many.
        choice: Ids that targets are chosen from: nodes of the one graph, or positions in `graphs`; None for all.
        truth: True edges of the nodes that have some.
        num_classes: Number of classes, if known.
        class_names: Names of the classes, if the data module has them.
        node_types: Meanings of the columns of one-hot node features, if the data module has them.
        has_links: Whether the data has pairs to predict (`edge_label_index`).
        only_links: Whether it has only pairs to predict, and no labels of nodes.
        name: Name of the dataset, if the data module has one.
        node_type: For a heterogeneous graph, the type of the nodes to explain.
    """

    graphs: Sequence[Data]
    choice: Tensor | None = None
    truth: GroundTruth | None = None
    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None
    has_links: bool = False
    name: str | None = None
    node_type: str | None = None
    only_links: bool = False

    @property
    def num_targets(self) -> int:
        """Number of nodes, pairs or graphs in the data."""
        if not self.is_one_graph:
            return len(self.graphs)
        graph = self.graphs[0]
        if self.node_type is not None:
            return int(graph[self.node_type].num_nodes or 0)
        pairs = pairs_to_predict(graph) if self.has_links else None
        if pairs is not None and pairs.numel():
            return int(pairs.shape[1])
        return int(graph.num_nodes or 0)

    @property
    def has_plain_nodes(self) -> bool:
        """Whether the targets are nodes of a homogeneous graph."""
        return self.node_type is None and not self.has_links and not isinstance(self.graphs[0], HeteroData)

    @property
    def is_one_graph(self) -> bool:
        """Whether there is one graph only."""
        return len(self.graphs) == 1

    def count_classes(self) -> int | None:
        """Return the number of classes, given or counted; None if unknown or if labels are no classes."""
        if self.num_classes is not None:
            return self.num_classes
        if self.is_one_graph:
            graph = self.graphs[0]
            return count_classes((graph if self.node_type is None else graph[self.node_type]).get("y"))
        return self.graphs.count_classes() if isinstance(self.graphs, Graphs) else _count_classes(self.graphs)

    def on(self, positions: Sequence[int], device: torch.device) -> Data:
        """Return a copy on a device: of the one graph, or of some of the graphs as a batch."""
        if self.is_one_graph:
            return copy.copy(self.graphs[0]).to(device)
        return Batch.from_data_list([self.graphs[position] for position in positions]).to(device)

    def draw(self, number: int, seed: int, subset: Subset, before: Drawn | None = None) -> Drawn:
        """Draw targets at random, or keep those that were drawn from the same data before."""
        if before is not None and before.data == self._fingerprint(before.targets):
            return before
        choice = torch.arange(self.num_targets) if self.choice is None else self.choice
        expect(choice.numel() > 0, "subset", "one with nodes or graphs to explain", subset)
        targets = choice[choose_targets(number, choice.numel(), seed)].sort().values.cpu()
        return Drawn(targets, self._fingerprint(targets))

    def _fingerprint(self, targets: Tensor) -> str:
        """Return a hash of the one graph's edges, or of the number of graphs and the edges of the targets."""
        positions = [0] if self.is_one_graph else [target for target in targets.tolist() if target < len(self.graphs)]
        digest = hashlib.blake2b(f"{len(self.graphs)}".encode(), digest_size=16)
        for graph in (self.graphs[position] for position in positions):
            digest.update(f" {graph.num_nodes}".encode())
            stores = graph.edge_stores if isinstance(graph, HeteroData) else [graph]
            for index in (store.get(key) for store in stores for key in ("edge_index", "edge_label_index")):
                if isinstance(index, Tensor):
                    digest.update(torch.as_tensor(index).detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def _count_classes(dataset: Any) -> int | None:
    """Return the number of classes of a dataset; None if its graphs are not in memory."""
    if isinstance(dataset, InMemoryDataset):
        return int(dataset.num_classes) if count_classes(getattr(dataset[0], "y", None)) is not None else None
    if not isinstance(dataset, list | tuple) or not all(isinstance(graph, Data) for graph in dataset):
        return None
    counts = [count_classes(graph.get("y")) for graph in dataset]
    class_counts = [count for count in counts if count is not None]
    return max(class_counts) if class_counts and len(class_counts) == len(counts) else None
