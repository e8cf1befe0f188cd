"""Arguments of a model of a heterogeneous graph: dicts by type, what they have rows for, and how to cut them.

The graph is the union of its types (see `attree.attention.graph.Types`): parts of it are named by the union's ids. A
model numbers nodes within their types instead, so cutting its arguments also numbers them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import EdgeType, Types
from attree.subject.arguments import ID_WORDS, Kind
from attree.subject.part import Part

Take = Callable[[Tensor, Tensor | None], Tensor]
"""Called as `take(value, index)`: rows of an argument; all rows where the index is None."""


def typed_kind(name: str, value: Any, types: Types) -> Kind:
    """Find out what one argument of a model of a heterogeneous graph has rows for.

    >>> types = Types.of({"user": 3, "item": 2}, {("user", "buys", "item"): 4})
    >>> typed_kind("x_dict", {"user": torch.zeros(3, 5)}, types)
    <Kind.NODE: 1>
    >>> typed_kind("edge_attr_dict", {("user", "buys", "item"): torch.zeros(4, 1)}, types)
    <Kind.EDGE: 2>
    """
    if isinstance(value, Tensor):
        return Kind.IDS if _are_ids(name, value) else Kind.OTHER
    if not isinstance(value, Mapping) or not value or not all(isinstance(one, Tensor) for one in value.values()):
        return Kind.OTHER
    if all(kind in types.node_types and _rows(one, len(types.nodes(kind))) for kind, one in value.items()):
        return Kind.BATCH if "batch" in name else Kind.NODE
    if all(kind in types.edge_types for kind in value):
        if all(_rows(one, len(types.edges(kind))) for kind, one in value.items()) and "index" not in name:
            return Kind.EDGE
        if all(_are_ids(name, one) for one in value.values()):
            return Kind.IDS
    return Kind.OTHER


def _rows(value: Tensor, count: int) -> bool:
    return value.dim() > 0 and value.shape[0] == count


def _are_ids(name: str, value: Tensor) -> bool:
    pairs = value.dim() == 2 and value.shape[0] == 2
    integer = value.dtype in (torch.int64, torch.int32)
    return integer and value.dim() > 0 and (pairs or any(word in name for word in ID_WORDS))


class TypedCut:
    """How the arguments of a model are cut to a part of a heterogeneous graph.

    Args:
        types: The types of the whole graph.
        part: The part, by the union's ids.
        take: Takes rows of arguments.
    """

    def __init__(self, types: Types, part: Part, take: Take) -> None:
        self._types, self._part, self._take = types, part, take
        self._type_of_node = types.type_of_nodes(part.node)
        count = types.edge_ptr[-1]
        self._edge = torch.arange(count, device=part.node.device) if part.edge is None else part.edge
        self._type_of_edge = types.type_of_edges(self._edge)

    @cached_property
    def number(self) -> Tensor:
        """For each node of the part, its number within its type there."""
        number = torch.empty_like(self._part.node)
        for place in range(len(self._types.node_types)):
            own = self._type_of_node == place
            number[own] = torch.arange(int(own.sum()), device=number.device)
        return number

    def count_like(self, positions: Tensor) -> int:
        """How many nodes of the part have the type of some of its nodes, which all have the same."""
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
        """One argument on the part."""
        part = self._part
        match kind:
            case Kind.NODE:
                return {one: self._take(rows, self._nodes(one)) for one, rows in value.items()}
            case Kind.BATCH:
                if part.graph is None:
                    return {one: rows[self._nodes(one)] for one, rows in value.items()}
                return {one: part.graph[self._is_node(one)] for one in value}
            case Kind.EDGE:
                return {one: self._take(rows, self._edges(one)) for one, rows in value.items()}
            case Kind.EDGES:
                return {one: self.number[part.edge_index[:, self._is_edge(one)]] for one in value}
            case Kind.IDS:
                return self._queries(value)
            case _:
                return value

    def _queries(self, value: Any) -> Any:
        """The queried pairs, numbered within their types; ids of other types are dropped."""
        queries = self._part.queries
        if queries is None:
            return value
        own = self.number[queries]
        if isinstance(value, Tensor):
            return own.view(value.shape[0], -1)
        ends = [self._types.node_types[int(kind)] for kind in self._type_of_node[queries[:, 0]]] if own.numel() else []
        return {one: own if [one[0], one[2]] == ends else rows[:, :0] for one, rows in value.items()}

    def _is_node(self, node_type: str) -> Tensor:
        return self._type_of_node == self._types.node_types.index(node_type)

    def _is_edge(self, edge_type: EdgeType) -> Tensor:
        return self._type_of_edge == self._types.edge_types.index(edge_type)

    def _nodes(self, node_type: str) -> Tensor:
        return self._part.node[self._is_node(node_type)] - self._types.nodes(node_type).start

    def _edges(self, edge_type: EdgeType) -> Tensor:
        return self._edge[self._is_edge(edge_type)] - self._types.edges(edge_type).start
