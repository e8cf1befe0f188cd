"""One call of a model, repeated on copies of subgraphs: which arguments go with nodes, which with edges."""

from __future__ import annotations

from enum import Enum, auto
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attree.errors import UnsupportedModelError
from attree.faithfulness.copies.subgraph_copies import Copies
from attree.faithfulness.exact.trace import exact_dtype


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
    """The call `model(x, edge_index, *args, **kwargs)`, and the same on copies of parts of the graph.

    Args:
        model: The model.
        inputs: The arguments it was called with.
        output: What it returned: class scores, one row per node, or per graph if the call has an argument `batch`.

    Attributes:
        logits: The class scores, in the most exact type of the device.
        itemsize: Bytes of one number in the model.
        batch: The graph of each node if the scores are those of graphs, else None.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, output: Any) -> None:
        self._inputs = inputs
        names = list(signature(model.forward).parameters)[2 : 2 + len(inputs.args)]
        names += [""] * (len(inputs.args) - len(names))
        self._args = [self._kind(name, value) for name, value in zip(names, inputs.args, strict=True)]
        self._kwargs = {name: self._kind(name, value) for name, value in inputs.kwargs.items()}

        kinds, values = [*self._args, *self._kwargs.values()], [*inputs.args, *inputs.kwargs.values()]
        batch = next((value for kind, value in zip(kinds, values, strict=True) if kind is Kind.BATCH), None)
        num_graphs = 0 if batch is None else int(batch.max()) + 1
        shape = tuple(output.shape) if isinstance(output, Tensor) else ()
        if len(shape) != 2 or shape[0] not in (inputs.x.shape[0], num_graphs) or shape[1] < 2:
            got = f"shape {shape}" if isinstance(output, Tensor) else type(output).__name__
            raise UnsupportedModelError(
                f"Expected {type(model).__name__} to return class scores [{inputs.x.shape[0]}, classes], one row per "
                f"node (or per graph, if given `batch`) of at least 2 classes, but got {got}."
            )
        self.batch: Tensor | None = batch if shape[0] == num_graphs else None
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        self.itemsize = output.element_size()
        self.logits = output.to(exact_dtype(output.device))

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

    def on(self, copies: Copies) -> Inputs:
        """The arguments of the same call on copies; each copy is a graph of its own."""

        def part(kind: Kind, value: Any) -> Any:
            match kind:
                case Kind.NODE:
                    return value[copies.node]
                case Kind.EDGE:
                    return value[copies.edge]
                case Kind.BATCH:
                    return copies.copy
                case Kind.COUNT:
                    return copies.part.numel()
                case Kind.OTHER:
                    return value

        return Inputs(
            self._inputs.x[copies.node],
            copies.edge_index,
            tuple(part(kind, value) for kind, value in zip(self._args, self._inputs.args, strict=True)),
            {name: part(kind, self._inputs.kwargs[name]) for name, kind in self._kwargs.items()},
        )

    def rows(self, copies: Copies, target: Tensor) -> Tensor:
        """Which row of the output on copies belongs to the target of each."""
        if self.batch is not None:
            return torch.arange(target.numel(), device=target.device)
        return copies.nodes_of_copies(target)
