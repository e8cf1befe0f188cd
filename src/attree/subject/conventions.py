"""How a model is called: with separate arguments, or with a whole graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.subject.model_call import ModelCall
from attree.subject.wrapped import unwrapped

Call = Callable[[Any, Any], Tensor]
"""How a user says that a model predicts: `call(model, data)` returns one row of outputs per node, pair or graph."""


@dataclass(frozen=True)
class DataConvention:
    """Calls a model with a copy of a PyG graph that holds the tensors of the call.

    Attributes:
        data: The graph that gives all other attributes.
        call: How the model is called with a graph; None calls `model(data)`.
    """

    data: Data
    call: Call | None = None

    def without(self, name: str) -> DataConvention:
        """The same convention on a graph without one of its attributes."""
        data = copy.copy(self.data)
        del data[name]
        return DataConvention(data, self.call)

    def __call__(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """The model's output on the graph with these tensors."""
        data = copy.copy(self.data)
        for name, value in arguments.items():
            data[name] = value
        if isinstance(data, Batch) and isinstance(batch := arguments.get("batch"), Tensor):
            data._num_graphs = int(batch.max()) + 1 if batch.numel() else 0
        if "num_nodes" in self.data and isinstance(x := arguments.get("x"), Tensor):
            data.num_nodes = x.shape[0]
        return model(data) if self.call is None else self.call(model, data)


@dataclass(frozen=True)
class HeteroConvention:
    """Calls a model with a copy of a heterogeneous PyG graph that holds the tensors of the call.

    Attributes:
        data: The graph that gives all other attributes.
        call: How the model is called with a graph; None calls `model(data)`.
    """

    data: HeteroData
    call: Call | None = None

    def without(self, name: str) -> HeteroConvention:
        """The same convention on a graph without one of its attributes."""
        data = copy.copy(self.data)
        for store in data.stores:
            if name in store:
                del store[name]
        return HeteroConvention(data, self.call)

    def __call__(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """The model's output on the graph with these tensors."""
        data = copy.copy(self.data)
        for name, by_type in arguments.items():
            for kind, value in by_type.items():
                data[kind][name] = value
        for store in data.node_stores:
            if "num_nodes" in store and isinstance(x := store.get("x"), Tensor):
                store.num_nodes = x.shape[0]
        return model(data) if self.call is None else self.call(model, data)


def call_by_position(
    model: nn.Module, own: list[Parameter], found: dict[str, Any], edges: str, features: str | None, num_nodes: int
) -> ModelCall:
    """A call that passes the first arguments by position, as people call models, and the others by name."""
    leading = 0
    while leading < len(own) and own[leading].name in found and own[leading].kind is not Parameter.KEYWORD_ONLY:
        leading += 1
    names = [one.name for one in own if one.name in found]
    at = names.index
    return ModelCall(
        model,
        tuple(found[name] for name in names),
        tuple(names),
        leading,
        at(edges),
        None if features is None else at(features),
        num_nodes,
    )


def model_name(model: nn.Module) -> str:
    """The class of a model, behind wrappers."""
    return type(unwrapped(model)).__name__
