"""The base class of cells (cached measurements), and the data and networks that cells share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from attree.data import GraphDataModule, NodeDataModule
from attree.paper.cache import Cache, code_hash, data_hash, libraries
from attree.paper.networks import Net, accuracy, load_authors_gat, make_data, make_model, reproducible, train


class CellContext:
    """Datasets and trained networks for cells. The latest few stay in memory, and networks are also cached on disk.

    Args:
        root: Data folder.
        cache: Folder of finished results.
    """

    def __init__(self, root: str, cache: Path) -> None:
        self.root = root
        self.cache = Cache(cache)
        self._data: dict[tuple[str, int, int], NodeDataModule | GraphDataModule] = {}
        self._nets: dict[Net, tuple[nn.Module, float]] = {}

    def data(self, dataset: str, layers: int, seed: int) -> NodeDataModule | GraphDataModule:
        """Return a dataset."""
        key = (dataset, layers, seed)
        if key not in self._data:
            self._data = {**dict(list(self._data.items())[-3:]), key: make_data(*key, root=self.root)}
        return self._data[key]

    def data_of(self, net: Net) -> NodeDataModule | GraphDataModule:
        """Return the dataset of a network."""
        return self.data(net.dataset, net.layers, net.seed)

    def node_data(self, net: Net) -> NodeDataModule:
        """Return the dataset of a network that classifies nodes."""
        data = self.data_of(net)
        assert isinstance(data, NodeDataModule)
        return data

    def model(self, net: Net) -> tuple[nn.Module, float]:
        """Return a network in eval mode and its test accuracy; train it if it is not cached."""
        if net not in self._nets:
            self._nets = {**dict(list(self._nets.items())[-7:]), net: self._model(net)}
        return self._nets[net]

    def _model(self, net: Net) -> tuple[nn.Module, float]:
        """Return a network and its test accuracy: with the authors' weights, from the cache, or trained now."""
        data = self.data_of(net)
        if net.weights == "authors":
            stem = f"gat_{net.dataset.lower().replace('-', '_')}_{net.layers}layer.npz"
            authors = load_authors_gat(Path(self.root, "gatt_paper", stem))
            return authors, accuracy(authors, data)
        key = self.net_key(net)
        arrays, stored = self.cache.get_arrays(key), self.cache.get(key)
        if arrays is not None and stored is not None:
            model = make_model(net, data)
            model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
            return model.eval(), float(stored["accuracy"])
        model, reached = train(net, data)
        weights: dict[str, np.ndarray] = {name: value.numpy() for name, value in model.state_dict().items()}
        self.cache.put_arrays(key, weights, {"accuracy": reached})
        return model, reached

    def net_key(self, net: Net) -> dict[str, Any]:
        """Return everything that determines a network's weights."""
        return {
            "kind": "net",
            "net": asdict(net),
            "code": code_hash(train.__module__),
            "data": data_hash(net.dataset, self.root),
            "libraries": libraries(),
        }


Result = dict[str, Any]
"""The result of a cell, which JSON can store."""


@dataclass(frozen=True)
class Cell(ABC):
    """A cached measurement. A subclass is a frozen dataclass of settings with a method `measure`.

    Attributes:
        kind: Name of the kind of measurement.
        reads_features: Whether the result depends on the dataset's features, not only on its edges.
    """

    kind: ClassVar[str]
    reads_features: ClassVar[bool] = True

    @property
    @abstractmethod
    def dataset(self) -> str:
        """Name of the dataset."""

    @abstractmethod
    def measure(self, context: CellContext) -> Result:
        """Measure, and return the result."""

    def key(self, context: CellContext) -> dict[str, Any]:
        """Return everything that determines the result."""
        return {
            "kind": self.kind,
            "cell": asdict(self),
            "code": code_hash(type(self).__module__),
            "data": data_hash(self.dataset, context.root),
            "libraries": libraries(),
        }

    def cached(self, context: CellContext) -> Result | None:
        """Return the cached result of the same code, data and libraries; None if there is none."""
        return context.cache.get(self.key(context))

    def result(self, context: CellContext) -> Result:
        """Return the cached result, or measure and cache it, with the seconds that it took."""
        cached = self.cached(context)
        if cached is not None:
            return cached
        began = perf_counter()
        with reproducible(seed=0):
            measured = self.measure(context)
        measured["seconds"] = perf_counter() - began
        context.cache.put(self.key(context), measured)
        return measured


@dataclass(frozen=True)
class NetCell(Cell):
    """A measurement of one network.

    Attributes:
        net: The network.
    """

    net: Net

    @property
    def dataset(self) -> str:
        return self.net.dataset


@dataclass(frozen=True)
class Trained(NetCell):
    """A network's test accuracy."""

    kind: ClassVar[str] = "trained"

    def __str__(self) -> str:
        return f"accuracy of {self.net}"

    def measure(self, context: CellContext) -> Result:
        return {"accuracy": context.model(self.net)[1]}
