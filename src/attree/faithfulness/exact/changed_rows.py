"""The rows that a reduced edge changes in each call, and the paths from changed nodes to targets.

A row is a pair (reduced edge, node). Nothing here depends on the network's weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape
from attree.faithfulness.exact.stages import Stages
from attree.tensors.arrays import Rows, expand, find, group, pointers, take_rows
from attree.tensors.memory import chunk_bounds


@dataclass(frozen=True)
class RowKeys:
    """Rows, sorted by (variant, node): row r is node `node[r]` in the variant `variant[r]` of the network.

    Attributes:
        variant: The variant, see `Variants`: as a rule the network with one edge reduced.
        node: The node.
    """

    variant: Tensor
    node: Tensor

    @classmethod
    def union(cls, parts: Sequence[RowKeys], num_nodes: int) -> RowKeys:
        """Return all rows of several lists, without duplicates; a single list is returned unchanged."""
        if len(parts) == 1:
            return parts[0]
        return cls.of_keys(torch.cat([part.keys(num_nodes) for part in parts]).unique(), num_nodes)

    @classmethod
    def of_keys(cls, keys: Tensor, num_nodes: int) -> RowKeys:
        """Return the rows of some keys; see `keys`."""
        variant = keys.div(num_nodes, rounding_mode="floor")
        return cls(variant, keys - variant * num_nodes)

    def keys(self, num_nodes: int) -> Tensor:
        """Return one number for each row, ascending."""
        return self.variant * num_nodes + self.node

    def at(self, positions: Tensor | slice) -> RowKeys:
        """Return some of the rows."""
        return RowKeys(self.variant[positions], self.node[positions])

    def find(self, variant: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Return the positions of the rows of variants and nodes, and whether each exists."""
        return find(self.keys(num_nodes), variant * num_nodes + node)


@dataclass(frozen=True)
class Variants:
    """Variants of the network whose rows are computed together: one for each reduced edge, and bases.

    Deleting an edge (i -> j) of a GCN changes all messages into and out of j by one factor, the same for all edges that
    enter j. The network with this change alone is the *base* of these edges: their rows start from the base's rows, and
    only what follows from the lost message is computed for each edge. Bases come first, then variants without a base,
    then those with one.

    Attributes:
        edge: The reduced edge of each variant; for a base, one of its edges.
        of_edge: The variant of each edge of the chunk.
        num_bases: Number of bases.
        base: The base of each variant; -1 for none. None if there are no bases.
        first_copy: The first variant with a base.
    """

    edge: Tensor
    of_edge: Tensor
    num_bases: int = 0
    base: Tensor | None = None
    first_copy: int = 0

    @classmethod
    def alone(cls, edges: Tensor) -> Variants:
        """Return one variant for each edge, without bases."""
        return cls(edges, torch.arange(edges.numel(), device=edges.device), first_copy=edges.numel())

    @classmethod
    def with_bases(cls, edges: Tensor, node: Tensor, is_alone: Tensor) -> Variants:
        """Return variants of edges with one base for each node.

        Args:
            edges: The edges.
            node: The node that each edge enters.
            is_alone: Mask of the edges that need no base.
        """
        alone, others = is_alone.nonzero().view(-1), (~is_alone).nonzero().view(-1)
        of_base, base = node[others].unique(return_inverse=True)
        first = torch.empty_like(of_base).index_copy_(0, base, others)
        num_bases, first_copy = of_base.numel(), of_base.numel() + alone.numel()
        order = torch.cat([alone, others])
        of_edge = torch.empty_like(order)
        of_edge[order] = torch.arange(order.numel(), device=order.device) + num_bases
        bases = torch.cat([base.new_full((first_copy,), -1), base])
        return cls(torch.cat([edges[first], edges[order]]), of_edge, num_bases, bases, first_copy)

    def base_of(self, variant: Tensor) -> Tensor:
        """Return the base of each variant; -1 for none."""
        return torch.full_like(variant, -1) if self.base is None else take_rows(self.base, variant)


@dataclass(frozen=True)
class Changes:
    """Changed entries of a call's rows: edge `edge[c]` enters row `row[c]` and comes from record `sender[c]`.

    Attributes:
        row: Position of the row among the call's records.
        edge: The edge.
        source: The edge's source node.
        sender: The record of the source node in the previous call.
    """

    row: Tensor
    edge: Tensor
    source: Tensor
    sender: Tensor

    @property
    def num_entries(self) -> int:
        """Number of changed entries."""
        return self.row.numel()

    def at(self, positions: Tensor | slice) -> Changes:
        """Return some of the entries."""
        values = self.row, self.edge, self.source, self.sender
        if isinstance(positions, slice):
            return Changes(*(entries[positions] for entries in values))
        return Changes(*(take_rows(entries, positions) for entries in values))


DENSE_ENTRIES = 4096
"""Minimum number of entries for which the rows of one node are computed as dense blocks, which have a fixed cost."""

DENSE_DEGREE = 8
"""Minimum number of sources of a dense row, so that a reduction never removes all of them."""

BLOCK_BYTES = 4 * 2**20
"""Bytes of the scores of one dense block; blocks that fit into the CPU cache are several times faster."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows to compute.

    Attributes:
        node: The node of each row.
        reduced: The reduced edge of each row.
        changes: The rows' changed entries, sorted by row; rows are positions in `node`.
    """

    node: Tensor
    reduced: Tensor
    changes: Changes

    def at(self, order: Tensor) -> ChangedRows:
        """Return some of the rows, with their changed entries."""
        place = torch.full_like(self.node, -1)
        place[order] = torch.arange(order.numel(), device=order.device)
        moved = take_rows(place, self.changes.row)
        entries = (moved >= 0).nonzero().view(-1)
        row, by_row = take_rows(moved, entries).sort(stable=True)
        changes = replace(self.changes.at(take_rows(entries, by_row)), row=row)
        return ChangedRows(take_rows(self.node, order), take_rows(self.reduced, order), changes)

    def slice(self, begin: int, end: int) -> ChangedRows:
        """Return the rows `begin` to `end`."""
        row = self.changes.row
        first, last = torch.searchsorted(row, row.new_tensor([begin, end])).tolist()
        changes = self.changes.at(slice(first, last))
        return ChangedRows(self.node[begin:end], self.reduced[begin:end], replace(changes, row=changes.row - begin))


@dataclass(frozen=True)
class RowGroup:
    """Rows that are computed together; their entries are numbered row by row.

    Attributes:
        rows: Positions of the rows among all rows to compute.
        ptr: The entries of row r are `ptr[r]:ptr[r + 1]`.
        entry_row: The row of each entry; None for a dense block, whose rows all have the same sources.
        source: The source node of each entry; for a dense block, of one row's entries.
        edge: The edge of each entry, likewise; None if only sources are needed.
        changes: Changed entries; rows are positions in the group.
        slot: The number of each changed entry.
        reduced: The numbers of the reduced entries.
        loops: The self-loops whose features change when the reduced edges are deleted; None if there are none.
    """

    rows: Tensor
    ptr: Tensor
    entry_row: Tensor | None
    source: Tensor
    edge: Tensor | None
    changes: Changes
    slot: Tensor
    reduced: Tensor
    loops: RefilledLoops | None = None


@dataclass(frozen=True)
class RefilledLoops:
    """Self-loops at the destinations of reduced edges.

    Attributes:
        row: The row of each in its group.
        slot: Its number among the group's entries.
        node: Its node.
        edge: The reduced edge.
    """

    row: Tensor
    slot: Tensor
    node: Tensor
    edge: Tensor


def row_groups(graph: LayerGraph, rows: ChangedRows, shape: LayerShape, memory: int) -> Iterator[RowGroup]:
    """Split rows into groups that take at most `memory` bytes each to compute; a single row may take more.

    Args:
        graph: The call's edges.
        rows: The rows.
        shape: The layer's shape.
        memory: Bytes of working memory.
    """
    degree = graph.entering.sizes[rows.node]
    _, inverse, count = rows.node.unique(return_inverse=True, return_counts=True)
    dense = (count[inverse] * degree >= DENSE_ENTRIES) & (degree >= DENSE_DEGREE)
    order = (rows.node + dense * graph.num_nodes).argsort(stable=True)
    rows, num_listed = rows.at(order), int((~dense).sum())

    for begin, end in chunk_bounds(degree[order[:num_listed]] * float(shape.width * 8 * 4 + 64), memory):
        part = rows.slice(begin, end)
        entry_row, place = expand(graph.entering.ptr, part.node)
        ptr, edge = pointers(graph.entering.sizes[part.node]), graph.entering.items[place] if shape.by_edge else None
        source = graph.entering_source[place]
        yield _group(graph, part, order[begin:end], ptr, entry_row, source, edge, shape.refills)
    nodes, sizes = rows.node[num_listed:].unique_consecutive(return_counts=True)
    first = num_listed
    for node, size in zip(nodes.tolist(), sizes.tolist(), strict=True):
        entering = slice(int(graph.entering.ptr[node]), int(graph.entering.ptr[node + 1]))
        source = graph.entering_source[entering]
        edge = graph.entering.items[entering] if shape.by_edge else None
        step = max(int(min(BLOCK_BYTES, memory) // (8 * shape.heads * source.numel())), 1)
        for begin in range(first, first + size, step):
            end = min(begin + step, first + size)
            ptr = torch.arange(end - begin + 1, device=graph.device) * source.numel()
            yield _group(graph, rows.slice(begin, end), order[begin:end], ptr, None, source, edge, shape.refills)
        first += size


def _group(
    graph: LayerGraph,
    rows: ChangedRows,
    positions: Tensor,
    ptr: Tensor,
    entry_row: Tensor | None,
    source: Tensor,
    edge: Tensor | None,
    refills: bool,
) -> RowGroup:
    """Return a group of rows, with the numbers of their changed and reduced entries."""
    slot = ptr[rows.changes.row] + graph.entering_rank[rows.changes.edge]
    enters = graph.enters(rows.reduced, rows.node).nonzero().view(-1)
    reduced = ptr[enters] + graph.entering_rank[rows.reduced[enters]]
    loops = None
    if refills:
        num_proper = graph.graph.num_proper_edges
        row = enters[rows.reduced[enters] < num_proper]
        node = rows.node[row]
        loops = RefilledLoops(row, ptr[row] + graph.entering_rank[node + num_proper], node, rows.reduced[row])
    return RowGroup(positions, ptr, entry_row, source, edge, rows.changes, slot, reduced, loops)


class TargetPaths:
    """Paths from changed nodes to targets: the nodes that matter in each call, and the edges that lead to them.

    Paths follow the graph with self-loops, even if a layer has none, because a skip may carry a node to itself. Calls
    on several types have no such loops; there, a node's own features are followed separately.

    Args:
        graph: The graph.
        layers: The edges of each call.
        stages: Which call feeds which.
        nodes: The nodes that outputs are read from.
        spreads: Whether a deleted edge changes all messages that its destination sends in each call.

    Attributes:
        needed: For each call, a mask of the nodes at which its output matters, [num_nodes].
        onward: For each call on outputs of earlier calls, and each that spreads changes, the edges that enter these
            nodes, grouped by source node, block by block.
    """

    def __init__(
        self, graph: Graph, layers: Sequence[LayerGraph], stages: Stages, nodes: Tensor, spreads: Sequence[bool]
    ) -> None:
        self._graph = graph
        self._layers = layers
        self._stages = stages
        feeds = stages.feeds
        self._is_followed = [bool(feeding) or spread for feeding, spread in zip(feeds, spreads, strict=True)]
        none = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        read = none.index_fill(0, nodes, True)
        self.needed = [(read if call in stages.outputs else none).clone() for call in range(1, len(feeds) + 1)]
        self.onward: list[tuple[Rows, ...]] = [()] * len(feeds)
        for call in reversed(range(len(feeds))):
            if self._is_followed[call]:
                layer, needed = layers[call], self.needed[call]
                receivers = layer.nodes(needed.nonzero().view(-1))
                if layer.blocks is not None:
                    receivers = receivers[(receivers >= 0) & (receivers < layer.num_nodes)]
                _, place = expand(layer.entering.ptr, receivers)
                edges = layer.entering.items[place]
                source = layer.source_node[edges]
                self.onward[call] = tuple(_by_source(edges, source, layer, graph.num_nodes))
                for before in feeds[call]:
                    self.needed[before - 1][source] = True
                    if layer.blocks is not None:
                        self.needed[before - 1] |= needed

    def entries(self, edges: Tensor, with_degrees: bool = True) -> Tensor:
        """Return an upper bound on the number of entries that change, over all calls, when each edge is reduced.

        Args:
            edges: The edges.
            with_degrees: Whether messages change that the destination of the edge sends in a call on the model's input.
        """
        graph, feeds = self._graph, self._stages.feeds
        counts = [torch.ones(graph.num_nodes, device=graph.device) for _ in feeds]
        for call in reversed(range(len(feeds))):
            if self._is_followed[call]:
                layer = self._layers[call]
                onward = torch.zeros_like(counts[call])
                source, destination = layer.source_node, layer.destination_node
                for rows in self.onward[call]:
                    onward.index_add_(0, source[rows.items], counts[call][destination[rows.items]])
                if layer.blocks is not None:
                    onward += counts[call]
                if not feeds[call] and with_degrees:
                    counts[call] = (counts[call] + onward).clamp_(max=float(graph.num_edges))
                for before in feeds[call]:
                    counts[before - 1] = (counts[before - 1] + onward).clamp_(max=float(graph.num_edges))
        total = torch.zeros(edges.numel(), device=graph.device)
        for call, count in enumerate(counts):
            if not feeds[call] or self._layers[call].blocks is not None:
                total += count[graph.destination[edges]]
        return total


def _by_source(edges: Tensor, source: Tensor, layer: LayerGraph, num_nodes: int) -> Iterator[Rows]:
    """Yield the edges of a call grouped by source node, block by block."""
    if layer.blocks is None or layer.block is None:
        by_source = group(source, num_nodes)
        yield Rows(by_source.ptr, edges[by_source.items])
        return
    block = layer.block[edges]
    for number in range(len(layer.blocks.relations)):
        of_relation = (block == number).nonzero().view(-1)
        by_source = group(source[of_relation], num_nodes)
        yield Rows(by_source.ptr, edges[of_relation[by_source.items]])
