"""Finds, for every reduced edge, the rows that change in each call of a convolution.

Reducing edge e = (i -> j) changes only node j in a call on the model's input. In each later call it changes the nodes
that receive a message from a changed node, and j again. The effect on these rows does not depend on the target, so
targets share them. Only rows on a path to some target are planned. The plan depends only on the graph, the pairs and
the stages, so a small plan is kept for the next reduction of the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.pairs import Pairs
from attree.faithfulness.exact.call_plans import CallPlan, ChunkPlan, LaterPlan, MessagePlan
from attree.faithfulness.exact.changed_rows import (
    ChangedRows,
    Changes,
    RowGroup,
    RowKeys,
    TargetPaths,
    Variants,
    row_groups,
)
from attree.faithfulness.exact.forward_rows import FamilyRows
from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape
from attree.faithfulness.exact.stages import Stages
from attree.subject.target_roots import OutputLevel
from attree.tensors.arrays import expand, pointers, row_of, take_rows
from attree.tensors.memory import chunk_bounds

CHUNK_BYTES = 64 * 2**20
"""Maximum bytes for planning one chunk; memory that is reused stays mapped."""


class ReductionPlan:
    """Splits pairs into chunks and plans the reduction of each.

    Args:
        graph: The graph.
        pairs: The pairs.
        layers: The edges of each call.
        shapes: The shape of each call.
        stages: Which call feeds which.
        outputs: What the rows of the output belong to.
        memory: Bytes of working memory; the rows of one reduced edge always stay in one chunk.
        deletes: Whether edges are deleted, which changes the degrees that some layers read.
    """

    def __init__(
        self,
        graph: Graph,
        pairs: Pairs,
        layers: Sequence[LayerGraph],
        shapes: Sequence[LayerShape],
        stages: Stages,
        outputs: OutputLevel,
        memory: int,
        deletes: bool = False,
    ) -> None:
        self.graph = graph
        self.pairs = pairs
        self.layers = layers
        self.shapes = shapes
        self.stages = stages
        self.memory = memory
        self._families = FamilyRows(graph, layers, stages, outputs)
        self._spreads = [deletes and shape.spreads for shape in shapes]
        self._has_bases = (
            any(self._spreads)
            and graph.types is None
            and stages.reads in (None, "links")
            and all(shape.has_copies for shape in shapes)
            and all(spread or feeds for spread, feeds in zip(self._spreads, stages.feeds, strict=True))
        )
        # If a call on the model's input reads degrees, edges matter that are one hop farther away than flows begin.
        reads_farther = any(spread and not feeds for spread, feeds in zip(self._spreads, stages.feeds, strict=True))
        matters = torch.ones_like(pairs.flow) if reads_farther else pairs.flow
        flow = matters.nonzero().view(-1)
        self.num_pairs = flow.numel()
        target, edge = take_rows(pairs.targets, take_rows(pairs.owner, flow)), take_rows(pairs.edges, flow)
        # Order edges by destination, so that rows of one node are computed together.
        place = take_rows(graph.entering.ptr[graph.destination] + graph.entering_rank, edge)
        order = (place * max(graph.num_nodes, int(pairs.targets.max()) + 1 if len(pairs) else 1) + target).argsort()
        self._flow, self._target = take_rows(flow, order), take_rows(target, order)
        self._places, self._first = _runs(take_rows(place, order))
        self._edges = graph.entering.items[self._places]
        self._paths = TargetPaths(graph, layers, stages, self._families.nodes_read(pairs.targets), self._spreads)
        following, running = self._cost()
        self._bounds = chunk_bounds(following + running, min(memory, CHUNK_BYTES))
        if stages.reads == "one graph":
            self._bounds = [(number, number + 1) for number in range(self._edges.numel())]
        self._small = float(following.sum()) <= memory
        self._kept: list[ChunkPlan] | None = None

    def chunks(self, keep: bool = True) -> Iterator[ChunkPlan]:
        """Yield the plan of each chunk; with `keep`, store all plans for the next call if they fit into memory."""
        if keep and self._small and self._kept is None:
            self._kept = [self._chunk(begin, end, keep=True) for begin, end in self._bounds]
        if self._kept is not None:
            yield from self._kept
        else:
            yield from (self._chunk(begin, end, keep=False) for begin, end in self._bounds)

    def groups(self, call: int, records: RowKeys, changes: Changes, edges: Tensor, rows: Tensor) -> Iterator[RowGroup]:
        """Split some rows of a call into groups that are recomputed together.

        Args:
            call: The number of the call.
            records: Its rows, with nodes in the call's numbering.
            changes: The changed entries of the rows.
            edges: The reduced edges of the chunk.
            rows: Positions of the rows to group.
        """
        layer = self.layers[call]
        changed = ChangedRows(records.node, layer.edges(edges[records.variant]), changes).at(rows)
        return row_groups(layer, changed, self.shapes[call], self.memory)

    def _cost(self) -> tuple[Tensor, Tensor]:
        """Return the bytes per reduced edge for its changed entries, a few vectors each, and for its rows."""
        entries = self._paths.entries(self._edges)
        if self._has_bases:
            # Each base is computed once for all edges that enter its node.
            shares = self.graph.destination[self._edges].unique(return_inverse=True, return_counts=True)[1:]
            entries = entries / shares[1][shares[0]] + self._paths.entries(self._edges, with_degrees=False)
        rows = torch.zeros_like(entries)
        if self.stages.stages_meet:
            rows = entries.clamp(max=float(self.graph.num_nodes))
        in_graph = self._families.graph_sizes(self.graph.destination[self._edges])
        if in_graph is not None:
            rows = in_graph.to(rows.dtype)
        if self._families.ends is not None:
            rows = rows + 4.0 * self._first.diff()  # two rows and two queries per target
        width = max(shape.width for shape in self.shapes)
        return entries * float(width * 8 * 6 + 128), rows * float(self.stages.width * 8 * 3)

    def _chunk(self, begin: int, end: int, keep: bool) -> ChunkPlan:
        """Plan the reduction of some edges: follow each through the calls."""
        stages, variants = self.stages, self._variants(self._edges[begin:end])
        edges = variants.edge
        reduced = RowKeys(torch.arange(edges.numel(), device=edges.device), self.graph.destination[edges])
        bases = None if variants.base is None else reduced.at(slice(0, variants.num_bases))
        records: list[RowKeys] = []
        changes: list[Changes | None] = []
        senders: list[tuple[RowKeys, ...]] = []
        for call, inputs in enumerate(stages.inputs):
            reached = self._reached(call, reduced, edges)
            if not stages.feeds[call] and not self._spreads[call]:
                records.append(reached)
                changes.append(None)
                senders.append(())
            else:
                starts = None
                if stages.feeds[call]:
                    senders.append(tuple(self._senders(call, number, records) for number in range(len(inputs))))
                else:
                    senders.append((reduced if bases is None else bases,))
                    starts = None if bases is None else reached
                followed, through = self._follow(call, senders[-1], reached, starts)
                records.append(followed)
                changes.append(through)
        part = slice(int(self._first[begin]), int(self._first[end]))
        target = self._target[part]
        owner = take_rows(variants.of_edge, row_of(self._first[begin : end + 1].diff()))
        families = self._families.rows(records, variants, owner, target)
        calls = []
        for call, through_entries in enumerate(changes):
            layer, changed = self.layers[call], records[call]
            local = changed if layer.blocks is None else RowKeys(changed.variant, layer.nodes(changed.node))
            later, messages = None, None
            if through_entries is not None and self.shapes[call].is_message:
                messages = self._messages(call, changed, local, through_entries, senders[call], families, variants)
            elif through_entries is not None:
                later = self._later(call, changed, local, through_entries, senders[call], families, edges, keep)
            outputs = self._families.outputs(call, families[stages.family[call + 1]], changed, variants)
            calls.append(CallPlan(local, outputs, later, messages, self._families.root(call, families, variants)))
        row, is_found = self._families.pair_rows(families, owner, target, variants)
        queries = self._families.queries(families, owner, target)
        pairs = self._flow[part]
        if not bool(is_found.all()):
            positions = is_found.nonzero().view(-1)
            pairs, row = take_rows(pairs, positions), take_rows(row, positions)
        return ChunkPlan(variants, calls, families, pairs, row, queries, part.stop)

    def _variants(self, edges: Tensor) -> Variants:
        """Return the variants of the network for some reduced edges."""
        if not self._has_bases:
            return Variants.alone(edges)
        return Variants.with_bases(edges, self.graph.destination[edges], edges >= self.graph.num_proper_edges)

    def _reached(self, call: int, reduced: RowKeys, edges: Tensor) -> RowKeys:
        """Return the rows that reduced edges enter in a call, if they lie on a path to a target."""
        needed, layer = self._paths.needed[call][reduced.node], self.layers[call]
        if layer.blocks is not None:
            needed = needed & (layer.edges(edges) >= 0)
        return reduced if bool(needed.all()) else reduced.at(needed.nonzero().view(-1))

    def _senders(self, call: int, number: int, records: Sequence[RowKeys]) -> RowKeys:
        """Return the changed rows of one input of a call."""
        feeds, blocks = self.stages.inputs[call][number], self.layers[call].blocks
        parts = [records[before - 1] for before in feeds]
        if not parts:
            none = torch.zeros(0, dtype=torch.int64, device=self.graph.device)
            return RowKeys(none, none)
        changed = RowKeys.union(parts, self.graph.num_nodes)
        return changed if blocks is None else self._families.of_type(changed, blocks.inputs[number])

    def _follow(
        self, call: int, senders: Sequence[RowKeys], reached: RowKeys, starts: RowKeys | None
    ) -> tuple[RowKeys, Changes]:
        """Return the rows that receive a message from a changed row, and the entries that carry these messages.

        Calls on several types have no self-loops to follow. For these, rows whose own features changed and rows that
        the reduced edge enters are added.

        Args:
            call: The number of the call.
            senders: The changed rows of each of its inputs.
            reached: The rows that the reduced edges enter.
            starts: Rows to add: those among them that send no changed message.
        """
        layer, num_nodes, first = self.layers[call], self.graph.num_nodes, 0
        keys, edges, positions = [], [], []
        sources = (0,) if layer.blocks is None else layer.blocks.sources
        for onward, number in zip(self._paths.onward[call], sources, strict=True):
            changed = senders[number]
            sender, place = expand(onward.ptr, changed.node)
            entered = take_rows(onward.items, place)
            keys.append(take_rows(changed.variant * num_nodes, sender) + take_rows(layer.destination_node, entered))
            edges.append(entered)
            positions.append(sender + first if first else sender)
            first += changed.node.numel()
        entered = _joined(edges)
        if layer.blocks is not None:
            for number in layer.blocks.targets:
                changed = senders[number]
                changed = changed.at(self._paths.needed[call][changed.node].nonzero().view(-1))
                keys.append(changed.keys(num_nodes))
            keys.append(reached.keys(num_nodes))
        elif starts is not None:
            keys.append(starts.keys(num_nodes))
        key, row = _joined(keys).unique(return_inverse=True)
        records = RowKeys.of_keys(key, num_nodes)
        source = take_rows(layer.source, entered)
        return records, Changes(row[: entered.numel()], entered, source, _joined(positions))

    def _later(
        self,
        call: int,
        records: RowKeys,
        local: RowKeys,
        changes: Changes,
        senders: Sequence[RowKeys],
        families: Sequence[RowKeys],
        edges: Tensor,
        keep: bool,
    ) -> LaterPlan:
        """Return the plan for a call that earlier convolutions feed: the rows to update and to recompute."""
        layer, places = self.layers[call], self._places_of(call, senders, families)
        unchanged = None
        if layer.blocks is None:
            recomputed, recomputed_sender = self._through_loops(changes)
        else:
            sender, is_own = self._own_senders(layer, records, senders)
            recomputed = (is_own | layer.enters(layer.edges(edges[records.variant]), local.node)).nonzero().view(-1)
            recomputed_sender = take_rows(sender, recomputed)
            unchanged = ~is_own[recomputed]
            unchanged = unchanged if bool(unchanged.any()) else None
        again = torch.zeros_like(records.node, dtype=torch.bool).index_fill_(0, recomputed, True)
        groups = list(self.groups(call, local, changes, edges, recomputed)) if keep else None
        light = changes.at((~take_rows(again, changes.row)).nonzero().view(-1))
        return LaterPlan(tuple(places), changes, light, recomputed, recomputed_sender, unchanged, groups)

    def _messages(
        self,
        call: int,
        records: RowKeys,
        local: RowKeys,
        changes: Changes,
        senders: Sequence[RowKeys],
        families: Sequence[RowKeys],
        variants: Variants,
    ) -> MessagePlan:
        """Return the plan for a layer without attention that changed rows send messages to."""
        layer, places = self.layers[call], self._places_of(call, senders, families)
        if layer.blocks is None:
            moved, moved_sender = self._through_loops(changes)
        else:
            sender, is_own = self._own_senders(layer, records, senders)
            moved = is_own.nonzero().view(-1)
            moved_sender = take_rows(sender, moved)
        end = self.graph.destination[variants.edge]
        is_reached = take_rows(end, senders[0].variant) == senders[0].node
        has_new_features = bool(self.stages.feeds[call])
        first, entry = local.node.numel(), changes.num_entries
        reference = reduced_reference = None
        if variants.base is not None:
            variant = take_rows(senders[0].variant, changes.sender)
            first, entry = (
                int(torch.searchsorted(numbers, variants.first_copy)) for numbers in (records.variant, variant)
            )
            if has_new_features:
                reference = self._sender_of_base(senders[0], variants, variant[entry:], changes.source[entry:])
                edge = take_rows(variants.edge, records.variant[first:])
                source = take_rows(self.graph.source, edge)
                reduced_reference = self._sender_of_base(senders[0], variants, records.variant[first:], source)
            else:
                reduced_reference = torch.full_like(records.variant[first:], -1)
        return MessagePlan(
            places[0],
            has_new_features,
            is_reached,
            changes,
            moved,
            moved_sender,
            places[-1],
            first,
            entry,
            reference,
            reduced_reference,
        )

    def _sender_of_base(self, senders: RowKeys, variants: Variants, variant: Tensor, node: Tensor) -> Tensor:
        """Return the sender of each node in the base of a variant; -1 if the node does not change there."""
        place, is_found = senders.find(variants.base_of(variant), node, self.graph.num_nodes)
        return torch.where(is_found, place, -1)

    def _places_of(self, call: int, senders: Sequence[RowKeys], families: Sequence[RowKeys]) -> list[Tensor | None]:
        """Return the positions of the changed rows of each input of a call among its rows; None if all changed."""
        layer, places = self.layers[call], list[Tensor | None]()
        for number, feeds in enumerate(self.stages.inputs[call]):
            if not feeds:
                places.append(senders[number].node[:0])  # none of its rows changes
                continue
            rows = families[self.stages.family[feeds[0]]]
            rows = rows if layer.blocks is None else self._families.of_type(rows, layer.blocks.inputs[number])
            places.append(self._families.place_in(rows, senders[number]))
        return places

    def _through_loops(self, changes: Changes) -> tuple[Tensor, Tensor]:
        """Return the rows whose own features changed, and their senders, in a graph of one type.

        A changed node sends itself a message through its self-loop.
        """
        loops = (changes.edge >= self.graph.num_proper_edges).nonzero().view(-1)
        rows, order = take_rows(changes.row, loops).sort()
        return rows, take_rows(changes.sender, take_rows(loops, order))

    def _own_senders(self, layer: LayerGraph, records: RowKeys, senders: Sequence[RowKeys]) -> tuple[Tensor, Tensor]:
        """Return the position of each row among the senders that are destinations, and a mask of those found."""
        assert layer.blocks is not None
        own_sender = torch.zeros_like(records.node)
        is_own, first = torch.zeros_like(own_sender, dtype=torch.bool), 0
        for number in layer.blocks.targets:
            place, is_sender = senders[number].find(records.variant, records.node, self.graph.num_nodes)
            own_sender = torch.where(is_sender, place + first, own_sender)
            is_own |= is_sender
            first += senders[number].node.numel()
        return own_sender, is_own


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _runs(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values of a sorted tensor, and the start of each value's run, followed by the length."""
    values, counts = ascending.unique_consecutive(return_counts=True)
    return values, pointers(counts)
