"""Base of datasets that are one graph: read once, moved to a device once, its examples shared by processes."""

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
    """A loader whose epoch is one step over the very same graph: no collation, no worker, no copy.

    Lightning wraps only `torch.utils.data.DataLoader` with a distributed sampler, so every process sees the
    whole graph. A plain list would not do: Lightning takes a list as several loaders.
    """

    def __init__(self, graph: GraphT) -> None:
        self.graph = graph

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[GraphT]:
        yield self.graph


class WholeGraphModule(DatasetModule, Generic[GraphT]):
    """One graph with train, validation and test masks, and true explanations where there are some.

    A subclass sets `name` and `counts` and implements `load`, which is called once, when the graph is first needed,
    `check`, which refuses a graph that cannot be trained on, and `masked`, the part of it that has the masks.
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
        """Raise unless the graph is what its name promises."""

    @abstractmethod
    def masked(self, graph: GraphT) -> Any:
        """Where the masks and labels of a graph are: the graph itself, or its nodes of one type."""

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
        """Download, process or generate in one process of the machine, before the others read."""
        _ = self.graph

    def setup(self, stage: str | None = None) -> None:
        """Load the graph in every process, and refuse a network that it does not suit."""
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is not None:
            self.check_network(module)
        _ = self.graph
        # The next run may have another number of processes.
        self._shares.clear()

    def check_network(self, module: nn.Module) -> None:
        """Raise if a network does not suit the graph."""

    @property
    def _device(self) -> torch.device:
        """Where the graph was loaded to."""
        device: torch.device = self.masked(self.graph)["y"].device
        return device

    def _graph_on(self, device: torch.device) -> GraphT:
        """The whole graph on a device, moved there once."""
        if device == self._device:
            return self.graph
        if device not in self._moved:
            # `Data.to` works in place: moving a shallow copy leaves the original where it is.
            self._moved[device] = copy.copy(self.graph).to(device)
        return self._moved[device]

    def _share_on(self, device: torch.device) -> GraphT:
        """The whole graph with only this process's validation and test nodes in its masks; the rest is shared."""
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
        """Move the whole graph to a device once and hand out that copy from then on."""
        if batch is self.graph:
            return self._graph_on(device)
        if batch is self._shares.get(self._device):
            return self._share_on(device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)
