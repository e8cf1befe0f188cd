"""Finds, for every reduced edge, the rows that change in each call of a convolution.

Reducing edge e = (i -> j) changes only node j in a call on the model's input. In each later call it changes the nodes
that receive a message from a changed node, and j again. Targets share these rows: what happens to an edge does not
depend on the target. Only rows on a path to some target are made. The plan follows from the graph, the pairs and the
wiring alone, so it is kept for the next reduction of the same pairs where it is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.pairs import Pairs
from attree.faithfulness.exact.changes import (
    CallPlan,
    ChangedRows,
    Changes,
    ChunkPlan,
    LaterPlan,
    LayerShape,
    Records,
    RowGroup,
    row_groups,
)
from attree.faithfulness.exact.wiring import Wiring
from attree.subject.level import OutputLevel
from attree.tensors.memory import chunk_bounds
from attree.tensors.ragged import Rows, expand, group, pointers, row_of, take_rows


class Ways:
    """The paths from changed nodes to targets: which nodes matter in each call, and which edges lead there.

    Paths follow the looped graph, whatever edges a layer leaves out: a skip may carry a node to itself.

    Args:
        graph: The graph.
        wiring: Which call feeds which.
        nodes: The nodes that outputs are read from.

    Attributes:
        needed: For each call, the nodes at which its output matters, as a mask [num_nodes].
        onward: For each call on what earlier calls returned, the edges that enter these nodes, grouped by their source.
    """

    def __init__(self, graph: Graph, wiring: Wiring, nodes: Tensor) -> None:
        self._graph = graph
        self._wiring = wiring
        feeds = wiring.feeds
        none = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        read = none.index_fill(0, nodes, True)
        self.needed = [(read if call in wiring.outputs else none).clone() for call in range(1, len(feeds) + 1)]
        self.onward: list[Rows | None] = [None] * len(feeds)
        for call in reversed(range(len(feeds))):
            if feeds[call]:
                _, place = expand(graph.entering.ptr, self.needed[call].nonzero().view(-1))
                edges = graph.entering.items[place]
                source = graph.source[edges]
                by_source = group(source, graph.num_nodes)
                self.onward[call] = Rows(by_source.ptr, edges[by_source.items])
                for before in feeds[call]:
                    self.needed[before - 1][source] = True

    def entries(self, edges: Tensor) -> Tensor:
        """Upper bound on the entries that reducing each of some edges changes, over all calls."""
        graph, feeds = self._graph, self._wiring.feeds
        counts = [torch.ones(graph.num_nodes, device=graph.device) for _ in feeds]
        for call in reversed(range(len(feeds))):
            rows = self.onward[call]
            if rows is not None:
                onward = torch.zeros_like(counts[call])
                onward.index_add_(0, graph.source[rows.items], counts[call][graph.destination[rows.items]])
                for before in feeds[call]:
                    counts[before - 1] = (counts[before - 1] + onward).clamp_(max=float(graph.num_edges))
        total = torch.zeros(edges.numel(), device=graph.device)
        for count, before_it in zip(counts, feeds, strict=True):
            if not before_it:
                total += count[graph.destination[edges]]
        return total


CHUNK_BYTES = 64 * 2**20
"""Bytes that following the edges of one chunk takes, at most: memory that is used again and again stays mapped."""


class ReductionPlan:
    """The chunks that pairs are reduced in.

    Args:
        graph: The graph.
        pairs: The pairs.
        shapes: The shape of each call.
        wiring: Which call feeds which.
        outputs: What targets are.
        memory: Bytes of working memory; what one reduced edge changes is never cut.
    """

    def __init__(
        self,
        graph: Graph,
        pairs: Pairs,
        shapes: Sequence[LayerShape],
        wiring: Wiring,
        outputs: OutputLevel,
        memory: int,
    ) -> None:
        self.graph = graph
        self.pairs = pairs
        self.shapes = shapes
        self.wiring = wiring
        self.memory = memory
        self._batch = batch = outputs.batch
        self._ends = outputs.ends
        self._members = None if batch is None else group(batch, int(batch.max()) + 1)
        flow = pairs.flow.nonzero().view(-1)
        self.num_pairs = flow.numel()
        target, edge = take_rows(pairs.targets, take_rows(pairs.owner, flow)), take_rows(pairs.edges, flow)
        # By the node that edges enter: rows of one node are then computed together.
        place = take_rows(graph.entering.ptr[graph.destination] + graph.entering_rank, edge)
        order = (place * max(graph.num_nodes, int(pairs.targets.max()) + 1 if len(pairs) else 1) + target).argsort()
        self._flow, self._target = take_rows(flow, order), take_rows(target, order)
        self._places, self._first = _runs(take_rows(place, order))
        self._edges = graph.entering.items[self._places]
        nodes = pairs.targets
        if self._ends is not None:
            nodes = self._ends[:, nodes].reshape(-1)
        if self._members is not None:
            nodes = self._members.items[expand(self._members.ptr, nodes)[1]]
        self._ways = Ways(graph, wiring, nodes)
        following, running = self._cost()
        self._bounds = chunk_bounds(following + running, min(memory, CHUNK_BYTES))
        if wiring.reads == "one graph":
            self._bounds = [(number, number + 1) for number in range(self._edges.numel())]
        self._small = float(following.sum()) <= memory
        self._kept: list[ChunkPlan] | None = None

    def chunks(self, keep: bool = True) -> Iterator[ChunkPlan]:
        """The chunks; with `keep`, where all of them fit into memory, they are kept for the next time."""
        if keep and self._small and self._kept is None:
            self._kept = [self._chunk(begin, end, keep=True) for begin, end in self._bounds]
        if self._kept is not None:
            yield from self._kept
        else:
            yield from (self._chunk(begin, end, keep=False) for begin, end in self._bounds)

    def groups(self, call: int, records: Records, changes: Changes, edges: Tensor, rows: Tensor) -> Iterator[RowGroup]:
        """Some rows of a call, cut into groups that are recomputed together."""
        changed = ChangedRows(records.node, edges[records.edge], changes).at(rows)
        return row_groups(self.graph, changed, self.shapes[call], self.memory)

    def _cost(self) -> tuple[Tensor, Tensor]:
        """Bytes that each reduced edge takes: for its changed entries, a few vectors wide each, and for its rows."""
        entries = self._ways.entries(self._edges)
        rows = torch.zeros_like(entries)
        if self.wiring.stages_meet:
            rows = entries.clamp(max=float(self.graph.num_nodes))
        if self._batch is not None and self._members is not None:
            rows = self._members.sizes[self._batch[self.graph.destination[self._edges]]].to(rows.dtype)
        if self._ends is not None:
            rows = rows + 4.0 * self._first.diff()  # two rows and two queries for each target
        width = max(shape.width for shape in self.shapes)
        return entries * float(width * 8 * 6 + 128), rows * float(self.wiring.width * 8 * 3)

    def _chunk(self, begin: int, end: int, keep: bool) -> ChunkPlan:
        """Follow some reduced edges through the calls."""
        edges, wiring = self._edges[begin:end], self.wiring
        reduced = Records(torch.arange(edges.numel(), device=edges.device), self.graph.destination[edges])
        records: list[Records] = []
        changes: list[Changes | None] = []
        senders: list[Records] = []
        for call, feeds in enumerate(wiring.feeds):
            rows = self._ways.onward[call]
            if rows is None:
                needed = self._ways.needed[call][reduced.node]
                records.append(reduced if bool(needed.all()) else reduced.at(needed.nonzero().view(-1)))
                changes.append(None)
                senders.append(reduced)
            else:
                senders.append(Records.union([records[before - 1] for before in feeds], self.graph.num_nodes))
                found, through = self._follow(rows, senders[-1])
                records.append(found)
                changes.append(through)
        part = slice(int(self._first[begin]), int(self._first[end]))
        target = self._target[part]
        owner = row_of(self._first[begin : end + 1].diff())
        families = self._families(records, edges, owner, target)
        calls = []
        for call, through_entries in enumerate(changes):
            later = None
            if through_entries is not None:
                place = self._place_in(families[wiring.family[wiring.feeds[call][0]]], senders[call])
                later = self._later(call, records[call], through_entries, senders[call], place, edges, keep)
            own_place = self._place_in(families[wiring.family[call + 1]], records[call])
            calls.append(CallPlan(records[call], own_place, later))
        row, is_found = self._rows_of(families, owner, target, reduced)
        queries = self._queries(families, owner, target)
        changing = self._flow[part], target, row
        if not bool(is_found.all()):
            chosen = is_found.nonzero().view(-1)
            changing = take_rows(changing[0], chosen), take_rows(target, chosen), take_rows(row, chosen)
        return ChunkPlan(edges, calls, families, *changing, queries, part.stop)

    def _queries(self, families: Sequence[Records], owner: Tensor, target: Tensor) -> Tensor | None:
        """The two ends of each pair's target as rows of the family that outputs read, [2, pairs]."""
        if self._ends is None or self.wiring.readout is None:
            return None
        rows = families[self.wiring.readout]
        return torch.stack([rows.find(owner, end[target], self.graph.num_nodes)[0] for end in self._ends])

    def _rows_of(
        self, families: Sequence[Records], owner: Tensor, target: Tensor, reduced: Records
    ) -> tuple[Tensor, Tensor]:
        """For each pair of a reduced edge and a target, its row in the output, and whether there is one."""
        if self._batch is not None:
            return owner, self._batch[reduced.node[owner]] == target
        if self._ends is not None:
            return torch.arange(owner.numel(), device=owner.device), torch.ones_like(owner, dtype=torch.bool)
        if not self.wiring.outputs:
            return owner, torch.zeros_like(owner, dtype=torch.bool)
        return families[self.wiring.family[self.wiring.outputs[0]]].find(owner, target, self.graph.num_nodes)

    def _families(self, records: Sequence[Records], edges: Tensor, owner: Tensor, target: Tensor) -> list[Records]:
        """The rows of each family of stages.

        These are all that change in one of its calls. Where outputs are those of graphs, the family that they read has
        all nodes of the edge's graph; where they are those of links, the ends of the targets too.
        """
        wiring, destination = self.wiring, self.graph.destination[edges]
        families = []
        for family in range(wiring.num_families):
            members = [one for one, own in zip(records, wiring.family[1:], strict=True) if own == family]
            if family == wiring.readout and self._batch is not None and self._members is not None:
                edge, place = expand(self._members.ptr, self._batch[destination])
                families.append(Records(edge, self._members.items[place]))
            elif family == wiring.readout and self._ends is not None:
                ends = [Records(owner, end[target]) for end in self._ends]
                families.append(Records.union([*members, *ends], self.graph.num_nodes))
            elif members:
                families.append(Records.union(members, self.graph.num_nodes))
            else:
                # No reduction reaches these stages: any rows will do.
                some = torch.zeros(2, dtype=torch.int64, device=edges.device)
                families.append(Records(some, destination[some]))
        return families

    def _place_in(self, rows: Records, records: Records) -> Tensor | None:
        return None if rows is records else rows.find(records.edge, records.node, self.graph.num_nodes)[0]

    def _follow(self, ways: Rows, senders: Records) -> tuple[Records, Changes]:
        """The rows that receive a message from a changed row, and the entries that carry these messages."""
        graph = self.graph
        sender, place = expand(ways.ptr, senders.node)
        entered = take_rows(ways.items, place)
        key = take_rows(senders.edge * graph.num_nodes, sender) + take_rows(graph.destination, entered)
        key, row = key.unique(return_inverse=True)
        edge = key.div(graph.num_nodes, rounding_mode="floor")
        records = Records(edge, key - edge * graph.num_nodes)
        return records, Changes(row, entered, take_rows(graph.source, entered), sender)

    def _later(
        self,
        call: int,
        records: Records,
        changes: Changes,
        senders: Records,
        place: Tensor | None,
        edges: Tensor,
        keep: bool,
    ) -> LaterPlan:
        # A changed node sends itself a message, by its self-loop: so its row is one whose own features changed.
        loops = (changes.edge >= self.graph.num_proper_edges).nonzero().view(-1)
        own, order = take_rows(changes.row, loops).sort()
        own_sender = take_rows(changes.sender, take_rows(loops, order))
        is_own = torch.zeros_like(records.node, dtype=torch.bool).index_fill_(0, own, True)
        groups = list(self.groups(call, records, changes, edges, own)) if keep else None
        light = changes.at((~take_rows(is_own, changes.row)).nonzero().view(-1))
        return LaterPlan(place, changes, light, own, own_sender, groups)


def _runs(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values of a sorted tensor, and where each one's run begins, with the total at the end."""
    values, counts = ascending.unique_consecutive(return_counts=True)
    return values, pointers(counts)
