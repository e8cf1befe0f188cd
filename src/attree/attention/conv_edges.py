"""The ids of the edges that a convolution uses, in the numbering of a graph.

A convolution may drop, add or move self-loops, and run on the edges of one type, or of several types in one list.
`edge_ids` finds these edges in `Graph.edge_index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import EdgeType, Graph, plain


def edge_ids(graph: Graph, given_edges: Any, edge_index: Any) -> Tensor | None:
    """Return the id of each edge of a convolution in `graph.edge_index`; None if it uses edges that are not there.

    Args:
        graph: The graph that the model runs on.
        given_edges: The edges that the convolution was called with: a tensor, or a dict by edge type.
        edge_index: The edges that the convolution passes to `propagate` or `edge_updater`, [2, edges].
    """
    edge_index = plain(edge_index)
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        return None
    if graph.types is None:
        return _with_loops(edge_index, graph.edge_index[:, : graph.num_proper_edges])
    if isinstance(given_edges, Mapping):
        kind = find_type(graph, edge_index)
        return _several_types(graph, given_edges, edge_index) if kind is None else _one_type(graph, kind, edge_index)
    kind = find_type(graph, given_edges)
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


def _several_types(graph: Graph, given_edges: Mapping[Any, Any], edge_index: Tensor) -> Tensor | None:
    """Return edge ids if the edges of several types are concatenated, each with its own node offsets, as in HGT."""

    types = graph.types
    assert types is not None
    parts, begin = [], 0
    for kind, edges in given_edges.items():
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
