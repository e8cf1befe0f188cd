"""What exact updates touch: which rows of which call change when edges are reduced, and through which entries.

Reducing edge e = (i -> j) changes, in a call that the model's input feeds, only node j; in each later call, only nodes
that the changed ones send to, and j again. What happens to an edge does not depend on the target, so targets share all
rows but the last ones; only rows on a way to some target are made. Ways lead along the looped graph: whatever a layer
leaves out, a node may reach itself around attention. All this follows from the graph, the pairs and what feeds what
alone: where it is small enough it is kept, and the same pairs are reduced again without it being found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.faithfulness.exact.records import Changes, Records
from attree.faithfulness.exact.row_groups import ChangedRows, LayerShape, RowGroup, row_groups
from attree.faithfulness.exact.stages import INPUT, Wiring
from attree.memory import chunk_bounds
from attree.ragged import Rows, expand, group, pointers

CHUNK_BYTES = 64 * 2**20
"""Bytes that following the edges of one chunk takes, at most: memory that is used again and again stays mapped."""


@dataclass(frozen=True)
class LaterPlan:
    """How a call changes that other calls feed.

    Attributes:
        senders: Where the rows of its input that changed stand among all; None if they are all.
        changes: The changed entries of its rows; senders are positions among those rows.
        light: Those of rows whose own features are as they were.
        own: Rows whose own features changed.
        own_sender: For each of these, the position of its node among the senders.
        groups: These rows in groups, to be computed anew; None if they are to be found when they are needed.
    """

    senders: Tensor | None
    changes: Changes
    light: Changes
    own: Tensor
    own_sender: Tensor
    groups: list[RowGroup] | None


@dataclass(frozen=True)
class CallPlan:
    """How one call changes.

    Attributes:
        records: The changed rows.
        place: Where they stand among the rows of what the call returns; None if they are all.
        later: More, if other calls feed it.
    """

    records: Records
    place: Tensor | None
    later: LaterPlan | None


@dataclass(frozen=True)
class ChunkPlan:
    """What some reduced edges do, call by call, and which pairs they belong to.

    Attributes:
        edges: The reduced edges.
        calls: What each call does.
        rows: The rows that each family of stages has.
        pairs: Pairs whose target is reached.
        targets: The targets of these.
        found: For each of them, its row in the output.
        done: Pairs that are done with when this chunk is.
    """

    edges: Tensor
    calls: list[CallPlan]
    rows: list[Records]
    pairs: Tensor
    targets: Tensor
    found: Tensor
    done: int


class ReductionPlan:
    """The chunks that pairs are reduced in.

    Args:
        graph: The graph.
        pairs: The pairs.
        shapes: The shape of each call.
        wiring: What feeds what.
        batch: The graph of each node if targets are graphs, else None.
        memory: Bytes of working memory; what one reduced edge changes is never cut.
    """

    def __init__(
        self,
        graph: LoopedGraph,
        pairs: Pairs,
        shapes: Sequence[LayerShape],
        wiring: Wiring,
        batch: Tensor | None,
        memory: int,
    ) -> None:
        self.graph = graph
        self.pairs = pairs
        self.shapes = shapes
        self.wiring = wiring
        self.memory = memory
        self._batch = batch
        self._members = None if batch is None else group(batch, int(batch.max()) + 1)
        flow = pairs.flow.nonzero().view(-1)
        self.num_pairs = flow.numel()
        target, edge = pairs.targets[pairs.owner[flow]], pairs.edges[flow]
        # By the node that edges enter: rows of one node are then computed together.
        place = graph.entering.ptr[graph.destination[edge]] + graph.entering_rank[edge]
        order = (place * graph.num_nodes + target).argsort()
        self._flow, self._target, self._place = flow[order], target[order], place[order]
        self._places, self._first = _runs(self._place)
        self._edges = graph.entering.items[self._places]
        self._needed, self._ways = self._find_ways()
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

    def groups(self, call: int, records: Records, changes: Changes, edges: Tensor, rows: Tensor) -> Iterator[RowGroup]:
        """Groups of some rows of a call's records, to be computed anew."""
        changed = ChangedRows(records.node, edges[records.edge], changes).at(rows)
        return row_groups(self.graph, changed, self.shapes[call], self.memory)

    def _find_ways(self) -> tuple[list[Tensor], list[Rows | None]]:
        """Per call, which nodes matter to some target, and the edges that enter them, by the node they leave."""
        graph, feeds = self.graph, self.wiring.feeds
        nodes = self.pairs.targets.unique()
        if self._members is not None:
            nodes = self._members.items[expand(self._members.ptr, nodes)[1]]
        none = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        wanted = none.index_fill(0, nodes, True)
        needed = [wanted.clone() if call in self.wiring.outputs else none.clone() for call in range(1, len(feeds) + 1)]
        ways: list[Rows | None] = [None] * len(feeds)
        for call in reversed(range(len(feeds))):
            if feeds[call]:
                _, place = expand(graph.entering.ptr, needed[call].nonzero().view(-1))
                edges = graph.entering.items[place]
                source = graph.source[edges]
                by_source = group(source, graph.num_nodes)
                ways[call] = Rows(by_source.ptr, edges[by_source.items])
                for before in feeds[call]:
                    needed[before - 1][source] = True
        return needed, ways

    def _cost(self) -> Tensor:
        """Bytes that following each reduced edge takes: its changed entries and its rows, each a few vectors wide."""
        graph, wiring = self.graph, self.wiring
        most = float(graph.num_edges)
        entries = [torch.ones(graph.num_nodes, device=graph.device) for _ in wiring.feeds]
        for call in reversed(range(len(entries))):
            rows = self._ways[call]
            if rows is None:
                continue
            onward = torch.zeros_like(entries[call])
            onward.index_add_(0, graph.source[rows.items], entries[call][graph.destination[rows.items]])
            for before in wiring.feeds[call]:
                entries[before - 1] = (entries[before - 1] + onward).clamp_(max=most)
        destination = graph.destination[self._edges]
        total = torch.zeros_like(destination, dtype=torch.get_default_dtype())
        for call, before in enumerate(wiring.feeds):
            total += entries[call][destination] if not before else 0.0
        width = max(shape.width for shape in self.shapes)
        cost = total * float(width * 8 * 6 + 128)
        if len(set(wiring.family)) <= len(wiring.feeds):  # stages meet: each row is there in all of them
            cost += total.clamp(max=float(graph.num_nodes)) * float(wiring.width * 8 * 3)
        if self._batch is not None and self._members is not None:
            cost += self._members.sizes[self._batch[destination]] * float(wiring.width * 8 * 4)
        return cost

    def _chunk(self, begin: int, end: int, keep: bool) -> ChunkPlan:
        """Follow some reduced edges through the calls."""
        graph, edges, wiring = self.graph, self._edges[begin:end], self.wiring
        direct = Records(torch.arange(edges.numel(), device=graph.device), graph.destination[edges])
        records: list[Records] = []
        parts: list[tuple[Changes, Records] | None] = []
        for call, feeds in enumerate(wiring.feeds):
            rows = self._ways[call]
            if rows is None:
                wanted = self._needed[call][direct.node]
                records.append(direct if bool(wanted.all()) else direct.at(wanted.nonzero().view(-1)))
                parts.append(None)
            else:
                senders = Records.union([records[before - 1] for before in feeds], graph.num_nodes)
                found, changes = self._follow(rows, senders)
                records.append(found)
                parts.append((changes, senders))
        families = self._families(records, edges)
        calls = []
        for call, (own_records, part) in enumerate(zip(records, parts, strict=True)):
            place = self._place_in(families[wiring.family[call + 1]], own_records)
            later = None
            if part is not None:
                source = families[wiring.family[wiring.feeds[call][0]]]
                later = self._later(call, own_records, *part, source, edges, keep)
            calls.append(CallPlan(own_records, place, later))
        part_of_pairs = slice(int(self._first[begin]), int(self._first[end]))
        owner = torch.searchsorted(self._places[begin:end], self._place[part_of_pairs])
        target = self._target[part_of_pairs]
        if self._batch is not None:
            found_at, found = owner, self._batch[direct.node[owner]] == target
        elif wiring.outputs:
            found_at, found = families[wiring.family[wiring.outputs[0]]].find(owner, target, graph.num_nodes)
        else:
            found_at, found = owner, torch.zeros_like(owner, dtype=torch.bool)
        pairs = self._flow[part_of_pairs][found]
        return ChunkPlan(edges, calls, families, pairs, target[found], found_at[found], part_of_pairs.stop)

    def _families(self, records: Sequence[Records], edges: Tensor) -> list[Records]:
        """The rows of each family of stages: all that change in one of its calls, or all nodes of the edge's graph."""
        wiring, graph = self.wiring, self.graph
        families = []
        for family in range(wiring.num_families):
            calls = [call for call in range(len(records)) if wiring.family[call + 1] == family]
            if family == wiring.batch and self._batch is not None and self._members is not None:
                edge, place = expand(self._members.ptr, self._batch[graph.destination[edges]])
                node = self._members.items[place]
                families.append(Records(edge, node))
            elif calls:
                families.append(Records.union([records[call] for call in calls], graph.num_nodes))
            else:
                # Nothing that is reduced can be seen in these: any rows will do.
                some = torch.zeros(2, dtype=torch.int64, device=graph.device)
                families.append(Records(some, graph.destination[edges][some]))
        assert wiring.family[INPUT] < len(families)
        return families

    def _place_in(self, rows: Records, records: Records) -> Tensor | None:
        return None if rows is records else rows.find(records.edge, records.node, self.graph.num_nodes)[0]

    def _follow(self, ways: Rows, senders: Records) -> tuple[Records, Changes]:
        """The rows that changed ones send to, and through which entries."""
        graph = self.graph
        sender, place = expand(ways.ptr, senders.node)
        entered = ways.items[place]
        key = senders.edge[sender] * graph.num_nodes + graph.destination[entered]
        key, row = key.unique(return_inverse=True)
        records = Records(key // graph.num_nodes, key % graph.num_nodes)
        return records, Changes(row, entered, graph.source[entered], sender)

    def _later(
        self, call: int, records: Records, changes: Changes, senders: Records, rows: Records, edges: Tensor, keep: bool
    ) -> LaterPlan:
        own_sender, is_own = senders.find(records.edge, records.node, self.graph.num_nodes)
        own = is_own.nonzero().view(-1)
        groups = list(self.groups(call, records, changes, edges, own)) if keep else None
        light = changes.at((~is_own[changes.row]).nonzero().view(-1))
        return LaterPlan(self._place_in(rows, senders), changes, light, own, own_sender[own], groups)


def _runs(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values of a sorted tensor, and where each one's run begins, with the total at the end."""
    values, counts = ascending.unique_consecutive(return_counts=True)
    return values, pointers(counts)
