"""The edges that a convolution uses: hooks that see its edges and messages, and the ids of its edges in a graph.

A convolution may drop, add or move self-loops, and run on the edges of one type, or of several types in one list.
`edge_ids` finds these edges in `Graph.edge_index`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, remove_self_loops

from attree.attention.graph import EdgeType, Graph, plain
from attree.attention.instrument import LayerCall, within_relations
from attree.errors import UnsupportedModelError


class EdgeHook:
    """Tracks the edges of the running call of each convolution.

    A convolution passes its edges, with the self-loops that it adds, to `edge_updater` and `propagate`. If it calls its
    softmax earlier, in `forward`, its edges are those it was called with, with or without self-loops: the list with as
    many edges as scores. `propagate` must then get the same list.
    """

    def __init__(self) -> None:
        self._given: dict[MessagePassing, tuple[Any, int | None]] = {}
        self._apart: set[MessagePassing] = set()
        self._seen: dict[MessagePassing, Tensor] = {}
        self._assumed: dict[MessagePassing, Tensor] = {}
        self._relations: dict[MessagePassing, tuple[Tensor, int]] = {}

    def given(self, conv: MessagePassing) -> Any:
        """Return the edges that a convolution was called with: a tensor, or a dict by edge type; None if none."""
        return self._given.get(conv, (None, None))[0]

    def has_two_node_sets(self, conv: MessagePassing) -> bool:
        """Whether sources and destinations of the running call have separate numbers, as with different node types."""
        return conv in self._apart

    def scored(self, conv: MessagePassing, num_scores: int) -> Tensor | None:
        """Return the edges that a convolution is scoring; None if no list has as many edges as scores."""
        if conv in self._seen:
            edges = self._seen[conv]
            return edges if edges.shape[1] == num_scores else None
        for edges in self._possible(conv):
            if edges.shape[1] == num_scores:
                self._assumed[conv] = edges
                return edges
        return None

    def next_relation(self, conv: MessagePassing) -> Tensor | None:
        """Return a mask of the edges of the next relation, if a convolution has one softmax per relation; else None.

        RGATConv calls its softmaxes in the order of relations, so this is called once for each of them.
        """
        if conv not in self._relations:
            return None
        edge_type, number = self._relations[conv]
        self._relations[conv] = edge_type, number + 1
        return edge_type == number

    def _possible(self, conv: MessagePassing) -> Iterator[Tensor]:
        edges, num_nodes = self._given.get(conv, (None, None))
        if isinstance(edges, Tensor):
            yield edges
            yield add_self_loops(remove_self_loops(edges)[0], num_nodes=num_nodes)[0]
            yield add_self_loops(edges, num_nodes=num_nodes)[0]

    def begin(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook before a call: record the edges that the convolution is called with."""
        call = LayerCall(conv, "", 0, args, kwargs)
        features = call.features
        (self._apart.add if isinstance(features, tuple | list | dict) else self._apart.discard)(conv)
        features = features[0] if isinstance(features, tuple | list) else features
        self._given[conv] = plain(call.given_edges), features.shape[0] if isinstance(features, Tensor) else None
        self._seen.pop(conv, None)
        self._assumed.pop(conv, None)

    def see(self, conv: MessagePassing, inputs: Any) -> None:
        """Hook before `edge_updater` and `propagate`: record the edges that the convolution uses."""
        edges = plain(inputs[0])
        assumed = self._assumed.pop(conv, None)
        if assumed is not None and not (isinstance(edges, Tensor) and torch.equal(assumed, edges)):
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__}, which calls its softmax before it passes messages, to pass them "
                "along the edges that it was given, with or without self-loops, but it passes them along others."
            )
        self._seen[conv] = edges
        if within_relations(conv):
            self._relations[conv] = inputs[-1]["edge_type"], 0


@contextmanager
def hook_edges(convs: Iterable[MessagePassing], hook: EdgeHook) -> Iterator[None]:
    """While open, the hook sees the edges of these convolutions."""
    with ExitStack() as stack:
        for conv in convs:
            stack.callback(conv.register_forward_pre_hook(hook.begin, with_kwargs=True).remove)
            stack.callback(conv.register_edge_update_forward_pre_hook(hook.see).remove)
            stack.callback(conv.register_propagate_forward_pre_hook(hook.see).remove)
        yield


def edge_ids(graph: Graph, given: Any, edge_index: Any) -> Tensor | None:
    """Return the id of each edge of a convolution in `graph.edge_index`; None if it uses edges that are not there.

    Args:
        graph: The graph that the model runs on.
        given: The edges that the convolution was called with: a tensor, or a dict by edge type.
        edge_index: The edges that the convolution passes to `propagate` or `edge_updater`, [2, edges].
    """
    edge_index = plain(edge_index)
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        return None
    if graph.types is None:
        return _with_loops(edge_index, graph.edge_index[:, : graph.num_proper_edges])
    if isinstance(given, Mapping):
        kind = find_type(graph, edge_index)
        return _several_types(graph, given, edge_index) if kind is None else _one_type(graph, kind, edge_index)
    kind = find_type(graph, given)
    return None if kind is None else _one_type(graph, kind, edge_index)


def find_type(graph: Graph, edge_index: Any) -> EdgeType | None:
    """Return the edge type with these edges: the same tensor, memory or values; None if no or several types match."""
    same_object, types = edge_index, graph.types
    edge_index = plain(edge_index)
    if types is None or not isinstance(edge_index, Tensor) or edge_index.dim() != 2:
        return None
    typed_edges = graph.typed_edges
    matching = [kind for kind, edges in typed_edges.items() if edges is edge_index or edges is same_object]
    matching = matching or [
        kind for kind, edges in typed_edges.items() if edges.numel() and _same_memory(edges, edge_index)
    ]
    matching = matching or [kind for kind, edges in typed_edges.items() if torch.equal(edges, edge_index)]
    return matching[0] if len(matching) == 1 else None


def _same_memory(left: Tensor, right: Tensor) -> bool:
    return (left.data_ptr(), left.shape, left.stride()) == (right.data_ptr(), right.shape, right.stride())


def _one_type(graph: Graph, kind: EdgeType, edge_index: Tensor) -> Tensor | None:
    """Return the ids of the edges of one type; the convolution may have dropped or added self-loops."""
    types = graph.types
    assert types is not None
    typed_edges, first = graph.typed_edges[kind], types.edges(kind).start
    if edge_index.shape == typed_edges.shape and torch.equal(edge_index, typed_edges):
        return torch.arange(first, first + typed_edges.shape[1], device=graph.device)
    if kind[0] != kind[2]:
        return None
    proper = typed_edges[0] != typed_edges[1]
    start = types.nodes(kind[0]).start
    loops = torch.arange(len(types.nodes(kind[0])), device=graph.device) + graph.num_proper_edges + start
    # A given self-loop is an edge of its type, even if the convolution moves it to the end.
    loops[typed_edges[0, ~proper]] = (~proper).nonzero().view(-1) + first
    numbers = _with_loops(edge_index, typed_edges[:, proper])
    return None if numbers is None else torch.cat([proper.nonzero().view(-1) + first, loops])[numbers]


def _with_loops(edge_index: Tensor, proper: Tensor) -> Tensor | None:
    """Return edge numbers in which self-loops come last, in the order of nodes; other edges keep their order."""
    is_proper = edge_index[0] != edge_index[1]
    if not torch.equal(edge_index[:, is_proper], proper):
        return None
    return torch.where(is_proper, is_proper.cumsum(0) - 1, proper.shape[1] + edge_index[0])


def _several_types(graph: Graph, given: Mapping[Any, Any], edge_index: Tensor) -> Tensor | None:
    """Return edge ids if the edges of several types are concatenated, each with its own node offsets, as in HGT."""

    types = graph.types
    assert types is not None
    parts, begin = [], 0
    for kind, edges in given.items():
        edges = plain(edges)
        if kind not in types.edge_types or not isinstance(edges, Tensor):
            return None
        moved = edge_index[:, begin : begin + edges.shape[1]]
        typed_edges = graph.typed_edges[kind]
        if moved.shape != typed_edges.shape or edges.shape != typed_edges.shape:
            return None
        offset = moved - typed_edges
        if typed_edges.numel() and not (torch.equal(edges, typed_edges) and bool((offset == offset[:, :1]).all())):
            return None
        parts.append(torch.arange(types.edges(kind).start, types.edges(kind).stop, device=graph.device))
        begin += edges.shape[1]
    return torch.cat(parts) if parts and begin == edge_index.shape[1] else None
