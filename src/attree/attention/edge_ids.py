"""Which edges of a graph a convolution runs on: the id of each of its edges in `Graph.edge_index`.

A convolution may drop, add or move self-loops, run on the edges of one type alone, or on those of several types in one
list of its own. Whoever reads or changes what happens on an edge inside a convolution asks here which edge it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import EdgeType, Graph, plain


def edge_ids(graph: Graph, given: Any, edge_index: Any) -> Tensor | None:
    """The id in `graph.edge_index` of each edge that a convolution passes messages along; None if it uses other edges.

    Args:
        graph: The graph that the model runs on.
        given: The edges that the convolution was called with: a tensor, or a dict by edge type.
        edge_index: The edges that it hands to `propagate` or `edge_updater`, [2, edges].
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
    """The edge type with these edges: the same tensor, memory or numbers; None if no type or several types match."""
    given, types = edge_index, graph.types
    edge_index = plain(edge_index)
    if types is None or not isinstance(edge_index, Tensor) or edge_index.dim() != 2:
        return None
    own = graph.typed_edges
    found = [kind for kind, edges in own.items() if edges is edge_index or edges is given]
    found = found or [kind for kind, edges in own.items() if edges.numel() and _same_memory(edges, edge_index)]
    found = found or [kind for kind, edges in own.items() if torch.equal(edges, edge_index)]
    return found[0] if len(found) == 1 else None


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())


def _one_type(graph: Graph, kind: EdgeType, edge_index: Tensor) -> Tensor | None:
    """Ids of the edges of one type, with or without self-loops that the convolution dropped or added."""
    types = graph.types
    assert types is not None
    own, first = graph.typed_edges[kind], types.edges(kind).start
    if edge_index.shape == own.shape and torch.equal(edge_index, own):
        return torch.arange(first, first + own.shape[1], device=graph.device)
    if kind[0] != kind[2]:
        return None
    proper = own[0] != own[1]
    start = types.nodes(kind[0]).start
    loops = torch.arange(len(types.nodes(kind[0])), device=graph.device) + graph.num_proper_edges + start
    # A loop that was given is an edge of its type, also where the convolution puts it elsewhere.
    loops[own[0, ~proper]] = (~proper).nonzero().view(-1) + first
    found = _with_loops(edge_index, own[:, proper])
    return None if found is None else torch.cat([proper.nonzero().view(-1) + first, loops])[found]


def _with_loops(edge_index: Tensor, proper: Tensor) -> Tensor | None:
    """Edge numbers with self-loops at the end: the other edges keep their order, loops follow node by node."""
    is_proper = edge_index[0] != edge_index[1]
    if not torch.equal(edge_index[:, is_proper], proper):
        return None
    return torch.where(is_proper, is_proper.cumsum(0) - 1, proper.shape[1] + edge_index[0])


def _several_types(graph: Graph, given: Mapping[Any, Any], edge_index: Tensor) -> Tensor | None:
    """Edge ids where the edges of several types are concatenated and each type has its own node offsets, as in HGT."""
    types = graph.types
    assert types is not None
    parts, begin = [], 0
    for kind, edges in given.items():
        edges = plain(edges)
        if kind not in types.edge_types or not isinstance(edges, Tensor):
            return None
        moved = edge_index[:, begin : begin + edges.shape[1]]
        own = graph.typed_edges[kind]
        if moved.shape != own.shape or edges.shape != own.shape:
            return None
        offset = moved - own
        if own.numel() and not (torch.equal(edges, own) and bool((offset == offset[:, :1]).all())):
            return None
        parts.append(torch.arange(types.edges(kind).start, types.edges(kind).stop, device=graph.device))
        begin += edges.shape[1]
    return torch.cat(parts) if parts and begin == edge_index.shape[1] else None
