"""The arguments of one call of a model, and how they are found in a PyG `Data`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.arguments import COUNT_NAMES, Kind, argument_kind
from attree.subject.data_forward import DataForward

HETEROGENEOUS = (
    "Expected a graph with one kind of node and edge, but got a heterogeneous one. "
    "`data.to_homogeneous()` makes one of it, for a model of one kind."
)
"""What is said of a graph with several kinds of nodes or edges."""

WHOLE = ("batch", "data")
"""What a `forward` calls its only argument where that is a whole graph or batch, whatever else has that name."""


@dataclass(frozen=True)
class ModelInputs:
    """All arguments of one call, `model(x, edge_index, *args, **kwargs)`.

    Attributes:
        x: Node features, or whatever the model takes first: one row per node.
        edge_index: The graph's edges [2, E].
        args: Further positional arguments.
        kwargs: Further keyword arguments.
        names: Names of the positional arguments, as far as the model's signature tells them; empty strings elsewhere.
    """

    x: Tensor
    edge_index: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> ModelInputs:
        """The arguments as a caller writes them."""
        for name, value in (("x", x), ("edge_index", edge_index)):
            if not isinstance(value, Tensor):
                kind = "heterogeneous graphs have several" if isinstance(value, dict) else type(value).__name__
                raise UnsupportedModelError(f"Expected argument `{name}` to be one tensor, but got others: {kind}.")
        expect(x.dim() >= 1, "x", "one row per node", f"a tensor of shape {tuple(x.shape)}")
        names = list(signature(model.forward).parameters)[2 : 2 + len(args)]
        names += [""] * (len(args) - len(names))
        return cls(x, edge_index, args, kwargs, tuple(names))

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.x.shape[0]

    def named(self) -> list[tuple[str, Any]]:
        """Further arguments with their names, positional ones first."""
        return [*zip(self.names, self.args, strict=True), *self.kwargs.items()]

    def kinds(self) -> list[Kind]:
        """What each of the further arguments belongs to, in the order of `named`."""
        num_edges = self.edge_index.shape[1]
        return [argument_kind(name, value, self.num_nodes, num_edges) for name, value in self.named()]

    def replaced(self, x: Tensor, edge_index: Tensor, change: Callable[[Kind, Any], Any]) -> ModelInputs:
        """The same call with other nodes and edges; `change(kind, value)` gives each further argument anew."""
        values = [change(kind, value) for kind, (_, value) in zip(self.kinds(), self.named(), strict=True)]
        args, rest = values[: len(self.args)], values[len(self.args) :]
        return ModelInputs(x, edge_index, tuple(args), dict(zip(self.kwargs, rest, strict=True)), self.names)

    def call(self, model: nn.Module) -> Any:
        """Call a model with these arguments."""
        return model(self.x, self.edge_index, *self.args, **self.kwargs)


def bind_data(model: nn.Module, data: Data) -> tuple[nn.Module, ModelInputs]:
    """Find a model's arguments in a graph, by name.

    Parameters of `forward` are looked up among the data's attributes; the first two, if they have other names, are
    the features and the edges. A model whose `forward` takes one argument that the data does not have is called with
    the data itself.

    Args:
        model: The model.
        data: One graph, or a batch of graphs.

    Returns:
        The model, wrapped if it takes the data whole, and its arguments.
    """
    _check_data(data)
    parameters = [one for one in signature(model.forward).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    required = [
        one for one in parameters if one.default is Parameter.empty and one.kind is not Parameter.VAR_POSITIONAL
    ]
    if len(required) == 1 and (required[0].name not in data or required[0].name in WHOLE):
        whole = DataForward(model, data)
        return whole, ModelInputs.of(whole, data.x, data.edge_index, **whole.attributes())
    first = [one.name for one in parameters[:2]]
    if len(first) < 2:
        raise UnsupportedModelError(
            f"Expected {type(model).__name__}.forward to take features and edges, or one `data`, but it takes "
            f"({', '.join(one.name for one in parameters)})."
        )
    x = data.get(first[0], data.x)
    edge_index = data.get(first[1], data.edge_index)
    kwargs: dict[str, Any] = {}
    for parameter in parameters[2:]:
        value = _look_up(data, parameter.name)
        if value is not None:
            kwargs[parameter.name] = value
        elif parameter in required:
            raise ArgumentError(
                f"Expected argument `data` to have `{parameter.name}`, which {type(model).__name__}.forward takes, but "
                f"it has {', '.join(data.keys())}."
            )
    return model, ModelInputs.of(model, x, edge_index, **kwargs)


def _look_up(data: Data, name: str) -> Any:
    """What a graph has under a parameter's name; None if nothing."""
    if name in COUNT_NAMES:
        return data.num_graphs if isinstance(data, Batch) else None
    value = data.get(name, None)
    if value is None and "batch" in name and isinstance(data, Batch):
        return data.batch
    return value


def _check_data(data: Any) -> None:
    if isinstance(data, HeteroData):
        raise UnsupportedModelError(HETEROGENEOUS)
    expect(isinstance(data, Data), "data", "a torch_geometric.data.Data or a Batch of them", type(data).__name__)
    for name in ("x", "edge_index"):
        given = data.get(name, None)
        expect(isinstance(given, torch.Tensor), "data", f"a graph with a tensor `{name}`", sorted(data.keys()))
