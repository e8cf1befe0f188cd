"""Models whose `forward` takes a whole PyG `Data`, made to take its parts."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Batch, Data

LEFT_OUT = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask", "ptr", "batch_size")
"""What a model is given apart from the other attributes, or never reads."""


class DataForward(nn.Module):
    """Calls `model(data)` with a copy of a graph whose parts are given one by one.

    Args:
        model: The model.
        data: The graph that gives all other attributes.
    """

    def __init__(self, model: nn.Module, data: Data) -> None:
        super().__init__()
        self.model = model
        self._data = data

    def attributes(self) -> dict[str, Any]:
        """The tensors of the graph that go with nodes or edges, by name."""
        values = {name: self._data[name] for name in self._data.keys() if name not in LEFT_OUT}  # noqa: SIM118
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def forward(self, x: Tensor, edge_index: Tensor, **attributes: Any) -> Any:
        """The model's output on the graph with these parts."""
        data = copy.copy(self._data)
        data.x, data.edge_index = x, edge_index
        for name, value in attributes.items():
            data[name] = value
        if isinstance(data, Batch) and isinstance(batch := attributes.get("batch"), Tensor):
            data._num_graphs = int(batch.max()) + 1 if batch.numel() else 0
        return self.predict(data)

    def predict(self, data: Data) -> Any:
        """What is called with the graph."""
        return self.model(data)
