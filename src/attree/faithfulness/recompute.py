"""Whole rows of one layer computed anew, for nodes whose own features changed.

With its target's state every score of a row changes, so nothing can be updated. Rows of one node that many reduced
edges change (the edges that enter a hub all change the hub) share their sources: they are computed as dense blocks,
rows by sources, and weighted sums are matrix products. The others are listed entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph, expand_rows
from attree.attribution.flows import chunk_bounds
from attree.faithfulness.protocol import Protocol
from attree.faithfulness.records import Changes
from attree.faithfulness.trace import LayerTrace, row_softmax

DENSE_ENTRIES = 4096
"""From this many entries on, the rows of one node are computed as dense blocks: a block has a fixed cost."""

DENSE_DEGREE = 8
"""A dense row has at least this many sources, so that never all of them have left it."""

BLOCK_BYTES = 4 * 2**20
"""Bytes of the scores of one dense block: what stays in a processor's cache is several times faster."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows to compute: the node of each, its new target state, and the edge reduced in the network of that row.

    `changes.row` are positions among these rows.
    """

    node: Tensor
    target: Tensor
    reduced: Tensor
    changes: Changes | None


class RowRecompute:
    """Computes weighted sums of one layer's rows.

    Args:
        graph: The graph.
        layer: What the layer computed before.
        protocol: What happens to a reduced edge.
        memory: Bytes of working memory.
    """

    def __init__(self, graph: LoopedGraph, layer: LayerTrace, protocol: Protocol, memory: int) -> None:
        self.graph = graph
        self.layer = layer
        self.protocol = protocol
        self.memory = memory

    def __call__(self, rows: ChangedRows) -> Tensor:
        """Weighted sums [rows, heads, channels]."""
        out = self.layer.aggregated.new_empty(rows.node.numel(), *self.layer.aggregated.shape[1:])
        degree = self.graph.entering.degree[rows.node]
        _, inverse, count = rows.node.unique(return_inverse=True, return_counts=True)
        dense = (count[inverse] * degree >= DENSE_ENTRIES) & (degree >= DENSE_DEGREE)
        order = (rows.node + dense * self.graph.num_nodes).argsort(stable=True)
        rows = self._ordered(rows, order)
        num_sparse = int((~dense).sum())

        width = self.layer.states.value[0].numel()
        for begin, end in chunk_bounds(degree[order[:num_sparse]] * float(width * 8 * 4 + 64), self.memory):
            out[order[begin:end]] = self._listed(_slice(rows, begin, end))
        _, sizes = rows.node[num_sparse:].unique_consecutive(return_counts=True)
        begin = num_sparse
        for size in sizes.tolist():
            out[order[begin : begin + size]] = self._dense(_slice(rows, begin, begin + size))
            begin += size
        return out

    @staticmethod
    def _ordered(rows: ChangedRows, order: Tensor) -> ChangedRows:
        """The rows in another order, with their changes sorted by row."""
        changes = rows.changes
        if changes is not None:
            place = torch.empty_like(order)
            place[order] = torch.arange(order.numel(), device=order.device)
            row, by_row = place[changes.row].sort(stable=True)
            changes = Changes(row, changes.edge[by_row], changes.sender[by_row], changes.states)
        return ChangedRows(rows.node[order], rows.target[order], rows.reduced[order], changes)

    def _listed(self, rows: ChangedRows) -> Tensor:
        """Rows of any nodes, entry by entry."""
        graph, layer, num_rows = self.graph, self.layer, rows.node.numel()
        row, place = expand_rows(graph.entering, rows.node)
        source = graph.entering_source[place]
        degree = graph.entering.degree[rows.node]
        begin = degree.cumsum(0) - degree
        score = layer.algebra.score(layer.states.source[source], rows.target[row])
        slot = self._changed_slots(rows, begin, score)
        reduced = self._reduced_slots(rows, begin)
        self._reduce_scores(score, reduced)
        weights, _ = row_softmax(score, row, num_rows)
        if self.protocol is Protocol.WEIGHT:
            weights[reduced] = 0.0
        out = torch.zeros_like(layer.aggregated[:1]).repeat(num_rows, 1, 1)
        out.index_add_(0, row, weights.unsqueeze(-1) * layer.states.value[source])
        return self._move_values(out, rows, weights, slot)

    def _dense(self, rows: ChangedRows) -> Tensor:
        """Rows of one node, as matrices of scores, block by block."""
        graph, layer, num_rows = self.graph, self.layer, rows.node.numel()
        first, last = graph.entering.ptr[rows.node[0]], graph.entering.ptr[rows.node[0] + 1]
        states = layer.states.at(graph.entering_source[first:last])
        value = states.value.transpose(0, 1).contiguous()
        step = max(int(min(BLOCK_BYTES, self.memory) // (8 * states.value[..., 0].numel())), 1)
        blocks = (_slice(rows, low, min(low + step, num_rows)) for low in range(0, num_rows, step))
        return torch.cat([self._block(block, states.source, value) for block in blocks])

    def _block(self, rows: ChangedRows, source: Tensor, value: Tensor) -> Tensor:
        """Rows of one node, given the states [d, ...] and values [heads, d, channels] of its sources."""
        heads, degree, _ = value.shape
        begin = torch.arange(rows.node.numel(), device=value.device) * degree
        score = self.layer.algebra.score_all(source, rows.target).transpose(0, 1).reshape(heads, -1)
        # Slots number the entries row by row, as in a list.
        slot = self._changed_slots(rows, begin, score.t())
        reduced = self._reduced_slots(rows, begin)
        self._reduce_scores(score.t(), reduced)
        weights = score.view(heads, -1, degree).softmax(dim=-1)
        listed = weights.view(heads, -1).t()
        if self.protocol is Protocol.WEIGHT:
            listed[reduced] = 0.0
        return self._move_values(torch.bmm(weights, value).transpose(0, 1).contiguous(), rows, listed, slot)

    def _changed_slots(self, rows: ChangedRows, begin: Tensor, score: Tensor) -> Tensor:
        """Where the changed entries stand; their scores are set to the new ones."""
        changes = rows.changes
        if changes is None:
            return begin[:0]
        slot = begin[changes.row] + self.graph.entering_rank[changes.edge]
        score[slot] = self.layer.algebra.score(changes.states.source[changes.sender], rows.target[changes.row])
        return slot

    def _reduced_slots(self, rows: ChangedRows, begin: Tensor) -> Tensor:
        """Where the reduced edges stand, of the rows that theirs enters."""
        enters = self.graph.destination[rows.reduced] == rows.node
        return begin[enters] + self.graph.entering_rank[rows.reduced[enters]]

    def _reduce_scores(self, score: Tensor, reduced: Tensor) -> None:
        if self.protocol is Protocol.COEFFICIENT:
            score[reduced] = 0.0
        elif self.protocol is Protocol.REMOVAL:
            score[reduced] = -torch.inf

    def _move_values(self, out: Tensor, rows: ChangedRows, weights: Tensor, slot: Tensor) -> Tensor:
        """Sums that took the old values of changed senders get the new ones."""
        if rows.changes is not None:
            changes = rows.changes
            moved = changes.states.value[changes.sender] - self.layer.states.value[self.graph.source[changes.edge]]
            out.index_add_(0, changes.row, weights[slot].unsqueeze(-1) * moved)
        return out


def _slice(rows: ChangedRows, begin: int, end: int) -> ChangedRows:
    """Rows `begin` to `end` of rows whose changes are sorted by row."""
    changes = rows.changes
    if changes is not None:
        first, last = torch.searchsorted(changes.row, changes.row.new_tensor([begin, end])).tolist()
        part = slice(first, last)
        changes = Changes(changes.row[part] - begin, changes.edge[part], changes.sender[part], changes.states)
    return ChangedRows(rows.node[begin:end], rows.target[begin:end], rows.reduced[begin:end], changes)
