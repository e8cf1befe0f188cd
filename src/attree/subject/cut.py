"""Cut the arguments of a model call to a part of the graph.

In a heterogeneous graph, a part uses the node and edge ids of the union of its types (`attree.attention.graph.Types`).
The model numbers nodes within their types, so its arguments are renumbered, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import EdgeType, Types
from attree.subject.arguments import Kind
from attree.subject.part import Part
from attree.tensors.ragged import pointers

Take = Callable[[Tensor, Tensor | None], Tensor]
"""Called as `take(value, index)`: returns rows of an argument, or all rows if the index is None."""


def take_index(value: Tensor, index: Tensor | None) -> Tensor:
    """Return rows of an argument by indexing."""
    return value if index is None else value[index]


class Cut:
    """Cuts the arguments of a model call to a part of a graph with one type of nodes and edges.

    Args:
        part: The part.
        take: Takes rows of arguments that have one row per node, edge or graph.
    """

    types: Types | None = None

    def __init__(self, part: Part, take: Take = take_index) -> None:
        self._part, self._take = part, take

    def cut(self, kind: Kind, value: Any) -> Any:
        """Return the value of one argument on the part."""
        part = self._part
        match kind:
            case Kind.NODE:
                return self._take(value, part.node)
            case Kind.EDGE:
                return self._take(value, part.edge)
            case Kind.EDGES:
                return part.edge_index
            case Kind.BATCH:
                return value[part.node] if part.graph is None else part.graph
            case Kind.GRAPH:
                return value if part.graph_of is None else self._take(value, part.graph_of)
            case Kind.COUNT:
                return value if part.num_graphs is None else part.num_graphs
            case Kind.PTR:
                return value if part.graph is None else pointers(part.graph.bincount(minlength=part.count))
            case Kind.IDS:
                return value if part.queries is None else part.queries.view(value.shape[0], -1)
            case Kind.OTHER:
                return value


class TypedCut:
    """Cuts the arguments of a model call to a part of a heterogeneous graph.

    Args:
        types: The types of the whole graph.
        part: The part, with ids of the union of types.
        take: Takes rows of arguments that have one row per node or edge.
    """

    def __init__(self, types: Types, part: Part, take: Take = take_index) -> None:
        self._types, self._part, self._take = types, part, take
        self._type_of_node = types.type_of_nodes(part.node)
        count = types.edge_ptr[-1]
        self._edge = torch.arange(count, device=part.node.device) if part.edge is None else part.edge
        self._type_of_edge = types.type_of_edges(self._edge)

    @cached_property
    def number(self) -> Tensor:
        """The number of each node of the part among the part's nodes of the same type."""
        number = torch.empty_like(self._part.node)
        for place in range(len(self._types.node_types)):
            has_type = self._type_of_node == place
            number[has_type] = torch.arange(int(has_type.sum()), device=number.device)
        return number

    def count_like(self, positions: Tensor) -> int:
        """Return the number of nodes of the part that have the type of the nodes at these positions (one type)."""
        return int((self._type_of_node == self._type_of_node[positions[:1]]).sum()) if positions.numel() else 0

    @property
    def types(self) -> Types:
        """The types of the part."""
        types = self._types
        nodes = self._type_of_node.bincount(minlength=len(types.node_types)).tolist()
        edges = self._type_of_edge.bincount(minlength=len(types.edge_types)).tolist()
        return Types.of(
            dict(zip(types.node_types, nodes, strict=True)), dict(zip(types.edge_types, edges, strict=True))
        )

    def cut(self, kind: Kind, value: Any) -> Any:
        """Return the value of one argument on the part."""
        part = self._part
        match kind:
            case Kind.NODE:
                return {type_name: self._take(rows, self._nodes(type_name)) for type_name, rows in value.items()}
            case Kind.BATCH:
                if part.graph is None:
                    return {type_name: rows[self._nodes(type_name)] for type_name, rows in value.items()}
                return {type_name: part.graph[self._is_node(type_name)] for type_name in value}
            case Kind.EDGE:
                return {type_name: self._take(rows, self._edges(type_name)) for type_name, rows in value.items()}
            case Kind.EDGES:
                return {type_name: self.number[part.edge_index[:, self._is_edge(type_name)]] for type_name in value}
            case Kind.IDS:
                return self._queries(value)
            case _:
                return value

    def _queries(self, value: Any) -> Any:
        """Return the queried pairs, numbered within their types; pairs of other types are dropped."""
        queries = self._part.queries
        if queries is None:
            return value
        numbers = self.number[queries]
        if isinstance(value, Tensor):
            return numbers.view(value.shape[0], -1)
        ends = (
            [self._types.node_types[int(kind)] for kind in self._type_of_node[queries[:, 0]]] if numbers.numel() else []
        )
        return {
            edge_type: numbers if [edge_type[0], edge_type[2]] == ends else rows[:, :0]
            for edge_type, rows in value.items()
        }

    def _is_node(self, node_type: str) -> Tensor:
        return self._type_of_node == self._types.node_types.index(node_type)

    def _is_edge(self, edge_type: EdgeType) -> Tensor:
        return self._type_of_edge == self._types.edge_types.index(edge_type)

    def _nodes(self, node_type: str) -> Tensor:
        return self._part.node[self._is_node(node_type)] - self._types.nodes(node_type).start

    def _edges(self, edge_type: EdgeType) -> Tensor:
        return self._edge[self._is_edge(edge_type)] - self._types.edges(edge_type).start
