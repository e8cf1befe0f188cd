"""Arguments of a layer's `propagate`: what belongs to nodes, to edges, and to neither.

A layer without attention is run by its own `forward`, on rows too. Only its `propagate`, which reads edges, is
replaced. Everything before and after it (linear layers, root weights, norms) works node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.graph import Graph, plain
from attree.attention.instruments import is_edge_index
from attree.subject.part_check import NotRowwiseError

ABOUT_EDGES = frozenset({"edge_index", "index", "ptr", "size", "dim_size", "adj_t"})
"""Names of arguments of `message` that PyG derives from the edges and the numbers of nodes."""


def message_arguments(conv: MessagePassing) -> list[str]:
    """Return the names of the arguments of a layer's `message`, `aggregate` and `update`."""
    names = dict.fromkeys(_parameters(_function(conv.message))[1:])
    for method in (conv.aggregate, conv.update):
        names |= dict.fromkeys(_parameters(_function(method))[2:])
    return list(names)


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


@lru_cache(maxsize=1024)
def _parameters(function: Any) -> list[str]:
    return list(signature(function).parameters)


def node_arguments(conv: MessagePassing) -> set[str]:
    """Return the names of arguments of `propagate` that hold node features: those that are read as `_i` or `_j`."""
    return {name[:-2] for name in message_arguments(conv) if name[-2:] in ("_i", "_j")} - ABOUT_EDGES


@dataclass(frozen=True)
class MessageArguments:
    """Arguments of one call of `propagate`.

    Attributes:
        edge_index: The edges.
        nodes: Node features by name, at sources and at destinations; None on a side where there are none.
        edges: Tensors with one row per edge, by name.
        others: All other arguments, by name.
        has_types: Whether sources and destinations are nodes of one edge type, numbered separately.
    """

    edge_index: Any
    nodes: dict[str, tuple[Tensor | None, Tensor | None]]
    edges: dict[str, Tensor]
    others: dict[str, Any]
    has_types: bool = False

    @classmethod
    def read(
        cls, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any], has_types: bool
    ) -> MessageArguments:
        """Read the arguments of a call; raise if they are not those of a layer on a list of edges."""
        name = type(conv).__name__
        arguments = dict(kwargs)
        edge_index = plain(args[0] if args else arguments.pop("edge_index", None))
        if len(args) < 2:
            arguments.pop("size", None)
        if len(args) > 2 or not is_edge_index(edge_index):
            raise NotRowwiseError(f"{name} does not pass messages along edges that are a tensor")
        if conv.flow != "source_to_target":
            raise NotRowwiseError(f"{name} has flow {conv.flow!r}")
        names, of_nodes, nodes, edges, others = message_arguments(conv), node_arguments(conv), {}, {}, {}
        for key, value in arguments.items():
            if key in of_nodes and value is not None:
                sides = tuple(value) if isinstance(value, list | tuple) else _sides_of(value, key, names)
                if len(sides) != 2 or not all(
                    side is None or (isinstance(side, Tensor) and side.dim()) for side in sides
                ):
                    raise NotRowwiseError(f"{name} does not pass on features of nodes that are tensors")
                if any(side is not None and conv.node_dim not in (0, -side.dim()) for side in sides):
                    raise NotRowwiseError(f"{name} has its nodes in dimension {conv.node_dim}")
                nodes[key] = sides
            elif isinstance(value, Tensor) and value.dim() and value.shape[0] == edge_index.shape[1]:
                edges[key] = value
            else:
                others[key] = value
        if not any(source is not None for source, _ in nodes.values()):
            raise NotRowwiseError(f"{name} sends messages that read no features of their sources")
        return cls(edge_index, nodes, edges, others, has_types)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors with one row per node, each once."""
        return [tensor for tensor, _ in self._by_side]

    @property
    def sides(self) -> list[int]:
        """For each of `inputs`: 1 if it belongs to destinations of another numbering than the sources, else 0."""
        return [side for _, side in self._by_side]

    @property
    def num_sides(self) -> int:
        """2 if sources and destinations are numbered separately, else 1."""
        return 2 if self.has_types else 1

    @property
    def _by_side(self) -> list[tuple[Tensor, int]]:
        seen: dict[tuple[int, int], tuple[Tensor, int]] = {}
        for pair in self.nodes.values():
            for side, tensor in enumerate(pair):
                if tensor is not None:
                    place = side if self.has_types else 0
                    seen.setdefault((id(tensor), place), (tensor, place))
        return list(seen.values())

    def answer(self, outputs: Sequence[Tensor], weights: Tensor | None, graph: Graph) -> Tensor:
        """Return what `propagate` would return."""
        return outputs[0]


def _sides_of(value: Any, name: str, names: list[str]) -> tuple[Any, Any]:
    """Return one argument for both sides, or only for the one at which messages read it."""
    at_source, at_target = (f"{name}{end}" in names for end in ("_j", "_i"))
    return value if at_source else None, value if at_target else None


def given_edges(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the edges that a layer was called with: its first [2, E] id tensor; None if there is none."""
    return next((plain(value) for value in (*args, *kwargs.values()) if is_edge_index(plain(value))), None)


def given_weights(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the edge weights that a layer was called with, if its `forward` takes an `edge_weight`."""
    try:
        arguments = signature(type(conv).forward).bind(conv, *args, **kwargs).arguments
    except TypeError:
        return None
    weight = arguments.get("edge_weight")
    return weight if isinstance(weight, Tensor) and weight.dim() == 1 else None


def as_columns(values: Tensor, like: Tensor) -> Tensor:
    """Return one number per row as a tensor that multiplies rows of another tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))
