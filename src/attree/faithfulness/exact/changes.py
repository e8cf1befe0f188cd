"""The data of a reduction plan: which rows change in each call, through which entries, and which rows are recomputed.

A row is a pair (reduced edge, node). None of this depends on the network's weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.tensors.limits import chunk_bounds
from attree.tensors.ragged import expand, find, pointers, take_rows


@dataclass(frozen=True)
class RowKeys:
    """Rows by their keys: row r is node `node[r]` in the network in which edge `edge[r]` is reduced.

    Rows are sorted by (edge, node).

    Attributes:
        edge: Position of the reduced edge in the chunk.
        node: The node.
    """

    edge: Tensor
    node: Tensor

    @classmethod
    def union(cls, parts: Sequence[RowKeys], num_nodes: int) -> RowKeys:
        """All rows of several lists, each once; a single list as it is."""
        if len(parts) == 1:
            return parts[0]
        key = torch.cat([part.edge * num_nodes + part.node for part in parts]).unique()
        return cls(key // num_nodes, key % num_nodes)

    def at(self, chosen: Tensor) -> RowKeys:
        """Some of the rows."""
        return RowKeys(self.edge[chosen], self.node[chosen])

    def find(self, edge: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Positions of the rows of given edges and nodes, and whether each exists."""
        own, asked = self.edge * num_nodes + self.node, edge * num_nodes + node
        return find(own, asked)


@dataclass(frozen=True)
class Changes:
    """Changed entries of one layer's rows: entry c says that `edge[c]` enters row `row[c]` from record `sender[c]`.

    Attributes:
        row: Position of the row among the layer's records.
        edge: The edge.
        source: The node that the edge leaves.
        sender: The record of that node in the layer before.
    """

    row: Tensor
    edge: Tensor
    source: Tensor
    sender: Tensor

    @property
    def num_entries(self) -> int:
        """Number of changed entries."""
        return self.row.numel()

    def at(self, chosen: Tensor | slice) -> Changes:
        """Some of the entries."""
        values = self.row, self.edge, self.source, self.sender
        return Changes(*(one[chosen] if isinstance(chosen, slice) else take_rows(one, chosen) for one in values))

    def moved_to(self, row: Tensor) -> Changes:
        """The same entries of rows that stand elsewhere."""
        return Changes(row, self.edge, self.source, self.sender)


DENSE_ENTRIES = 4096
"""From this many entries on, the rows of one node are computed as dense blocks: a block has a fixed cost."""

DENSE_DEGREE = 8
"""A dense row has at least this many sources, so that a reduction never removes all of them."""

BLOCK_BYTES = 4 * 2**20
"""Bytes of the scores of one dense block: what stays in a processor's cache is several times faster."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows to compute.

    Attributes:
        node: The node of each row.
        reduced: The edge that is reduced in the network of that row.
        changes: The rows' changed entries, sorted by row; rows are positions among these.
    """

    node: Tensor
    reduced: Tensor
    changes: Changes

    def at(self, order: Tensor) -> ChangedRows:
        """Some of the rows, with their changed entries."""
        place = torch.full_like(self.node, -1)
        place[order] = torch.arange(order.numel(), device=order.device)
        moved = take_rows(place, self.changes.row)
        entries = (moved >= 0).nonzero().view(-1)
        row, by_row = take_rows(moved, entries).sort(stable=True)
        changes = self.changes.at(take_rows(entries, by_row)).moved_to(row)
        return ChangedRows(take_rows(self.node, order), take_rows(self.reduced, order), changes)

    def slice(self, begin: int, end: int) -> ChangedRows:
        """The rows `begin` to `end`."""
        row = self.changes.row
        first, last = torch.searchsorted(row, row.new_tensor([begin, end])).tolist()
        changes = self.changes.at(slice(first, last))
        return ChangedRows(self.node[begin:end], self.reduced[begin:end], changes.moved_to(changes.row - begin))


@dataclass(frozen=True)
class RowGroup:
    """Rows that are computed together; their entries are numbered row by row.

    Attributes:
        rows: Positions of the rows among all rows to compute.
        ptr: Row r's entries are `ptr[r]:ptr[r + 1]`.
        entry_row: The row of each entry; None for a dense block, whose rows all have the same sources.
        source: The node that each entry comes from; of a dense block, of one row.
        edge: The edge of each entry, likewise; None if sources are all that is needed.
        changes: Changed entries; rows are positions in the group.
        slot: For each changed entry, its number.
        reduced: The numbers of the entries that are reduced.
    """

    rows: Tensor
    ptr: Tensor
    entry_row: Tensor | None
    source: Tensor
    edge: Tensor | None
    changes: Changes
    slot: Tensor
    reduced: Tensor


@dataclass(frozen=True)
class LayerShape:
    """What the size of a layer's work depends on.

    Attributes:
        heads: Its heads.
        channels: Its channels per head.
        by_edge: Whether its entries must be known by their edge, not by their source alone.
    """

    heads: int
    channels: int
    by_edge: bool

    @property
    def width(self) -> int:
        """Numbers that a node has in the layer."""
        return self.heads * self.channels


def row_groups(graph: LayerGraph, rows: ChangedRows, shape: LayerShape, memory: int) -> Iterator[RowGroup]:
    """Cut rows into groups whose computation takes at most `memory` bytes each (a single row may exceed it).

    Args:
        graph: The graph.
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
        yield _listed(graph, rows.slice(begin, end), order[begin:end], shape)
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
            yield _group(graph, rows.slice(begin, end), order[begin:end], ptr, None, source, edge)
        first += size


def _listed(graph: LayerGraph, rows: ChangedRows, positions: Tensor, shape: LayerShape) -> RowGroup:
    entry_row, place = expand(graph.entering.ptr, rows.node)
    ptr = pointers(graph.entering.sizes[rows.node])
    edge = graph.entering.items[place] if shape.by_edge else None
    return _group(graph, rows, positions, ptr, entry_row, graph.entering_source[place], edge)


def _group(
    graph: LayerGraph,
    rows: ChangedRows,
    positions: Tensor,
    ptr: Tensor,
    entry_row: Tensor | None,
    source: Tensor,
    edge: Tensor | None,
) -> RowGroup:
    slot = ptr[rows.changes.row] + graph.entering_rank[rows.changes.edge]
    enters = graph.enters(rows.reduced, rows.node).nonzero().view(-1)
    reduced = ptr[enters] + graph.entering_rank[rows.reduced[enters]]
    return RowGroup(positions, ptr, entry_row, source, edge, rows.changes, slot, reduced)


@dataclass(frozen=True)
class LaterPlan:
    """Update plan for a convolution whose input comes from earlier convolutions.

    *Senders* are the changed rows of its inputs, input by input; of a heterogeneous graph, those that messages come
    from stand block by block, those that they go to type by type (see `LayerGraph`).

    Attributes:
        senders: For each input, the positions of its changed rows among its rows; None if all of them changed.
        changes: The changed entries of the call's rows; their senders are positions among those messages come from.
        light: The changed entries of rows that are updated.
        own: Rows that are recomputed: their own features changed, or the reduced edge enters them.
        own_sender: For each of these, the position of its node among the senders that messages go to.
        unchanged: Mask of the recomputed rows whose own features did not change; their `own_sender` is not read. None
            if all changed.
        groups: These rows in groups, to be recomputed; None if the groups are formed when they are needed.
    """

    senders: tuple[Tensor | None, ...]
    changes: Changes
    light: Changes
    own: Tensor
    own_sender: Tensor
    unchanged: Tensor | None
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class OutputRows:
    """The rows of one tensor that a call returns.

    Attributes:
        node: The destination behind each row, by the call's numbers.
        chosen: Which of the call's records are among them; None if all are.
        place: The positions of these records among the rows; None if all rows change.
    """

    node: Tensor
    chosen: Tensor | None
    place: Tensor | None


@dataclass(frozen=True)
class CallPlan:
    """Update plan for one call of a convolution.

    Attributes:
        records: The rows that change, with nodes by the call's numbers.
        outputs: The rows of each tensor that the call returns.
        later: The rest of the plan if the input comes from earlier convolutions; None if it is the model's input.
    """

    records: RowKeys
    outputs: tuple[OutputRows, ...]
    later: LaterPlan | None


@dataclass(frozen=True)
class ChunkPlan:
    """Update plan for a chunk of reduced edges.

    Attributes:
        edges: The reduced edges.
        calls: The plan of each call.
        rows: The rows of each family of stages.
        pairs: The pairs (target, edge) whose target changes.
        targets: The targets of these pairs.
        found: For each of these pairs, its row in the output.
        queries: Where outputs are those of links: the two ends of each pair's target as rows of the family that is
            read, [2, pairs], counted within their types if there are several; None elsewhere.
        done: How many pairs are finished after this chunk.
    """

    edges: Tensor
    calls: list[CallPlan]
    rows: list[RowKeys]
    pairs: Tensor
    targets: Tensor
    found: Tensor
    queries: Tensor | None
    done: int
