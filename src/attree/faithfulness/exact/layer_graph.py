"""Edges that one call of a convolution runs on, in the call's own numbering.

In a graph of one type, every call has all edges of the graph with self-loops. In the union of several types, a call has
the edges of one relation, or of all relations (HGT), and two lists of nodes:

- *sources*: the nodes that messages come from. A convolution of one relation has the nodes of the source type. HGT
  projects nodes separately for each relation, so it has one list of source nodes per relation; such a list is a
  *block*.
- *destinations*: the nodes that messages go to, of one type or of all types.

Elsewhere, rows, records and reduced edges use ids of the union; this module converts them to a call's numbering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import EdgeType, Graph
from attree.tensors.arrays import Rows, group


@dataclass(frozen=True)
class Blocks:
    """Assignment of the features given to a call of a heterogeneous model to its sources and destinations.

    Attributes:
        inputs: The node type of each features tensor that the call is given.
        relations: The relation of each block of sources.
        sources: For each block, the position of its features in `inputs`.
        targets: For each destination type, the position of its features in `inputs`.
    """

    inputs: tuple[str, ...]
    relations: tuple[EdgeType, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class LayerGraph:
    """Edges, sources and destinations of one call, in the call's own numbering.

    Args:
        graph: The graph with self-loops, or the union of types.
        edge: Id in `graph.edge_index` of each edge of the call; None if the call has all edges, in order.
        source: The source of each edge; None with `edge`.
        nodes: Ids in `graph` of the destinations, which are consecutive; None with `edge`.
        blocks: How features become sources and destinations; None for a graph of one type.
        block: The block of each edge's source; None if there is only one.
    """

    def __init__(
        self,
        graph: Graph,
        edge: Tensor | None = None,
        source: Tensor | None = None,
        nodes: range | None = None,
        blocks: Blocks | None = None,
        block: Tensor | None = None,
    ) -> None:
        self.graph = graph
        self.edge = edge
        self.blocks = blocks
        self.block = block
        self.device = graph.device
        if edge is None or source is None or nodes is None:
            self.source, self.destination = graph.source, graph.destination
            self.num_nodes, self.num_edges, self._first = graph.num_nodes, graph.num_edges, 0
            return
        self.source = source
        self.num_nodes, self.num_edges, self._first = len(nodes), edge.numel(), nodes.start
        self.destination = graph.destination[edge] - nodes.start

    @property
    def source_node(self) -> Tensor:
        """The graph's id of each edge's source node."""
        return self.source if self.edge is None else self.graph.source[self.edge]

    @property
    def destination_node(self) -> Tensor:
        """The graph's id of each edge's destination node."""
        return self.destination if self.edge is None else self.graph.destination[self.edge]

    @cached_property
    def _number(self) -> Tensor | None:
        """The call's number of each edge of the graph, -1 if the call does not have it; None if numbers are equal."""
        if self.edge is None:
            return None
        number = torch.full((self.graph.num_edges,), -1, dtype=torch.int64, device=self.device)
        number[self.edge] = torch.arange(self.num_edges, device=self.device)
        return number

    def edges(self, ids: Tensor) -> Tensor:
        """Return the call's numbers of some edges of the graph; -1 for edges that the call does not have."""
        return ids if self._number is None else self._number[ids]

    def nodes(self, ids: Tensor) -> Tensor:
        """Return the call's destination numbers of some nodes of the graph."""
        return ids - self._first if self._first else ids

    def enters(self, edges: Tensor, nodes: Tensor) -> Tensor:
        """Whether each edge (a number within the call, or -1) enters the given destination."""
        if self.edge is None:
            return self.destination[edges] == nodes
        if self.num_edges == 0:
            return torch.zeros_like(edges, dtype=torch.bool)
        return (edges >= 0) & (self.destination[edges.clamp(min=0)] == nodes)

    @cached_property
    def entering(self) -> Rows:
        """Edges grouped by destination; attention is normalised within these groups."""
        return self.graph.entering if self.edge is None else group(self.destination, self.num_nodes)

    @cached_property
    def entering_source(self) -> Tensor:
        """`source` in the order of `entering.items`."""
        return self.graph.entering_source if self.edge is None else self.source[self.entering.items]

    @cached_property
    def entering_destination(self) -> Tensor:
        """`destination` in the order of `entering.items`, so ascending."""
        return self.graph.entering_destination if self.edge is None else self.destination[self.entering.items]

    @cached_property
    def entering_rank(self) -> Tensor:
        """The position of each edge within its row of `entering`."""
        if self.edge is None:
            return self.graph.entering_rank
        ptr, edges = self.entering
        rank = torch.empty_like(edges)
        rank[edges] = torch.arange(self.num_edges, device=self.device) - ptr[self.destination[edges]]
        return rank

    def on_graph(self, values: Tensor) -> Tensor:
        """Return values of the call's edges, [num_edges, ...], as values of the graph's edges; 0 elsewhere."""
        if self.edge is None:
            return values
        return values.new_zeros(self.graph.num_edges, *values.shape[1:]).index_add_(0, self.edge, values)

    @property
    def present(self) -> Tensor | None:
        """Mask of the graph's edges that the call has; None if it has all."""
        return None if self._number is None else self._number >= 0


@dataclass(frozen=True)
class LayerShape:
    """Properties of a layer that determine the size of its work.

    Attributes:
        heads: Number of heads.
        channels: Channels per head.
        by_edge: Whether the layer needs the edge of each entry, not only its source.
        is_message: Whether the layer has no attention: its rows are updated by `MessageUpdate`.
        spreads: Whether deleting an edge also changes all messages that its destination sends (GCN's degrees).
        has_copies: Whether rows may start from those of a base: messages are multiples of their sources, and deleting
            any edge that enters a node changes the others by the same factor.
        refills: Whether deleting an edge changes the features of the self-loop at its destination.
    """

    heads: int
    channels: int
    by_edge: bool
    is_message: bool = False
    spreads: bool = False
    has_copies: bool = False
    refills: bool = False

    @property
    def width(self) -> int:
        """Number of values that the layer stores per node."""
        return self.heads * self.channels


def one_relation(graph: Graph, kind: EdgeType, edge: Tensor, inputs: Sequence[str]) -> LayerGraph:
    """Return the edges of a call of a convolution of one relation.

    Args:
        graph: The union of types.
        kind: The relation.
        edge: Ids of the edges that the convolution runs on, in its order.
        inputs: The node types of its one or two features tensors.
    """
    assert graph.types is not None
    sources, destinations = graph.types.nodes(kind[0]), graph.types.nodes(kind[2])
    blocks = Blocks(tuple(inputs), (kind,), (0,), (len(inputs) - 1,))
    return LayerGraph(graph, edge, graph.source[edge] - sources.start, destinations, blocks)


def all_relations(graph: Graph, kinds: Sequence[EdgeType], inputs: Sequence[str]) -> LayerGraph:
    """Return the edges of a call of a convolution on several relations at once, such as HGT.

    Args:
        graph: The union of types.
        kinds: The relations, in the order in which the convolution gets their edges.
        inputs: The node types of its features.
    """
    types = graph.types
    assert types is not None
    edges, sources, block, first = [], [], [], 0
    for number, kind in enumerate(kinds):
        edges_of_kind = torch.arange(types.edges(kind).start, types.edges(kind).stop, device=graph.device)
        edges.append(edges_of_kind)
        sources.append(graph.source[edges_of_kind] - types.nodes(kind[0]).start + first)
        block.append(torch.full_like(edges_of_kind, number))
        first += len(types.nodes(kind[0]))
    at = {kind: number for number, kind in enumerate(inputs)}
    blocks = Blocks(tuple(inputs), tuple(kinds), tuple(at[kind[0]] for kind in kinds), tuple(range(len(inputs))))
    every = range(graph.num_nodes)
    return LayerGraph(graph, torch.cat(edges), torch.cat(sources), every, blocks, torch.cat(block))
