"""Copies of subgraphs side by side: the block-diagonal batches in which many edges are reduced at once.

What a node's output depends on is the subgraph of the edges that enter nodes fewer than L hops away. `Subgraphs` lists
these parts for several targets, `Copies` lines up copies of them, one for each edge to reduce, and says where in them
that edge is. A copy can also have several edges to reduce, or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.tensors.ragged import Rows, expand, find, group, row_of


@dataclass(frozen=True)
class Subgraphs:
    """A part of the graph for each target, as ragged rows: part k has the ids at `ptr[k]:ptr[k + 1]`.

    Attributes:
        graph: The graph.
        node_ptr: Bounds of the parts in `nodes`.
        nodes: Node ids, ascending in each part.
        edge_ptr: Bounds of the parts in `edges`.
        edges: Positions in `graph.original_edge_index`, ascending in each part.
        edge_index: Those edges with nodes numbered within their part, [2, edges].
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
            size: Number of parts.
            owner: Part that each given node belongs to.
            node: The given nodes.
            rows: `graph.original_edge_index` grouped by destination.
        """
        given, num_nodes = graph.original_edge_index, graph.num_nodes
        row, place = expand(rows.ptr, node)
        num_edges = max(given.shape[1], 1)
        key = (owner[row] * num_edges + rows.items[place]).sort().values
        part, edges = key // num_edges, key % num_edges
        known = torch.cat([owner * num_nodes + node, part * num_nodes + given[0, edges]]).unique()
        node_ptr = group(known // max(num_nodes, 1), size).ptr
        local = torch.searchsorted(known, part * num_nodes + given[:, edges]) - node_ptr[part]
        return cls(graph, node_ptr, known % max(num_nodes, 1), group(part, size).ptr, edges, local)

    @property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """Number of nodes and of edges of each part."""
        return self.node_ptr.diff(), self.edge_ptr.diff()

    def find(self, part: Tensor, node: Tensor) -> Tensor:
        """Positions in `nodes` of given nodes of given parts; -1 where the part has no such node."""
        owner = row_of(self.node_ptr.diff())
        place, known = find(owner * self.graph.num_nodes + self.nodes, part * self.graph.num_nodes + node)
        return torch.where(known, place, -1)


class Copies:
    """Copies of some parts, side by side.

    Args:
        subgraphs: The parts.
        part: Which part each copy is of.
        reduced: The edges to reduce, as positions in `graph.edge_index`; None reduces none.
        where: The copy that each of them is reduced in; None with `reduced`.

    Attributes:
        node: Node id behind each node of the batch.
        edge: Position in `graph.original_edge_index` behind each edge of the batch.
        edge_index: The batch's edges.
        copy: The copy that each node belongs to.
        start: First node of each copy.
    """

    def __init__(
        self, subgraphs: Subgraphs, part: Tensor, reduced: Tensor | None = None, where: Tensor | None = None
    ) -> None:
        self.subgraphs = subgraphs
        self.part = part
        nodes_of, _ = subgraphs.sizes
        self.start = nodes_of[part].cumsum(0) - nodes_of[part]
        self.copy, place = expand(subgraphs.node_ptr, part)
        self.node = subgraphs.nodes[place]
        copy_of_edge, place = expand(subgraphs.edge_ptr, part)
        self.edge = subgraphs.edges[place]
        self.edge_index = subgraphs.edge_index[:, place] + self.start[copy_of_edge]
        proper = self.edge_index[0] != self.edge_index[1]
        self.proper_edges = self.edge_index[:, proper]
        none = part.new_zeros(0)
        self._proper_reduced, self._reduced_loop = none, torch.zeros_like(self.node, dtype=torch.bool)
        if reduced is not None and where is not None:
            self._mark(reduced, where, copy_of_edge[proper], self.edge[proper])

    def _mark(self, reduced: Tensor, where: Tensor, copy: Tensor, edge: Tensor) -> None:
        graph = self.subgraphs.graph
        marked = (where * graph.num_edges + reduced).sort().values
        _, known = find(marked, copy * graph.num_edges + graph.position[edge])
        self._proper_reduced = known.nonzero().view(-1)
        is_loop = reduced >= graph.num_proper_edges
        place = self._find(where[is_loop], reduced[is_loop] - graph.num_proper_edges)
        self._reduced_loop[place[place >= 0]] = True

    def nodes_of_copies(self, node: Tensor) -> Tensor:
        """Where in the batch one given node of each copy is; -1 where the copy has no such node."""
        return self._find(torch.arange(self.part.numel(), device=self.part.device), node)

    def _find(self, copy: Tensor, node: Tensor) -> Tensor:
        """Where in the batch given nodes of given copies are; -1 where the copy has no such node."""
        part = self.part[copy]
        place = self.subgraphs.find(part, node)
        return torch.where(place >= 0, place - self.subgraphs.node_ptr[part] + self.start[copy], -1)

    def reduced_in(self, edge_index: Tensor) -> Tensor | None:
        """Positions of the reduced edges in a layer's own edge list; None if the list is not of this batch.

        Layers may drop, add or move self-loops; the other edges must be those of the batch, in their order. A reduced
        self-loop is found as often as the layer has it, which may be never.
        """
        proper = edge_index[0] != edge_index[1]
        if not torch.equal(edge_index[:, proper], self.proper_edges):
            return None
        loops = ~proper & self._reduced_loop[edge_index[0]]
        return torch.cat([proper.nonzero().view(-1)[self._proper_reduced], loops.nonzero().view(-1)])
