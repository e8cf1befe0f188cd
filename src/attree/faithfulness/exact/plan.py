"""What exact updates touch: which rows of which layer change when edges are reduced, and through which entries.

Reducing edge e = (i -> j) changes, in the first layer, only node j; in each later layer, only nodes that the changed
ones send to. What happens to an edge does not depend on the target, so targets share all records but the last
layer's; only records on a way to some target are made. All this follows from the graph and the pairs alone: where it
is small enough it is kept, and the same pairs are reduced again without it being found again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.faithfulness.exact.records import Changes, Records
from attree.faithfulness.exact.row_groups import ChangedRows, RowGroup, row_groups
from attree.memory import chunk_bounds
from attree.ragged import Rows, expand, group, pointers

CHUNK_BYTES = 64 * 2**20
"""Bytes that following the edges of one chunk takes, at most: memory that is used again and again stays mapped."""


@dataclass(frozen=True)
class LayerPlan:
    """How one layer after the first changes.

    Attributes:
        records: The changed rows.
        changes: Their changed entries.
        light: Those of rows whose own features are as they were.
        own: Rows whose own features changed.
        own_sender: For each of these, the record of its node in the layer before.
        groups: These rows in groups, to be computed anew; None if they are to be found when they are needed.
    """

    records: Records
    changes: Changes
    light: Changes
    own: Tensor
    own_sender: Tensor
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class ChunkPlan:
    """What some reduced edges do, layer by layer, and which pairs they belong to.

    Attributes:
        edges: The reduced edges.
        first: The records of the first layer, one an edge.
        later: The other layers.
        pairs: Pairs whose target is reached.
        targets: The targets of these.
        found: For each of them, its record in the last layer.
        done: Pairs that are done with when this chunk is.
    """

    edges: Tensor
    first: Records
    later: list[LayerPlan]
    pairs: Tensor
    targets: Tensor
    found: Tensor
    done: int


class ReductionPlan:
    """The chunks that pairs are reduced in.

    Args:
        graph: The graph.
        pairs: The pairs.
        shapes: Heads and channels of each layer.
        memory: Bytes of working memory; what one reduced edge changes is never cut.
    """

    def __init__(self, graph: LoopedGraph, pairs: Pairs, shapes: list[tuple[int, int]], memory: int) -> None:
        self.graph = graph
        self.pairs = pairs
        self.shapes = shapes
        self.memory = memory
        flow = pairs.flow.nonzero().view(-1)
        self.num_pairs = flow.numel()
        target, edge = pairs.targets[pairs.owner[flow]], pairs.edges[flow]
        # By the node that edges enter: rows of one node are then computed together.
        place = graph.entering.ptr[graph.destination[edge]] + graph.entering_rank[edge]
        order = (place * graph.num_nodes + target).argsort()
        self._flow, self._target, self._place = flow[order], target[order], place[order]
        self._places, self._first = _runs(self._place)
        self._edges = graph.entering.items[self._places]
        self._ways = self._find_ways()
        cost = self._cost()
        self._bounds = chunk_bounds(cost, min(memory, CHUNK_BYTES))
        self._small = float(cost.sum()) <= memory
        self._kept: list[ChunkPlan] | None = None

    def chunks(self) -> Iterator[ChunkPlan]:
        """The chunks; where all of them fit into memory they are kept for the next time, else found anew."""
        if self._small and self._kept is None:
            self._kept = [self._chunk(begin, end, keep=True) for begin, end in self._bounds]
        if self._kept is not None:
            yield from self._kept
        else:
            yield from (self._chunk(begin, end, keep=False) for begin, end in self._bounds)

    def groups(self, layer: int, records: Records, changes: Changes, edges: Tensor, rows: Tensor) -> Iterator[RowGroup]:
        """Groups of some rows of a layer's records, to be computed anew."""
        changed = ChangedRows(records.node, edges[records.edge], changes).at(rows)
        return row_groups(self.graph, changed, *self.shapes[layer], self.memory)

    def _find_ways(self) -> list[Rows]:
        """Per layer after the first, the edges that lead on towards some target, grouped by the node they leave."""
        graph, needed, ways = self.graph, self.pairs.targets.unique(), []
        for _ in range(len(self.shapes) - 1):
            _, place = expand(graph.entering.ptr, needed)
            edges = graph.entering.items[place]
            source = graph.source[edges]
            by_source = group(source, graph.num_nodes)
            ways.append(Rows(by_source.ptr, edges[by_source.items]))
            needed = source.unique()
        return ways[::-1]

    def _cost(self) -> Tensor:
        """Bytes that following each reduced edge takes: its changed entries, each a few vectors wide."""
        entries = torch.ones(self.graph.num_nodes, dtype=torch.float64, device=self.graph.device)
        for rows in reversed(self._ways):
            onward = torch.zeros_like(entries)
            onward.index_add_(0, self.graph.source[rows.items], entries[self.graph.destination[rows.items]])
            entries = onward.clamp_(max=float(self.graph.num_edges)) + 1
        width = max(heads * channels for heads, channels in self.shapes)
        return entries[self.graph.destination[self._edges]] * (width * 8 * 6 + 128)

    def _chunk(self, begin: int, end: int, keep: bool) -> ChunkPlan:
        """Follow some reduced edges through the layers."""
        graph, edges = self.graph, self._edges[begin:end]
        first = records = Records(torch.arange(edges.numel(), device=graph.device), graph.destination[edges])
        later = []
        for layer, rows in enumerate(self._ways, 1):
            later.append(self._follow(layer, rows, records, edges, keep))
            records = later[-1].records
        part = slice(int(self._first[begin]), int(self._first[end]))
        owner = torch.searchsorted(self._places[begin:end], self._place[part])
        found_at, found = records.find(owner, self._target[part], graph.num_nodes)
        pairs, targets = self._flow[part][found], self._target[part][found]
        return ChunkPlan(edges, first, later, pairs, targets, found_at[found], part.stop)

    def _follow(self, layer: int, rows: Rows, senders: Records, edges: Tensor, keep: bool) -> LayerPlan:
        graph = self.graph
        sender, place = expand(rows.ptr, senders.node)
        entered = rows.items[place]
        key = senders.edge[sender] * graph.num_nodes + graph.destination[entered]
        key, row = key.unique(return_inverse=True)
        records = Records(key // graph.num_nodes, key % graph.num_nodes)
        changes = Changes(row, entered, graph.source[entered], sender)
        own_sender, is_own = senders.find(records.edge, records.node, graph.num_nodes)
        own = is_own.nonzero().view(-1)
        groups = list(self.groups(layer, records, changes, edges, own)) if keep else None
        light = changes.at((~is_own[row]).nonzero().view(-1))
        return LayerPlan(records, changes, light, own, own_sender[own], groups)


def _runs(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values of a sorted tensor, and where each one's run begins, with the total at the end."""
    values, counts = ascending.unique_consecutive(return_counts=True)
    return values, pointers(counts)
