"""Node-level datasets: base classes for one graph with one or several node types, and a graph in memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import NodeStorage
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import EdgeType

from attree.data.checks import (
    MASKS,
    Counts,
    HeteroCounts,
    Widths,
    check_graph,
    check_hetero_graph,
    check_masks,
    check_node_labels,
    check_truth,
)
from attree.data.dataset_module import WholeGraph, WholeGraphModule
from attree.data.ground_truth import GroundTruth
from attree.data.neighbor_sampling import check_num_neighbors, neighbor_loader
from attree.data.splits import epoch_of, index_mask, process_of, random_parts
from attree.errors import ArgumentError, expect, expect_instance, expect_int


class NodeDataModule(WholeGraphModule[Data]):
    """One graph with training, validation and test masks, and a ground truth if there is one.

    Training is full-batch by default: one step per epoch. With `num_neighbors`, a step takes a mini-batch of training
    nodes with sampled neighbourhoods; in a distributed run, each process then gets its share of the training nodes (see
    `TrainingShard`). Validation and test always run the network on the whole graph, with full neighbourhoods. In a
    distributed run, each process counts its share of these nodes, and each node is counted exactly once.

    `NodeDataModule.from_data` makes a data module from a graph in memory. A subclass validates its arguments in
    `__init__`, sets `name` and `counts`, and implements `load`, which is called once when the graph is first needed.

    Args:
        num_neighbors: Edges to sample per node in each hop, such as [15, 10] for two layers, -1 for all; None trains
            full-batch. A network with more layers than hops is refused, because its neighbourhoods would be cut off.
        batch_size: Training nodes per step and process, if neighbours are sampled.
        num_workers: Number of processes that sample ahead of training; useful if training runs on a GPU.
        sampling_seed: Seed of the order of training nodes and of the sampled neighbours.
    """

    counts: Counts

    def __init__(
        self,
        num_neighbors: list[int] | None = None,
        batch_size: int = 1024,
        num_workers: int = 0,
        sampling_seed: int = 0,
    ) -> None:
        super().__init__()
        if num_neighbors is not None:
            check_num_neighbors(num_neighbors)
        expect_int(batch_size, "batch_size", 1)
        expect_int(num_workers, "num_workers")
        expect_int(sampling_seed, "sampling_seed")
        self.num_neighbors = num_neighbors
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.sampling_seed = sampling_seed

    @staticmethod
    def from_data(
        data: Data,
        truth: GroundTruth | None = None,
        num_classes: int | None = None,
        name: str = "Data",
        split_seed: int | None = None,
        **sampling: Any,
    ) -> NodeDataModule:
        """Make a data module from a graph in memory: see `InMemoryGraph`.

        .. code-block:: python

            data = NodeDataModule.from_data(Data(x=x, edge_index=edge_index, y=y), split_seed=0)
            trainer.fit(NodeClassifier(GAT(data.num_features, data.num_classes)), datamodule=data)
        """
        return InMemoryGraph(data, truth, num_classes, name, split_seed, **sampling)

    def check(self, graph: Data) -> None:
        """Raise unless the graph has finite features, valid edges, labels that are classes, and masks."""
        check_graph(graph)
        self.counts.check(self.name, [graph])
        check_masks(graph)
        check_node_labels(graph, self.num_classes)

    def masked(self, graph: Data) -> Any:
        """Return the storage that holds the masks and labels: the graph itself."""
        return graph

    def check_network(self, module: nn.Module) -> None:
        """Raise if a network has more layers than `num_neighbors` has hops, and warn if it may have more."""
        if self.num_neighbors is not None:
            check_depth(module, self.num_neighbors)

    def train_dataloader(self) -> WholeGraph[Data] | NodeLoader:
        """Return a loader of the whole graph, or of sampled mini-batches of this process's training nodes."""
        if self.num_neighbors is None:
            return WholeGraph(self._share_on(self._device))
        rank, world_size = process_of(self.trainer)
        return neighbor_loader(
            self.graph,
            self.graph.train_mask.nonzero().view(-1),
            self.num_neighbors,
            self.batch_size,
            self.sampling_seed,
            rank,
            world_size,
            self.num_workers,
            epoch_of(self.trainer),
        )


class InMemoryGraph(NodeDataModule):
    """Data module of one graph in memory. The graph is checked at once and is not changed.

    Args:
        data: The graph: `x` [N, width], `edge_index` [2, E], `y` [N] and the boolean masks `train_mask`, `val_mask`
            and `test_mask` [N]. Nodes outside all masks may have negative labels. Other attributes are kept.
        truth: The ground truth, if there is one.
        num_classes: Number of classes; None for the highest label + 1.
        name: Name of the data in messages and tables.
        split_seed: Seed of a random split into 60 % training, 20 % validation and 20 % test nodes, for a graph without
            masks. Without a seed, such a graph is refused.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    unrecorded: ClassVar[tuple[str, ...]] = ("data", "truth")

    def __init__(
        self,
        data: Data,
        truth: GroundTruth | None = None,
        num_classes: int | None = None,
        name: str = "Data",
        split_seed: int | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        check_graph(data)
        graph = copy.copy(data)
        if split_seed is not None:
            _split_at_random(graph, split_seed)
        elif absent := [mask for mask in MASKS if mask not in data]:
            raise ArgumentError(
                f"Expected argument `data` to have {', '.join(MASKS)}, but got a graph without {', '.join(absent)}: "
                "set them, or pass `split_seed` for a random split."
            )
        check_masks(graph)
        highest = int(graph.y.max())
        num_classes = highest + 1 if num_classes is None else num_classes
        check_node_labels(graph, expect_int(num_classes, "num_classes", 1))
        if truth is not None:
            check_truth(truth, graph.edge_index, graph.x.size(0))
        expect_instance(name, "name", str)
        self.name = name
        self.counts = Counts(graph.x.size(0), graph.edge_index.size(1), graph.x.size(1), num_classes)
        self._in_memory = graph, truth

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Return the graph and its ground truth."""
        return self._in_memory


def _split_at_random(graph: Data, seed: int) -> None:
    """Set the three masks of a graph without masks."""
    present = [mask for mask in MASKS if mask in graph]
    expect(not present, "split_seed", "None for a graph that has masks", f"{seed} beside {present}")
    expect_int(seed, "split_seed")
    size = graph.x.size(0)
    for mask, nodes in zip(MASKS, random_parts(size, seed), strict=True):
        graph[mask] = index_mask(nodes, size)


class HeteroDataModule(WholeGraphModule[HeteroData]):
    """One heterogeneous graph, trained full-batch: one step per epoch classifies the nodes of one type.

    In a distributed run, each process counts its share of the validation and test nodes, and each node is counted
    exactly once.

    A subclass validates its arguments in `__init__`, sets `name` and `counts`, and implements `load`, which is called
    once when the graph is first needed. In a ground truth, `edges` number the nodes of all types together, in the order
    of `graph.node_types` (see `offsets`); `targets` number the nodes of the classified type.
    """

    counts: HeteroCounts

    @property
    def node_type(self) -> str:
        """The type of the classified nodes."""
        return self.counts.node_type

    @property
    def edge_types(self) -> list[EdgeType]:
        """The relations (source type, name, destination type), known without loading."""
        return list(self.counts.edges)

    @property
    def num_features(self) -> Widths:
        """Input width of a network for each node type, with the relations, known without loading."""
        return Widths(self.counts.features, self.edge_types, self.node_type)

    def check(self, graph: HeteroData) -> None:
        """Raise unless the graph has the expected types and sizes, finite features, labels and masks."""
        check_hetero_graph(graph, self.node_type)
        self.counts.check(self.name, graph)
        check_masks(graph[self.node_type])
        check_node_labels(graph[self.node_type], self.num_classes)

    def masked(self, graph: HeteroData) -> NodeStorage:
        """Return the classified nodes, which have the masks and labels."""
        return graph[self.node_type]

    def train_dataloader(self) -> WholeGraph[HeteroData]:
        """Return a loader with one step per epoch over the whole graph."""
        return WholeGraph(self._share_on(self._device))


def offsets(graph: HeteroData) -> dict[str, int]:
    """Return the first id of each node type if the nodes of all types are numbered together.

    >>> import torch
    >>> graph = HeteroData({"person": {"x": torch.zeros(3, 1)}, "fly": {"x": torch.zeros(2, 1)}})
    >>> offsets(graph)
    {'person': 0, 'fly': 3}
    """
    first_ids, begin = {}, 0
    for kind in graph.node_types:
        first_ids[kind] = begin
        begin += int(graph[kind].num_nodes or 0)
    return first_ids


def check_depth(module: nn.Module, num_neighbors: Sequence[int]) -> None:
    """Raise if a network has more layers than `num_neighbors` has hops, and warn if it may have more."""
    hops, layers = len(num_neighbors), stated_depth(module)
    if layers is not None:
        expect(hops >= layers, "num_neighbors", f"{layers} numbers, one per layer of the network", num_neighbors)
    elif hops < num_convolutions(module):
        rank_zero_warn(
            f"`num_neighbors` has {hops} of the {num_convolutions(module)} numbers that the network's convolutions "
            "may need: if they are in sequence, the network is trained on neighbourhoods that are cut off."
        )


def stated_depth(module: nn.Module) -> int | None:
    """Return the attribute `num_layers` of a network or of a submodule; networks of attree and PyG have it.

    The result is None if no submodule has the attribute, if several have it, or if a convolution is outside of it.
    """
    stated_sizes = _outermost(module)
    if len(stated_sizes) != 1 or stated_sizes[0][1] != num_convolutions(module):
        return None
    return stated_sizes[0][0]


def num_convolutions(module: nn.Module) -> int:
    """Return the number of message-passing modules in a network, whether in sequence or in parallel."""
    return sum(isinstance(part, MessagePassing) for part in module.modules())


def _outermost(module: nn.Module) -> list[tuple[int, int]]:
    """Return (`num_layers`, number of convolutions) of each outermost submodule with an attribute `num_layers`."""
    num_layers, convolutions = getattr(module, "num_layers", None), num_convolutions(module)
    if isinstance(num_layers, int) and convolutions > 0:
        return [(num_layers, convolutions)]
    return [sizes for child in module.children() for sizes in _outermost(child)]
