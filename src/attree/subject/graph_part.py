"""A part of a graph that a model runs on instead of the whole, and the model's arguments cut to it.

Engines that run a model on a part of the graph, or on several copies of neighbourhoods at once, make a `Part`.
`ModelCall.on` cuts the arguments of the model to it.

In a heterogeneous graph, a part uses the node and edge ids of the union of its types (`attree.attention.graph.Types`).
The model numbers nodes within their types, so its arguments are renumbered, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attree.attention.graph import EdgeType, Graph, Types
from attree.subject.arguments import Kind
from attree.tensors.arrays import expand, find, pointers


@dataclass(frozen=True)
class Part:
    """Nodes and edges of a graph on which a model is called, as one graph or as several separate graphs.

    No edge connects two graphs of a part. A node of the whole graph can be in several of them. In a heterogeneous
    graph, ids are those of the union of its types, and nodes can be in any order.

    Attributes:
        node: The id of each node in the whole graph.
        edge_index: The edges of the part, as positions in `node`.
        edge: The position of each edge in the given edge list; None if the part has all edges in the given order.
        graph: The graph of the part that each node belongs to, numbered from 0; None keeps the graphs of the whole.
        graph_of: The id that each graph of the part has in the whole graph; None if `graph` is None or there is no id.
        num_graphs: Number of graphs of the part; None if `graph` is None.
        queries: For models that take pairs of nodes: one pair per graph, as positions in `node`; None for no pairs.
        target: For node-level models: the target of each graph of the part, as a position in `node`; otherwise None.
    """

    node: Tensor
    edge_index: Tensor
    edge: Tensor | None = None
    graph: Tensor | None = None
    graph_of: Tensor | None = None
    num_graphs: int | None = None
    queries: Tensor | None = None
    target: Tensor | None = None

    @classmethod
    def entering(cls, graph: Graph, count: int, owner: Tensor, node: Tensor, *, induced: bool = False) -> Part:
        """Return one graph per target: the edges that enter its given nodes, and the nodes at both ends.

        Args:
            graph: The whole graph.
            count: Number of targets.
            owner: The target of each given node, ascending.
            node: The given nodes.
            induced: Only use edges that also start at a given node of the same target.
        """
        rows, stride = graph.given_entering, max(graph.num_nodes, 1)
        row, place = expand(rows.ptr, node)
        copy, edge = owner[row], rows.items[place]
        ends = graph.original_edge_index[:, edge] + copy * stride
        inner = owner * stride + node
        if induced:
            inside = find(inner.sort().values, ends[0])[1]
            edge, ends = edge[inside], ends[:, inside]
        nodes = torch.cat([inner, ends[0]]).unique()
        edge_index = torch.searchsorted(nodes, ends)
        return cls(nodes % stride, edge_index, edge, graph=nodes // stride, num_graphs=count)

    @classmethod
    def around(cls, graph: Graph, centres: Tensor, hops: int) -> Part:
        """Return one graph: the nodes within `hops` of some centres, and the edges that enter nodes within `hops` - 1.

        Nodes and edges are in the order of the whole graph.

        Args:
            graph: The whole graph.
            centres: The central nodes.
            hops: Number of hops, against the direction of edges.
        """
        rows, ends = graph.given_entering, graph.original_edge_index
        place = torch.full((graph.num_nodes,), -1, device=graph.device)
        place[centres] = 0
        outermost, edges = centres, [centres[:0]]
        for _ in range(hops):
            edges.append(rows.items[expand(rows.ptr, outermost)[1]])
            reached = ends[0, edges[-1]]
            outermost = reached[place[reached] < 0].unique()
            place[outermost] = 0
        node, edge = (place == 0).nonzero().view(-1), torch.cat(edges).sort().values
        place[node] = torch.arange(node.numel(), device=graph.device)
        return cls(node, place[ends[:, edge]], edge)

    @property
    def count(self) -> int:
        """Number of graphs of the part."""
        return self.num_graphs or 0

    @cached_property
    def edge_graph(self) -> Tensor:
        """The graph of the part that each edge belongs to."""
        assert self.graph is not None
        return self.graph[self.edge_index[1]]

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """First node and first edge of each graph (pointers); nodes and edges must be sorted by graph."""
        assert self.graph is not None
        nodes, edges = (pointers(owner.bincount(minlength=self.count)) for owner in (self.graph, self.edge_graph))
        return nodes, edges

    def take(self, which: Tensor, types: Types | None = None) -> Part:
        """Return copies of some graphs of the part, in the given order; this part must be sorted by graph.

        Args:
            which: The graphs.
            types: The types of a heterogeneous graph; nodes and edges of the result are then sorted by type.
        """
        assert self.edge is not None
        nodes, edges = self.bounds
        sizes = nodes.diff()[which]
        shift = sizes.cumsum(0) - sizes - nodes[which]
        copy, place = expand(nodes, which)
        edge_copy, edge_place = expand(edges, which)
        part = Part(
            self.node[place],
            self.edge_index[:, edge_place] + shift[edge_copy],
            self.edge[edge_place],
            copy,
            None if self.graph_of is None else self.graph_of[which],
            which.numel(),
            None if self.queries is None else self.queries[:, which] + shift,
            None if self.target is None else self.target[which] + shift,
        )
        return part if types is None else part._by_type(types)

    def _by_type(self, types: Types) -> Part:
        """Return the same part with nodes and edges sorted by type, as in a union of types."""
        assert self.graph is not None
        assert self.edge is not None
        nodes = types.type_of_nodes(self.node).argsort(stable=True)
        edges = types.type_of_edges(self.edge).argsort(stable=True)
        moved = nodes.argsort()
        return replace(
            self,
            node=self.node[nodes],
            edge_index=moved[self.edge_index[:, edges]],
            edge=self.edge[edges],
            graph=self.graph[nodes],
            queries=None if self.queries is None else moved[self.queries],
            target=None if self.target is None else moved[self.target],
        )

    def find(self, graph: Tensor, node: Tensor) -> Tensor:
        """Return the positions of nodes in given graphs of the part; -1 if the graph does not have the node."""
        keys, order = self._keys
        place, is_there = find(keys, graph * self._stride + node)
        return torch.where(is_there & (node < self._stride), place if order is None else order[place], -1)

    @cached_property
    def _stride(self) -> int:
        return int(self.node.max()) + 1 if self.node.numel() else 1

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor | None]:
        """Ascending keys, one per (graph, node), and their positions; None if the nodes are in this order already."""
        assert self.graph is not None
        keys = self.graph * self._stride + self.node
        if bool((keys.diff() > 0).all()):
            return keys, None
        order = keys.argsort()
        return keys[order], order

    def looped_ids(self, whole: Graph, part_graph: Graph, copy: Tensor, edges: Tensor) -> Tensor:
        """Return the ids of some edges in the graph of the part; edges that the part does not have are left out.

        Args:
            whole: The whole graph.
            part_graph: The graph of the model's call on the part, `ModelCall.graph`.
            copy: For each edge, the graph of the part in which to look it up.
            edges: Edge ids: positions in `whole.edge_index`.
        """

        assert self.edge is not None
        keys = (copy * whole.num_edges + edges).sort().values
        _, is_reduced = find(keys, self.edge_graph * whole.num_edges + whole.position[self.edge])
        is_loop = edges >= whole.num_proper_edges
        loops = self.find(copy[is_loop], edges[is_loop] - whole.num_proper_edges)
        return torch.cat([part_graph.position[is_reduced], loops[loops >= 0] + part_graph.num_proper_edges])


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
