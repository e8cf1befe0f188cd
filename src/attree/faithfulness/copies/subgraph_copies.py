"""Copies of subgraphs side by side: the block-diagonal batches in which many edges are reduced at once.

What a node's output depends on is the subgraph of the edges that enter nodes fewer than L hops away. `Subgraphs` lists
these subgraphs for several targets. `Copies` lines up copies of them as one part of the graph that a model is called
on, one copy for each edge to reduce, and says which edges of the batch these are. A copy can also have several edges to
reduce, or none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.subject import Part
from attree.tensors.ragged import Rows, expand, find, group, row_of


@dataclass(frozen=True)
class Subgraphs:
    """A subgraph for each target, as ragged rows: subgraph k has the ids at `ptr[k]:ptr[k + 1]`.

    Attributes:
        graph: The graph.
        node_ptr: Bounds of the subgraphs in `nodes`.
        nodes: Node ids, ascending in each subgraph.
        edge_ptr: Bounds of the subgraphs in `edges`.
        edges: Positions in `graph.original_edge_index`, ascending in each subgraph.
        edge_index: Those edges with nodes numbered within their subgraph, [2, edges].
    """

    graph: Graph
    node_ptr: Tensor
    nodes: Tensor
    edge_ptr: Tensor
    edges: Tensor
    edge_index: Tensor

    @classmethod
    def entering(cls, graph: Graph, size: int, owner: Tensor, node: Tensor, rows: Rows) -> Subgraphs:
        """The edges that enter given nodes, and their ends.

        Args:
            graph: The graph.
            size: Number of subgraphs.
            owner: Subgraph that each given node belongs to.
            node: The given nodes.
            rows: `graph.original_edge_index` grouped by destination.
        """
        given, num_nodes = graph.original_edge_index, graph.num_nodes
        row, place = expand(rows.ptr, node)
        num_edges = max(given.shape[1], 1)
        key = (owner[row] * num_edges + rows.items[place]).sort().values
        which, edges = key // num_edges, key % num_edges
        known = torch.cat([owner * num_nodes + node, which * num_nodes + given[0, edges]]).unique()
        node_ptr = group(known // max(num_nodes, 1), size).ptr
        local = torch.searchsorted(known, which * num_nodes + given[:, edges]) - node_ptr[which]
        return cls(graph, node_ptr, known % max(num_nodes, 1), group(which, size).ptr, edges, local)

    @property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """Number of nodes and of edges of each subgraph."""
        return self.node_ptr.diff(), self.edge_ptr.diff()

    def find(self, which: Tensor, node: Tensor) -> Tensor:
        """Positions in `nodes` of given nodes of given subgraphs; -1 where the subgraph has no such node."""
        owner = row_of(self.node_ptr.diff())
        place, known = find(owner * self.graph.num_nodes + self.nodes, which * self.graph.num_nodes + node)
        return torch.where(known, place, -1)


class Copies:
    """Copies of some subgraphs as one part of the graph, in which each copy is a graph of its own.

    Nodes stand copy by copy, and so do edges; those of a heterogeneous graph stand type by type first, as the union of
    its types numbers them.

    Args:
        subgraphs: The subgraphs.
        which: The subgraph that each copy is of.
        reduced: The edges to reduce, as positions in `graph.edge_index`; None reduces none.
        where: The copy that each of them is reduced in; None with `reduced`.

    Attributes:
        part: The part that the model is called on.
    """

    def __init__(
        self, subgraphs: Subgraphs, which: Tensor, reduced: Tensor | None = None, where: Tensor | None = None
    ) -> None:
        self._subgraphs, self._which, self._reduced, self._where = subgraphs, which, reduced, where
        nodes_of, _ = subgraphs.sizes
        self._start = nodes_of[which].cumsum(0) - nodes_of[which]
        copy, place = expand(subgraphs.node_ptr, which)
        node = subgraphs.nodes[place]
        copy_of_edge, place = expand(subgraphs.edge_ptr, which)
        edge = subgraphs.edges[place]
        edge_index = subgraphs.edge_index[:, place] + self._start[copy_of_edge]
        types = subgraphs.graph.types
        self._moved: Tensor | None = None
        if types is not None:
            order = types.type_of_nodes(node).argsort(stable=True)
            self._moved = order.argsort()
            node, copy, edge_index = node[order], copy[order], self._moved[edge_index]
            order = types.type_of_edges(edge).argsort(stable=True)
            edge, copy_of_edge, edge_index = edge[order], copy_of_edge[order], edge_index[:, order]
        self._copy_of_edge = copy_of_edge
        self.part = Part(node, edge_index, edge, graph=copy, num_graphs=which.numel())

    @property
    def first_nodes(self) -> Tensor:
        """The id of one node of each copy."""
        return self._subgraphs.nodes[self._subgraphs.node_ptr[self._which]]

    def with_graphs(self, graph_of: Tensor | None, queries: Tensor | None) -> Part:
        """The part with the graph that each copy is of, and with the pairs of nodes to ask for."""
        return replace(self.part, graph_of=graph_of, queries=queries)

    def reduced_in(self, graph: Graph) -> Tensor:
        """Ids of the reduced edges in the graph of the part, `Graph.edge_index`."""
        if self._reduced is None or self._where is None:
            return self._which[:0]
        whole, edge = self._subgraphs.graph, self.part.edge
        assert edge is not None
        marked = (self._where * whole.num_edges + self._reduced).sort().values
        _, known = find(marked, self._copy_of_edge * whole.num_edges + whole.position[edge])
        is_loop = self._reduced >= whole.num_proper_edges
        loops = self._find(self._where[is_loop], self._reduced[is_loop] - whole.num_proper_edges)
        return torch.cat([graph.position[known], loops[loops >= 0] + graph.num_proper_edges])

    def nodes_of_copies(self, node: Tensor) -> Tensor:
        """Where in the part one given node of each copy is; -1 where the copy has no such node."""
        return self._find(torch.arange(self._which.numel(), device=self._which.device), node)

    def _find(self, copy: Tensor, node: Tensor) -> Tensor:
        """Where in the part given nodes of given copies are; -1 where the copy has no such node."""
        which = self._which[copy]
        place = self._subgraphs.find(which, node)
        found = place - self._subgraphs.node_ptr[which] + self._start[copy]
        if self._moved is not None and self._moved.numel():
            found = self._moved[found.clamp(min=0)]
        return torch.where(place >= 0, found, -1)
