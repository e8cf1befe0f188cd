"""Base class of datasets with one graph: read once, moved to a device once, its examples shared by processes."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData

from attree.data.base import DatasetModule
from attree.data.ground_truth import GroundTruth
from attree.data.loading.sharding import process_of, shard_mask

GraphT = TypeVar("GraphT", Data, HeteroData)


class WholeGraph(Generic[GraphT]):
    """A loader with one step per epoch over the same graph, without collation, workers or copies.

    Lightning adds a distributed sampler only to a `torch.utils.data.DataLoader`, so every process sees the whole graph.
    A plain list does not work: Lightning reads it as several loaders.
    """

    def __init__(self, graph: GraphT) -> None:
        self.graph = graph

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[GraphT]:
        yield self.graph


class WholeGraphModule(DatasetModule, Generic[GraphT]):
    """One graph with train, validation and test masks, and true explanations where there are some.

    A subclass sets `name` and `counts` and implements `load`, called once when the graph is first needed,
    `check`, which refuses unsuitable graphs, and `masked`, which returns the part with the masks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[torch.device, GraphT] = {}
        self._shares: dict[torch.device, GraphT] = {}

    @abstractmethod
    def load(self) -> tuple[GraphT, GroundTruth | None]:
        """Read or generate the graph and its ground truth."""

    @abstractmethod
    def check(self, graph: GraphT) -> None:
        """Raise unless the graph is as expected."""

    @abstractmethod
    def masked(self, graph: GraphT) -> Any:
        """Return the part of a graph with masks and labels: the graph itself, or its nodes of one type."""

    @cached_property
    def _loaded(self) -> tuple[GraphT, GroundTruth | None]:
        graph, truth = self.load()
        self.check(graph)
        return graph, truth

    @property
    def graph(self) -> GraphT:
        """The graph: features, edges, labels and the three masks."""
        return self._loaded[0]

    @property
    def truth(self) -> GroundTruth | None:
        """True edges of the targets that have some; None for data without ground truth."""
        return self._loaded[1]

    def prepare_data(self) -> None:
        """Download, process or generate the data in one process of each machine, before the others read it."""
        _ = self.graph

    def setup(self, stage: str | None = None) -> None:
        """Load the graph in every process, and refuse an unsuitable network."""
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is not None:
            self.check_network(module)
        _ = self.graph
        # The next run may have another number of processes.
        self._shares.clear()

    def check_network(self, module: nn.Module) -> None:
        """Raise if a network is unsuitable for the graph."""

    @property
    def _device(self) -> torch.device:
        """The device that the graph was loaded to."""
        device: torch.device = self.masked(self.graph)["y"].device
        return device

    def _graph_on(self, device: torch.device) -> GraphT:
        """Return the whole graph on a device; it is moved once."""
        if device == self._device:
            return self.graph
        if device not in self._moved:
            # `Data.to` works in place: moving a shallow copy leaves the original where it is.
            self._moved[device] = copy.copy(self.graph).to(device)
        return self._moved[device]

    def _share_on(self, device: torch.device) -> GraphT:
        """Return the whole graph with only this process's validation and test nodes in its masks."""
        rank, world_size = process_of(self.trainer)
        if world_size == 1:
            return self._graph_on(device)
        if device not in self._shares:
            share = copy.copy(self._graph_on(device))
            part = self.masked(share)
            for mask in ("val_mask", "test_mask"):
                part[mask] = shard_mask(part[mask], rank, world_size)
            self._shares[device] = share
        return self._shares[device]

    def val_dataloader(self) -> WholeGraph[GraphT]:
        """The whole graph; metrics are taken at `val_mask`."""
        return WholeGraph(self._share_on(self._device))

    def test_dataloader(self) -> WholeGraph[GraphT]:
        """The whole graph; metrics are taken at `test_mask`."""
        return WholeGraph(self._share_on(self._device))

    def predict_dataloader(self) -> WholeGraph[GraphT]:
        """The whole graph; all its nodes are predicted, by every process."""
        return WholeGraph(self.graph)

    def transfer_batch_to_device(self, batch: GraphT, device: torch.device, dataloader_idx: int) -> GraphT:
        """Move the whole graph to a device once, and return that copy from then on."""
        if batch is self.graph:
            return self._graph_on(device)
        if batch is self._shares.get(self._device):
            return self._share_on(device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)
