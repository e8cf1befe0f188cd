"""Where explanations come from: graphs, targets, truth and names, from whatever the user has."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from attree.data import GroundTruth
from attree.data.on_disk import OnDiskGraph
from attree.data.random_state import seeded_apart
from attree.errors import ArgumentError, UnsupportedModelError, expect, expect_int, expect_seed
from attree.source.target_labels import LINK_NAMES, TargetLabels
from attree.subject import Subject
from attree.subject.head import count_classes

Subset = Literal["all", "train", "val", "test"]
"""The subset of nodes or graphs that targets are chosen from."""


def choose_targets(number: int, available: int, seed: int) -> Tensor:
    """Return distinct random positions in [0, available), ascending; all positions if fewer exist than requested.

    >>> choose_targets(3, 10, seed=0).tolist() == choose_targets(3, 10, seed=0).tolist()
    True
    """
    number = expect_int(number, "num_targets", at_least=1)
    generator = torch.Generator().manual_seed(expect_seed(seed))
    return torch.randperm(available, generator=generator)[:number].sort().values


@dataclass(frozen=True)
class Drawn:
    """The targets of a run, with a fingerprint of the data that they were drawn from.

    Attributes:
        targets: Ids of the targets in the one graph, or positions of graphs, ascending.
        data: Fingerprint of the data.
    """

    targets: Tensor
    data: str


@dataclass(frozen=True)
class Source:
    """What an explanation needs besides the model: one graph with nodes or links to explain, or many graphs.

    Attributes:
        graphs: One graph, or many.
        choice: Ids that targets are chosen from: nodes of the one graph, or positions in `graphs`; None for all.
        truth: True edges of the nodes that have some.
        num_classes: Number of classes, if known.
        class_names: Names of the classes, if the data module has them.
        node_types: Meanings of the columns of one-hot node features, if the data module has them.
        only_links: Whether it has only links to predict (`edge_label_index`), and no labels of nodes.
        name: Name of the dataset, if the data module has one.
        node_type: For a heterogeneous graph, the type of the nodes to explain.
        subset: The subset that `choice` is of, for messages.
    """

    graphs: Sequence[Data]
    choice: Tensor | None = None
    truth: GroundTruth | None = None
    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None
    only_links: bool = False
    name: str | None = None
    node_type: str | None = None
    subset: Subset = "all"

    @property
    def is_one_graph(self) -> bool:
        """Whether there is one graph only."""
        return len(self.graphs) == 1

    @property
    def has_links(self) -> bool:
        """Whether the first graph has links to predict."""
        return pairs_to_predict(self.graphs[0]) is not None

    @property
    def has_plain_nodes(self) -> bool:
        """Whether the targets can only be nodes of a homogeneous graph."""
        return self.node_type is None and not self.has_links and not isinstance(self.graphs[0], HeteroData)

    def count_classes(self) -> int | None:
        """Return the number of classes, told or counted; None if unknown or if labels are no classes."""
        if self.num_classes is not None:
            return self.num_classes
        if self.is_one_graph:
            graph = self.graphs[0]
            return count_classes((graph if self.node_type is None else graph[self.node_type]).get("y"))
        return self.graphs.count_classes() if isinstance(self.graphs, Graphs) else count_dataset_classes(self.graphs)

    def on(self, positions: Sequence[int], device: torch.device | None = None) -> Data:
        """Return the one graph, or some of the graphs as a batch: a copy on a device, or where they are."""
        if not self.is_one_graph:
            batch = Batch.from_data_list([self.graphs[position] for position in positions])
            return batch if device is None else batch.to(device)
        return self.graphs[0] if device is None else copy.copy(self.graphs[0]).to(device)

    def labels(self, graph: Data, subject: Subject, ids: Tensor | None = None) -> TargetLabels:
        """Return true classes and names of a subject's targets.

        Args:
            graph: The graph or batch that the subject runs on.
            subject: The model call to explain.
            ids: Positions of the batch's graphs in `graphs`.
        """
        return TargetLabels.of(graph, subject, self.class_names, self.node_types, ids, self.name)

    def draw(self, number: int, seed: int, available: int, before: Drawn | None = None) -> Drawn:
        """Draw targets at random, or keep those that were drawn from the same data before.

        Args:
            number: Number of targets to draw.
            seed: Seed of the draw.
            available: Number of targets in the data.
            before: Targets that were drawn before.
        """
        if before is not None and before.data == self.fingerprint(before.targets):
            return before
        choice = torch.arange(available) if self.choice is None else self.choice
        expect(choice.numel() > 0, "subset", "one with nodes or graphs to explain", self.subset)
        targets = choice[choose_targets(number, choice.numel(), seed)].sort().values.cpu()
        return Drawn(targets, self.fingerprint(targets))

    def fingerprint(self, targets: Tensor) -> str:
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


def source_of(data: Any, seed: int = 0) -> Source:
    """Return the source of what a user passes as `data`.

    Args:
        data: A graph, a batch of graphs (which stays one graph), a list or dataset of graphs, a data module of attree,
            PyG or the user, a trainer that has run, a finished run (`attree.load_run`), or a source.
        seed: Seed for datasets that draw random numbers when they are read.

    Raises:
        ArgumentError: There are no graphs.
    """
    if isinstance(data, Source):
        return data
    if disk_source_of(data) is not None:
        raise ArgumentError(
            "Expected argument `data` to be in memory, but got a graph on disk, which is never run as a whole: load it "
            "with `to_data()` if it fits into memory."
        )
    if isinstance(data, Data | HeteroData):
        return Source([data], only_links=_has_only_links(data))
    if hasattr(data, "__getitem__"):
        return of_datasets({"all": [as_dataset(data)]}, "all", seed)
    from attree.source.from_lightning import of_lightning  # Lightning takes long to import

    return of_lightning(data, seed)


@dataclass(frozen=True)
class DiskSource:
    """What an explanation needs besides the model, if the graph is on disk.

    Attributes:
        graph: The graph.
        choice: Ids of the nodes that targets are chosen from; None for all.
        num_classes: Number of classes, if known.
    """

    graph: OnDiskGraph
    choice: Tensor | None = None
    num_classes: int | None = None

    def draw(self, number: int, seed: int, before: Drawn | None = None) -> Drawn:
        """Draw targets as `Source.draw` does."""
        if before is not None and before.data == self.graph.fingerprint:
            return before
        available = self.graph.num_nodes if self.choice is None else self.choice.numel()
        expect(available > 0, "subset", "one with nodes to explain", "one without")
        positions = choose_targets(number, available, seed)
        return Drawn(positions if self.choice is None else self.choice[positions], self.graph.fingerprint)


def disk_source_of(data: Any, subset: Subset = "all") -> DiskSource | None:
    """Return the graph on disk of what a user passes as `data`; None if its graphs are in memory.

    Args:
        data: A graph on disk; or a data module (`attree.data.OnDisk`), a trainer or a finished run that has one.
        subset: The subset of nodes to choose targets from.
    """
    if isinstance(data, OnDiskGraph):
        return DiskSource(data, None if subset == "all" else data.mask(f"{subset}_mask"))
    attributes = getattr(data, "__dict__", {})
    for module in (
        data,
        attributes.get("data"),
        getattr(data, "datamodule", None) if "fit_loop" in attributes else None,
    ):
        graph = getattr(module, "__dict__", {}).get("graph")
        if module is not None and isinstance(graph, OnDiskGraph):
            return DiskSource(graph, None if subset == "all" else module.nodes(subset), module.num_classes)
    return None


def of_datasets(parts: dict[str, list[Any]], subset: Subset, seed: int) -> Source:
    """Join the datasets of several splits. A graph or dataset that occurs twice counts once."""
    datasets: list[Any] = []
    owners: list[set[str]] = []
    for part, of_part in parts.items():
        for dataset in map(without_repeats, of_part):
            place = next((place for place, other in enumerate(datasets) if is_same_dataset(other, dataset)), None)
            if place is None:
                datasets.append(dataset)
                owners.append({part})
            else:
                owners[place].add(part)
    graphs = Graphs(datasets, seed)
    if len(graphs) == 1:
        return of_graph(graphs[0], subset)
    if isinstance(graphs[0], HeteroData):
        raise UnsupportedModelError(
            f"Expected one heterogeneous graph, but got {len(graphs)}: argument `data` can be one of them."
        )
    if subset == "all":
        return Source(graphs)
    ends = torch.tensor([len(dataset) for dataset in datasets]).cumsum(0).tolist()
    positions = [
        torch.arange(end - len(dataset), end)
        for dataset, end, of_parts in zip(datasets, ends, owners, strict=True)
        if subset in of_parts
    ]
    expect(bool(positions), "subset", "one that the data has graphs of", subset)
    return Source(graphs, torch.cat(positions), subset=subset)


def _has_only_links(graph: Data | HeteroData) -> bool:
    """Whether a graph has links to predict, and no labels of nodes."""
    return "edge_label_index" in graph and "y" not in graph


def of_graph(graph: Data | HeteroData, subset: Subset, nodes: Any = None, named: Any = None) -> Source:
    """Explain the nodes of a graph (of one type, if it has several), or its links if it has `edge_label_index`.

    Args:
        graph: The graph.
        subset: The subset of nodes to choose targets from.
        nodes: The nodes as given to PyG's data module; None takes the graph's mask.
        named: The type of the nodes, if the data module knows it: a type, or a pair of type and nodes.
    """
    if not isinstance(graph, HeteroData):
        choice = nodes_of(graph, subset) if nodes is None else _ids(nodes)
        return Source([graph], choice, only_links=_has_only_links(graph), subset=subset)
    node_type = explained_type(graph, named)
    if node_type is None:
        expect(subset == "all", "subset", "'all' if pairs of nodes are explained", subset)
        return of_links(graph)
    nodes = nodes[1] if isinstance(nodes, tuple) else nodes
    every = nodes is None or isinstance(nodes, str)  # in PyG, a type alone means all its nodes
    choice = nodes_of(graph[node_type], subset) if every else _ids(nodes)
    return Source([graph], choice, node_type=node_type, subset=subset)


def of_links(graph: Data | HeteroData) -> Source:
    """Explain the links of a graph, and nothing else."""
    stores = graph.edge_stores if isinstance(graph, HeteroData) else [graph]
    labels = [label for store in stores if isinstance(label := store.get("edge_label"), Tensor)]
    are_bits = all(bool(((label == 0) | (label == 1)).all()) for label in labels)
    names = LINK_NAMES if are_bits else None
    return Source([graph], num_classes=2 if are_bits else None, class_names=names, only_links=True)


def nodes_of(graph: Data, subset: Subset) -> Tensor | None:
    """Return the nodes of a subset, by the graph's mask; None for all."""
    if subset == "all":
        return None
    mask = graph.get(f"{subset}_mask")
    expect(mask is not None, "subset", f"'all' if the graph has no `{subset}_mask`", subset)
    return _ids(mask)


def _ids(nodes: Any) -> Tensor:
    ids = torch.as_tensor(nodes).cpu()
    return ids.nonzero().view(-1) if ids.dtype == torch.bool else ids.view(-1)


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
