"""Where cells get their data and networks from; what was trained before is taken from the cache."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from attree.data import GraphDataModule, NodeDataModule
from attree.paper.authors import load_authors_gat
from attree.paper.cache import Cache
from attree.paper.fingerprint import code_hash, data_hash, libraries
from attree.paper.net import Net, make_data
from attree.paper.training import accuracy, make_model, train


class CellContext:
    """The data and trained networks that cells measure; each is made once.

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
        """A dataset, read once."""
        key = (dataset, layers, seed)
        if key not in self._data:
            self._data = {**dict(list(self._data.items())[-3:]), key: make_data(*key, root=self.root)}
        return self._data[key]

    def node_data(self, dataset: str, layers: int, seed: int) -> NodeDataModule:
        """A dataset of nodes."""
        data = self.data(dataset, layers, seed)
        assert isinstance(data, NodeDataModule)
        return data

    def data_of(self, net: Net) -> NodeDataModule | GraphDataModule:
        """The data of a network."""
        return self.data(net.dataset, net.layers, net.seed)

    def model(self, net: Net) -> tuple[nn.Module, float]:
        """A network in eval mode and its test accuracy; trained if it has not been before."""
        if net not in self._nets:
            self._nets = {**dict(list(self._nets.items())[-7:]), net: self._model(net)}
        return self._nets[net]

    def _model(self, net: Net) -> tuple[nn.Module, float]:
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
        """All that determines a network's weights."""
        return {
            "kind": "net",
            "net": asdict(net),
            "code": code_hash(train.__module__),
            "data": data_hash(net.dataset, self.root),
            "libraries": libraries(),
        }
