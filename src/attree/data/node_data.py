"""Base of all node-level datasets: one graph, classified node by node, trained full-batch."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import torch
from torch_geometric.data import Data

from attree.data.base import DatasetModule
from attree.data.ground_truth import GroundTruth


class WholeGraph:
    """A loader whose epoch is one step over the very same graph: no collation, no worker, no copy.

    Lightning wraps only `torch.utils.data.DataLoader` with a distributed sampler, so every process sees the
    whole graph. A plain list would not do: Lightning takes a list as several loaders.
    """

    def __init__(self, graph: Data) -> None:
        self.graph = graph

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Data]:
        yield self.graph


class NodeDataModule(DatasetModule):
    """One graph with train, validation and test masks, and true explanations where there are some.

    A subclass validates its arguments in `__init__`, sets `name` and `counts`, and implements `load`, which
    is called once, when the graph is first needed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[torch.device, Data] = {}

    @abstractmethod
    def load(self) -> tuple[Data, GroundTruth | None]:
        """Read or generate the graph (x, edge_index, y and the three masks) and its ground truth."""

    @cached_property
    def _loaded(self) -> tuple[Data, GroundTruth | None]:
        graph, truth = self.load()
        self.counts.check(self.name, [graph])
        return graph, truth

    @property
    def graph(self) -> Data:
        """The graph: x, edge_index, y, train_mask, val_mask, test_mask."""
        return self._loaded[0]

    @property
    def truth(self) -> GroundTruth | None:
        """True edges of the targets that have some; None for data without ground truth."""
        return self._loaded[1]

    def prepare_data(self) -> None:
        """Download, process or generate in one process of the machine, before the others read."""
        _ = self.graph

    def setup(self, stage: str | None = None) -> None:
        """Load the graph in every process."""
        _ = self.graph

    def train_dataloader(self) -> WholeGraph:
        """One step an epoch over the whole graph; the loss is taken at `train_mask`."""
        return WholeGraph(self.graph)

    def val_dataloader(self) -> WholeGraph:
        """The whole graph; metrics are taken at `val_mask`."""
        return WholeGraph(self.graph)

    def test_dataloader(self) -> WholeGraph:
        """The whole graph; metrics are taken at `test_mask`."""
        return WholeGraph(self.graph)

    def predict_dataloader(self) -> WholeGraph:
        """The whole graph; all its nodes are predicted."""
        return WholeGraph(self.graph)

    def transfer_batch_to_device(self, batch: Data, device: torch.device, dataloader_idx: int) -> Data:
        """Move the whole graph to a device once and hand out that copy from then on."""
        if batch is not self.graph:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if device == batch.x.device:
            return batch
        if device not in self._moved:
            # `Data.to` works in place: moving a shallow copy leaves the original where it is.
            self._moved[device] = copy.copy(batch).to(device)
        return self._moved[device]
