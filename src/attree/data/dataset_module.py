"""Base classes of data modules: any dataset, and a dataset with one graph that every step reads whole."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from lightning.pytorch import LightningDataModule
from torch import nn
from torch_geometric.data import Data, HeteroData

from attree.data.checks import Counts, HeteroCounts
from attree.data.ground_truth import GroundTruth
from attree.data.splits import process_of, shard_mask
from attree.errors import expect_path

GraphT = TypeVar("GraphT", Data, HeteroData)


def data_folder() -> Path:
    """Return the default data folder: `$ATTREE_DATA`, or `data`."""
    return Path(os.environ.get("ATTREE_DATA") or "data")


class DatasetModule(LightningDataModule):
    """A dataset whose feature width and number of classes are known before anything is read or downloaded.

    Attributes:
        name: Name of the dataset as the paper prints it.
        counts: Sizes that the data must have.
        class_names: Names of the classes, in order; None if they have none.
        node_types: Meaning of each column of one-hot node features, such as atoms; None for other features.
        unrecorded: Names of the arguments that are data rather than settings. Checkpoints do not save them.
        runs_other_loaders: Whether an argument chooses the code that reads the files. Opening a run then needs leave.
    """

    name: str
    counts: Counts | HeteroCounts
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None
    unrecorded: ClassVar[tuple[str, ...]] = ()
    runs_other_loaders: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        # This also collects the arguments of the subclass. They are not logged, because Lightning refuses two values of
        # the same name, and the model logs its own.
        self.save_hyperparameters(ignore=self.unrecorded, logger=False)
        if self.hparams.get("root") is not None:
            expect_path(self.hparams["root"], "root")

    @property
    def root(self) -> Path:
        """The data folder: the argument `root` if it is given, else `data_folder()`."""
        root = self.hparams.get("root")
        return data_folder() if root is None else Path(root)

    @property
    def num_features(self) -> Any:
        """Input width of a network for this data; for a heterogeneous graph, one width per node type."""
        return self.counts.features

    @property
    def num_classes(self) -> int:
        """Output width of a network for this data."""
        return self.counts.classes


class WholeGraph(Generic[GraphT]):
    """A loader with one step per epoch that returns the same graph each time, without collation, workers or copies.

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
    """One graph with training, validation and test masks, and a ground truth if there is one.

    A subclass sets `name` and `counts` and implements three methods: `load`, which is called once when the graph is
    first needed, `check`, which refuses unsuitable graphs, and `masked`, which returns the part with the masks.
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
        """Raise if the graph is not as expected."""

    @abstractmethod
    def masked(self, graph: GraphT) -> Any:
        """Return the part of a graph that has masks and labels: the graph itself, or its nodes of one type."""

    @cached_property
    def _loaded(self) -> tuple[GraphT, GroundTruth | None]:
        graph, truth = self.load()
        self.check(graph)
        if self.class_names is not None and "class_names" not in graph:
            graph = copy.copy(graph)
            graph.class_names = list(self.class_names)  # `attree.explain` and the page read them
        return graph, truth

    @property
    def graph(self) -> GraphT:
        """The graph: features, edges, labels and the three masks."""
        return self._loaded[0]

    @property
    def truth(self) -> GroundTruth | None:
        """The ground truth; None for data without one."""
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
        """The device on which the graph was loaded."""
        device: torch.device = self.masked(self.graph)["y"].device
        return device

    def _graph_on(self, device: torch.device) -> GraphT:
        """Return the whole graph on a device. It is moved once."""
        if device == self._device:
            return self.graph
        if device not in self._moved:
            # `Data.to` works in place: moving a shallow copy leaves the original where it is.
            self._moved[device] = copy.copy(self.graph).to(device)
        return self._moved[device]

    def _share_on(self, device: torch.device) -> GraphT:
        """Return the whole graph, with masks that hold only this process's validation and test nodes."""
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
        """Return a loader of the whole graph; metrics are computed on the nodes of `val_mask`."""
        return WholeGraph(self._share_on(self._device))

    def test_dataloader(self) -> WholeGraph[GraphT]:
        """Return a loader of the whole graph; metrics are computed on the nodes of `test_mask`."""
        return WholeGraph(self._share_on(self._device))

    def predict_dataloader(self) -> WholeGraph[GraphT]:
        """Return a loader of the whole graph; every process predicts all nodes."""
        return WholeGraph(self.graph)

    def transfer_batch_to_device(self, batch: GraphT, device: torch.device, dataloader_idx: int) -> GraphT:
        """Move the whole graph to a device once, and return that copy from then on."""
        if batch is self.graph:
            return self._graph_on(device)
        if batch is self._shares.get(self._device):
            return self._share_on(device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)
