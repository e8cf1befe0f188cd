"""A part of a graph: the nodes and edges that a model runs on instead of the whole graph.

Every engine that runs a model on less than its graph, or on several copies of a neighbourhood at once, says so with a
`Part`, and `ModelCall.on` cuts the arguments of the model to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import Graph, Types
from attree.tensors.ragged import expand, find, pointers


@dataclass(frozen=True)
class Part:
    """Nodes and edges of a graph, or several such sets side by side, that a model is called on.

    Sets side by side are separate graphs: no edge joins them, and a node of the whole graph can be in many of them.
    In a heterogeneous graph, ids are those of the union of its types, and nodes can stand in any order.

    Attributes:
        node: The node id behind each node of the part.
        edge_index: The part's edges, between positions in `node`.
        edge: For each edge of the part, its position in the given edge list; None if they are all, in their order.
        graph: The graph of the part that each node belongs to, numbered from 0; None leaves nodes in the graphs that
            they are in.
        graph_of: The graph id behind each graph of the part; None with `graph`, or where graphs have no ids.
        num_graphs: How many graphs the part has; None with `graph`.
        queries: Where the model takes pairs of nodes: the pairs to ask for, as positions in `node`, one a graph; None
            asks for none.
        target: The node that each graph of the part was cut for, as a position in `node`; None if that is a pair or
            the graph itself.
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
        """For each of several targets, the edges that enter some nodes, and the nodes at their ends.

        Args:
            graph: The whole graph.
            count: Number of targets; each becomes a graph of the part.
            owner: The target that each given node belongs to, ascending.
            node: The given nodes.
            induced: Leave out edges that do not start at a given node of the same target.
        """
        rows, stride = graph.given_entering, max(graph.num_nodes, 1)
        row, place = expand(rows.ptr, node)
        copy, edge = owner[row], rows.items[place]
        ends = graph.original_edge_index[:, edge] + copy * stride
        given = owner * stride + node
        if induced:
            inside = find(given.sort().values, ends[0])[1]
            edge, ends = edge[inside], ends[:, inside]
        known = torch.cat([given, ends[0]]).unique()
        edge_index = torch.searchsorted(known, ends)
        return cls(known % stride, edge_index, edge, graph=known // stride, num_graphs=count)

    @classmethod
    def around(cls, graph: Graph, centres: Tensor, hops: int) -> Part:
        """One graph: the nodes within `hops` of some centres, and the edges that enter the nodes within `hops` - 1.

        Nodes and edges stand in the order of the whole graph.

        Args:
            graph: The whole graph.
            centres: The nodes in the middle.
            hops: How far to go, against the direction of edges.
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
        """Where the nodes and the edges of each graph begin; both must stand graph by graph."""
        assert self.graph is not None
        nodes, edges = (pointers(owner.bincount(minlength=self.count)) for owner in (self.graph, self.edge_graph))
        return nodes, edges

    def take(self, which: Tensor, types: Types | None = None) -> Part:
        """Copies of some graphs of the part, in the given order; the nodes of this part must stand graph by graph.

        Args:
            which: The graphs.
            types: The types of the whole graph: the nodes and edges of the result then stand type by type.
        """
        assert self.edge is not None
        nodes, edges = self.bounds
        sizes = nodes.diff()[which]
        shift = sizes.cumsum(0) - sizes - nodes[which]
        copy, place = expand(nodes, which)
        edge_copy, edge_place = expand(edges, which)
        taken = Part(
            self.node[place],
            self.edge_index[:, edge_place] + shift[edge_copy],
            self.edge[edge_place],
            copy,
            None if self.graph_of is None else self.graph_of[which],
            which.numel(),
            None if self.queries is None else self.queries[:, which] + shift,
            None if self.target is None else self.target[which] + shift,
        )
        return taken if types is None else taken._by_type(types)

    def _by_type(self, types: Types) -> Part:
        """The same part with its nodes and edges type by type, as a union of types numbers them."""
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
        """Where given nodes are in given graphs of the part; -1 where the graph has no such node."""
        keys, order = self._keys
        place, known = find(keys, graph * self._stride + node)
        return torch.where(known & (node < self._stride), place if order is None else order[place], -1)

    @cached_property
    def _stride(self) -> int:
        return int(self.node.max()) + 1 if self.node.numel() else 1

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor | None]:
        """One number for each (graph, node), ascending, and where it stands; None if all stand in this order."""
        assert self.graph is not None
        keys = self.graph * self._stride + self.node
        if bool((keys.diff() > 0).all()):
            return keys, None
        order = keys.argsort()
        return keys[order], order

    def looped_ids(self, whole: Graph, own: Graph, copy: Tensor, edges: Tensor) -> Tensor:
        """The ids that some edges have in the looped graph of the part.

        Args:
            whole: The whole graph.
            own: The graph that the model sees on the part, `ModelCall.graph`.
            copy: For each edge, the graph of the part that it is asked for in.
            edges: Positions in `whole.edge_index`. Edges that a graph does not have are left out.
        """
        assert self.edge is not None
        wanted = (copy * whole.num_edges + edges).sort().values
        _, known = find(wanted, self.edge_graph * whole.num_edges + whole.position[self.edge])
        is_loop = edges >= whole.num_proper_edges
        loops = self.find(copy[is_loop], edges[is_loop] - whole.num_proper_edges)
        return torch.cat([own.position[known], loops[loops >= 0] + own.num_proper_edges])
