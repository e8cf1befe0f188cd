"""One call of a model, repeated on parts of its graph: which arguments go with nodes, which with edges."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attree.errors import UnsupportedModelError
from attree.faithfulness.precision import exact_dtype


class Kind(Enum):
    """What an argument has one row for; the graph of each node is `BATCH`, the number of graphs `COUNT`."""

    NODE = auto()
    EDGE = auto()
    BATCH = auto()
    COUNT = auto()
    OTHER = auto()


class Inputs(NamedTuple):
    """All arguments of one call."""

    x: Tensor
    edge_index: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class ModelCall:
    """The call `model(x, edge_index, *args, **kwargs)`, and the same on other nodes and edges.

    Args:
        model: The model.
        inputs: The arguments it is called with.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self._model = model
        self._inputs = inputs
        names = list(signature(model.forward).parameters)[2 : 2 + len(inputs.args)]
        names += [""] * (len(inputs.args) - len(names))
        self._args = [self._kind(name, value) for name, value in zip(names, inputs.args, strict=True)]
        self._kwargs = {name: self._kind(name, value) for name, value in inputs.kwargs.items()}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kind of each further argument, positional ones first."""
        return (*self._args, *self._kwargs.values())

    @property
    def batch(self) -> Tensor | None:
        """The graph of each node, if that is one of the arguments."""
        values = (*self._inputs.args, *self._inputs.kwargs.values())
        return next((value for kind, value in zip(self.kinds, values, strict=True) if kind is Kind.BATCH), None)

    def read(self, output: Any) -> tuple[Tensor, Tensor | None]:
        """Class scores in the most exact type of the device, and the graph of each node if they are those of graphs.

        Raises:
            UnsupportedModelError: If the output is no class scores.
        """
        num_nodes, batch = self._inputs.x.shape[0], self.batch
        num_graphs = 0 if batch is None else int(batch.max()) + 1
        shape = tuple(output.shape) if isinstance(output, Tensor) else ()
        if len(shape) != 2 or shape[0] not in (num_nodes, num_graphs) or shape[1] < 2:
            got = f"shape {shape}" if isinstance(output, Tensor) else type(output).__name__
            raise UnsupportedModelError(
                f"Expected {type(self._model).__name__} to return class scores [{num_nodes}, classes], one row per "
                f"node (or per graph, if given `batch`) of at least 2 classes, but got {got}."
            )
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        return output.to(exact_dtype(output.device)), batch if shape[0] == num_graphs else None

    def _kind(self, name: str, value: Any) -> Kind:
        num_nodes, num_edges = self._inputs.x.shape[0], self._inputs.edge_index.shape[1]
        if name in ("batch_size", "num_graphs") and isinstance(value, int):
            return Kind.COUNT
        if not isinstance(value, Tensor) or value.dim() == 0 or num_nodes == 0:
            return Kind.OTHER
        if name == "batch" and value.shape == (num_nodes,) and value.dtype == torch.int64:
            return Kind.BATCH
        if value.shape[0] == num_edges and (num_edges != num_nodes or name.startswith("edge")):
            return Kind.EDGE
        return Kind.NODE if value.shape[0] == num_nodes else Kind.OTHER

    def on(
        self,
        edge_index: Tensor,
        node: Callable[[Tensor], Tensor],
        edge: Callable[[Tensor], Tensor],
        batch: Tensor | None,
        count: int | None,
    ) -> Inputs:
        """The arguments of the same call on other nodes and edges.

        Args:
            edge_index: The edges.
            node: What an argument with one row a node becomes.
            edge: What one with one row an edge becomes.
            batch: The graph of each node; None treats the argument as any with one row a node.
            count: The number of graphs; None leaves it.
        """

        def part(kind: Kind, value: Any) -> Any:
            match kind:
                case Kind.EDGE:
                    return edge(value)
                case Kind.NODE:
                    return node(value)
                case Kind.BATCH:
                    return node(value) if batch is None else batch
                case Kind.COUNT:
                    return value if count is None else count
                case Kind.OTHER:
                    return value

        args = tuple(part(kind, value) for kind, value in zip(self._args, self._inputs.args, strict=True))
        kwargs = {name: part(kind, self._inputs.kwargs[name]) for name, kind in self._kwargs.items()}
        return Inputs(node(self._inputs.x), edge_index, args, kwargs)
