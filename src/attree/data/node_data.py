"""Base class of node-level datasets: one graph, trained full-batch or on sampled neighbourhoods."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from attree.data.checks import check_graph, check_masks, check_node_labels
from attree.data.counts import Counts
from attree.data.depth import num_convolutions, stated_depth
from attree.data.ground_truth import GroundTruth
from attree.data.loading.neighbor_loader import neighbor_loader
from attree.data.loading.neighbor_sampler import check_num_neighbors
from attree.data.loading.sharding import epoch_of, process_of
from attree.data.whole_graph import WholeGraph, WholeGraphModule
from attree.errors import expect, expect_int


class NodeDataModule(WholeGraphModule[Data]):
    """One graph with train, validation and test masks, and true explanations where there are some.

    Training is full-batch by default: one step per epoch. With `num_neighbors` it takes steps over mini-batches of
    training nodes with sampled neighbourhoods; in a distributed run each process then gets its share of the training
    nodes (see `TrainingShard`). Validation and test always run the whole graph through the network, with full
    neighbourhoods; in a distributed run each process counts its share of the nodes, each node exactly once.

    `NodeDataModule.from_data` makes one from a graph in memory. A subclass validates its arguments in `__init__`, sets
    `name` and `counts`, and implements `load`, called once when the graph is first needed.

    Args:
        num_neighbors: Edges to sample per node in each hop, such as [15, 10] for two layers, -1 for all; None trains
            full-batch. A network with more layers than hops is refused, because its neighbourhoods would be cut off.
        batch_size: Training nodes per step and process, with sampled neighbours.
        num_workers: Number of processes that sample ahead of training; worth it where the training runs on a GPU.
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
        """Make a data module from a graph in memory: see `attree.data.in_memory.InMemoryGraph`.

        .. code-block:: python

            data = NodeDataModule.from_data(Data(x=x, edge_index=edge_index, y=y), split_seed=0)
            trainer.fit(NodeClassifier(GAT(data.num_features, data.num_classes)), datamodule=data)
        """
        from attree.data.in_memory import InMemoryGraph  # which is a subclass of this class

        return InMemoryGraph(data, truth, num_classes, name, split_seed, **sampling)

    def check(self, graph: Data) -> None:
        """Raise unless the graph has finite features, edges, labels that are classes, and masks."""
        check_graph(graph)
        self.counts.check(self.name, [graph])
        check_masks(graph)
        check_node_labels(graph, self.num_classes)

    def masked(self, graph: Data) -> Any:
        """Return the graph, which has the masks and labels."""
        return graph

    def check_network(self, module: nn.Module) -> None:
        """Raise if a network has more layers than there are hops; warn if it may have."""
        if self.num_neighbors is None:
            return
        hops, layers = len(self.num_neighbors), stated_depth(module)
        if layers is not None:
            expect(hops >= layers, "num_neighbors", f"{layers} numbers, one a layer of the network", self.num_neighbors)
        elif hops < num_convolutions(module):
            rank_zero_warn(
                f"`num_neighbors` has {hops} of the {num_convolutions(module)} numbers that the network's convolutions "
                "may need: if they are in sequence, the network is trained on neighbourhoods that are cut off."
            )

    def train_dataloader(self) -> WholeGraph[Data] | NodeLoader:
        """One step per epoch over the whole graph, or this process's training nodes in sampled mini-batches."""
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
