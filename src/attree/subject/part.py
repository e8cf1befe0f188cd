"""A part of a graph: the nodes and edges that a model runs on instead of the whole graph.

Engines that run a model on a part of the graph, or on several copies of neighbourhoods at once, make a `Part`.
`ModelCall.on` cuts the arguments of the model to it.
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
