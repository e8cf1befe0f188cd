"""Data of a reduction plan: the rows that change in each call, their changed entries, and groups of rows to recompute.

A row is a pair (reduced edge, node). Nothing here depends on the network's weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape
from attree.tensors.limits import chunk_bounds
from attree.tensors.ragged import expand, find, pointers, take_rows


@dataclass(frozen=True)
class RowKeys:
    """Rows, sorted by (edge, node): row r is node `node[r]` in the network with edge `edge[r]` reduced.

    Attributes:
        edge: Position of the reduced edge in the chunk.
        node: The node.
    """

    edge: Tensor
    node: Tensor

    @classmethod
    def union(cls, parts: Sequence[RowKeys], num_nodes: int) -> RowKeys:
        """Return all rows of several lists, without duplicates; a single list is returned unchanged."""
        if len(parts) == 1:
            return parts[0]
        key = torch.cat([part.edge * num_nodes + part.node for part in parts]).unique()
        return cls(key // num_nodes, key % num_nodes)

    def at(self, positions: Tensor) -> RowKeys:
        """Return some of the rows."""
        return RowKeys(self.edge[positions], self.node[positions])

    def find(self, edge: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Return the positions of the rows of given edges and nodes, and whether each exists."""
        row_keys, keys = self.edge * num_nodes + self.node, edge * num_nodes + node
        return find(row_keys, keys)


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
    """

    rows: Tensor
    ptr: Tensor
    entry_row: Tensor | None
    source: Tensor
    edge: Tensor | None
    changes: Changes
    slot: Tensor
    reduced: Tensor


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
        yield _group(graph, part, order[begin:end], ptr, entry_row, graph.entering_source[place], edge)
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


def _group(
    graph: LayerGraph,
    rows: ChangedRows,
    positions: Tensor,
    ptr: Tensor,
    entry_row: Tensor | None,
    source: Tensor,
    edge: Tensor | None,
) -> RowGroup:
    """Return a group of rows, with the numbers of their changed and reduced entries."""
    slot = ptr[rows.changes.row] + graph.entering_rank[rows.changes.edge]
    enters = graph.enters(rows.reduced, rows.node).nonzero().view(-1)
    reduced = ptr[enters] + graph.entering_rank[rows.reduced[enters]]
    return RowGroup(positions, ptr, entry_row, source, edge, rows.changes, slot, reduced)


@dataclass(frozen=True)
class LaterPlan:
    """Update plan for a convolution whose input comes from earlier convolutions.

    *Senders* are the changed rows of its inputs, one input after another. For a heterogeneous graph, the senders that
    are sources are ordered by block, and the senders that are destinations by type (see `LayerGraph`).

    Attributes:
        senders: Positions of each input's changed rows among its rows; None if all of them changed.
        changes: The changed entries of the call's rows; their senders are positions among the senders that are sources.
        light: The changed entries of the rows that are updated.
        recomputed: Rows that are recomputed: their own features changed, or the reduced edge enters them.
        recomputed_sender: Position of the node of each such row among the senders that are destinations.
        unchanged: Mask of the recomputed rows whose own features did not change; their `recomputed_sender` is not
            read. None if all changed.
        groups: The recomputed rows in groups; None if the groups are formed when they are needed.
    """

    senders: tuple[Tensor | None, ...]
    changes: Changes
    light: Changes
    recomputed: Tensor
    recomputed_sender: Tensor
    unchanged: Tensor | None
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class MessagePlan:
    """Update plan for a layer without attention that changed rows send messages to.

    Attributes:
        senders: Positions of the changed rows of the sources among their rows; None if all of them changed.
        has_new_features: Whether the features of senders changed; if not, only the weights of their messages did.
        sender_is_reached: Mask of the senders that the reduced edge enters.
        changes: The changed entries of the call's rows.
        moved: Rows whose own features changed.
        moved_sender: Position of the node of each such row among the changed rows of the destinations.
        targets: Like `senders`, for the destinations.
    """

    senders: Tensor | None
    has_new_features: bool
    sender_is_reached: Tensor
    changes: Changes
    moved: Tensor
    moved_sender: Tensor
    targets: Tensor | None


@dataclass(frozen=True)
class OutputRows:
    """Rows of one tensor that a call returns.

    Attributes:
        node: The destination of each row, in the call's numbering.
        among_records: Positions of the tensor's changed rows in the call's `records`; None if these are all records.
        place: Positions of these changed rows among all rows of the tensor; None if all rows change.
    """

    node: Tensor
    among_records: Tensor | None
    place: Tensor | None


@dataclass(frozen=True)
class CallPlan:
    """Update plan for one call of a convolution.

    Attributes:
        records: The rows that change, with nodes in the call's numbering.
        outputs: The rows of each tensor that the call returns.
        later: The rest of the plan if the input comes from earlier convolutions; None if it is the model's input.
        messages: The same for a layer without attention.
    """

    records: RowKeys
    outputs: tuple[OutputRows, ...]
    later: LaterPlan | None
    messages: MessagePlan | None = None


@dataclass(frozen=True)
class ChunkPlan:
    """Update plan for a chunk of reduced edges.

    Attributes:
        edges: The reduced edges.
        calls: The plan of each call.
        rows: The rows of each family of stages.
        pairs: The pairs (target, edge) whose target changes.
        output_rows: The output row of each of these pairs.
        queries: For link outputs: the two ends of each pair's target as rows of the family that outputs read,
            [2, pairs], numbered within their types if there are several; else None.
        done: Number of finished pairs after this chunk.
    """

    edges: Tensor
    calls: list[CallPlan]
    rows: list[RowKeys]
    pairs: Tensor
    output_rows: Tensor
    queries: Tensor | None
    done: int
