"""Computes the new aggregated messages of changed rows in one call of a layer without attention.

A sum loses the old messages of its changed entries and gains the new ones. A mean is a sum divided by the number of
entries, which falls by one where an edge is deleted. With weights that are normalised by degrees, a deleted edge also
scales all messages into and out of its destination. Other aggregations are recomputed from all entries of the row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attree.faithfulness.exact.call_arguments import MessageArguments, as_columns
from attree.faithfulness.exact.call_plans import CallPlan, ChunkPlan, MessagePlan, OutputRows
from attree.faithfulness.exact.changed_rows import Changes
from attree.faithfulness.exact.lazy_features import Lazy, LazyRows, Store
from attree.faithfulness.exact.lazy_sums import Copies, Entries, LazySums, Sums
from attree.faithfulness.exact.message_trace import Features, MessageTrace
from attree.faithfulness.protocol import ReductionProtocol
from attree.tensors.arrays import take_rows
from attree.tensors.memory import REDUCTION_MEMORY, chunk_bounds


class MessageUpdate:
    """Update of one call of a layer without attention on rows.

    Args:
        layer: Recorded results of the call.
        call: The plan of the call.
        chunk: The plan of the chunk of reduced edges.
        protocol: The reduction protocol.
        arguments: The arguments of the call on rows.
        store: A cache for maps of the call's new features.
    """

    def __init__(
        self,
        layer: MessageTrace,
        call: CallPlan,
        chunk: ChunkPlan,
        protocol: ReductionProtocol,
        arguments: MessageArguments,
        store: Store,
    ) -> None:
        self.layer = layer
        self._store = store
        self.records = call.records
        self.plan = call.messages
        self.protocol = protocol
        self._outputs = call.outputs
        self._arguments = arguments
        self._factor = 0.0 if protocol.deletes else protocol.weight_factor
        records, graph = self.records, layer.graph
        # The reduced edge of each row in the numbering of the call, and whether the call has it in this row.
        self._union_edge = take_rows(chunk.variants.edge, records.variant)
        self._reduced = graph.edges(self._union_edge)
        enters = graph.enters(self._reduced, records.node)
        self._is_end = enters if layer.present is None else enters & layer.is_present(self._reduced.clamp(min=0))
        # Bases have the degrees without the edge, but all messages.
        bases = chunk.variants.num_bases
        self._enters = self._is_end & (records.variant >= bases) if bases else self._is_end

    def outputs(self) -> list[Tensor]:
        """Return the aggregated messages of the call's rows: new ones for changed rows, recorded ones for others."""
        (rows,) = self._outputs
        values = self.layer.lazy_values
        if values is not None and rows.among_records is None:
            return [self._lazy(values, rows)]
        new = self._recomputed() if self.layer.combination == "other" else self._updated()
        return [self._among_rows(new, rows)]

    def _lazy(self, values: LazyRows, rows: OutputRows) -> Tensor:
        """Return the outputs of a layer whose messages are multiples of its sources, computed when they are read.

        Each row is a multiple of the recorded one, and of the old and new features of a few sources. Rows of variants
        with a base start from the base's row.
        """
        layer, place = self.layer, rows.place
        assert layer.factor is not None
        is_mean, scale = layer.combination == "mean", self._scale_of_rows()
        growth = layer.factor.new_ones(self.records.node.numel())
        per_message = growth if scale is None else scale
        if is_mean:
            count = take_rows(layer.count, self.records.node)
            before, after = (number.clamp(min=1).to(growth.dtype) for number in (count, count - self._vanishes.long()))
            growth, per_message = before / after, per_message / after
        of_recorded, of_copies = self._changed_entries(values, per_message)
        multiple = growth if scale is None else growth * scale

        def among_rows(numbers: Tensor) -> Tensor:
            if place is None:
                return numbers
            return numbers.new_ones(rows.node.numel()).index_copy_(0, place, numbers)

        if place is not None:
            of_recorded, of_copies = (
                [replace(entries, row=take_rows(place, entries.row)) for entries in part]
                for part in (of_recorded, of_copies)
            )
        changes: list[Entries | Copies] = [*of_recorded]
        if rows.copies is not None:
            factor = take_rows(among_rows(growth), rows.copies.row) if is_mean else None
            changes += [Copies(rows.copies.row, rows.copies.source, factor), *of_copies]
        node, is_scaled = (self.records.node if place is None else rows.node), is_mean or scale is not None
        total = Sums(layer.matrix, values, node, among_rows(multiple) if is_scaled else None, tuple(changes))
        return LazySums((total,), node.numel())

    def _changed_entries(self, values: LazyRows, per_message: Tensor) -> tuple[list[Entries], list[Entries]]:
        """Return the messages that changed rows gain and lose: of rows without a base, and of rows with one.

        Args:
            values: The recorded features of all sources.
            per_message: What each message counts in each changed row.
        """
        layer, plan = self.layer, self.plan
        factor = layer.factor
        assert factor is not None
        left, split = self._enters, self.records.node.numel()  # rows whose reduced entry must still be removed
        parts: tuple[list[Entries], list[Entries]] = ([], [])

        def add(part: int, row: Tensor, weight: Tensor, sources: LazyRows) -> None:
            if row.numel():
                parts[part].append(Entries(row, weight * take_rows(per_message, row), sources))

        def add_to_copies(row: Tensor, weight: Tensor, source: Tensor, reference: Tensor) -> None:
            """Add messages as they were in the base: of a changed row of the base, or as recorded."""
            assert plan is not None
            of_base, recorded = (reference >= 0).nonzero().view(-1), (reference < 0).nonzero().view(-1)
            add(1, row[of_base], weight[of_base], self._sent(plan, reference[of_base]))
            add(1, row[recorded], weight[recorded], values.at(source[recorded]))

        if plan is not None:
            split = plan.first_copy
            entries, end = plan.changes, plan.first_copied_entry
            is_reduced = self._is_reduced(entries)
            left = left.index_fill(0, entries.row[is_reduced], False)
            old = take_rows(factor, entries.edge)
            scaled = old if layer.degrees is None or not self.protocol.deletes else old * self._scale_of_senders(plan)
            new = torch.where(is_reduced, scaled * self._factor, scaled) if self._factor != 1.0 else scaled
            if plan.has_new_features:
                add(0, entries.row[:end], new[:end], self._sent(plan, entries.sender[:end]))
                add(0, entries.row[:end], -old[:end], values.at(entries.source[:end]))
                add(1, entries.row[end:], new[end:], self._sent(plan, entries.sender[end:]))
            else:
                add(0, entries.row[:end], (new - old)[:end], values.at(entries.source[:end]))
            if plan.reference is not None:
                add_to_copies(entries.row[end:], -scaled[end:], entries.source[end:], plan.reference)
        if self._factor != 1.0:
            row = left.nonzero().view(-1)
            edges = take_rows(self._reduced, row)
            weight, source = (self._factor - 1.0) * take_rows(factor, edges), take_rows(layer.graph.source, edges)
            end = int((row < split).sum())
            add(0, row[:end], weight[:end], values.at(source[:end]))
            if end < row.numel():
                assert plan is not None
                assert plan.reduced_reference is not None
                reference = take_rows(plan.reduced_reference, row[end:] - split)
                add_to_copies(row[end:], weight[end:], source[end:], reference)
        return parts

    def _sent(self, plan: MessagePlan, sender: Tensor) -> LazyRows:
        """Return the features that changed rows of the sources send now."""
        values = self._arguments.nodes[self.layer.only_name][0]
        assert values is not None
        whole = values.read() if isinstance(values, Lazy) else values
        rows = sender if plan.senders is None else take_rows(plan.senders, sender)
        # All layers of a chunk share the store: the same map of other features must not be taken for this one.
        return LazyRows(whole, rows, whole.dtype, self._store, ("sent", id(self.layer)))

    def _is_reduced(self, changes: Changes) -> Tensor:
        """Whether each changed entry is the reduced edge of its row."""
        return take_rows(self._enters, changes.row) & (changes.edge == take_rows(self._reduced, changes.row))

    def _among_rows(self, new: Tensor, rows: OutputRows) -> Tensor:
        new = new if rows.among_records is None else take_rows(new, rows.among_records)
        if rows.place is None:
            return new
        return take_rows(self.layer.aggregated, rows.node).index_copy_(0, rows.place, new)

    @property
    def _vanishes(self) -> Tensor:
        """Whether the reduced edge of each row is deleted from it; a self-loop that a layer adds is added again."""
        if not self.protocol.deletes:
            return torch.zeros_like(self._enters)
        return self._enters & ~(self._is_loop if self.layer.adds_loops else torch.zeros_like(self._enters))

    @property
    def _is_loop(self) -> Tensor:
        """Whether the reduced edge of each row is a self-loop."""
        ends = self.layer.graph.graph.edge_index[:, self._union_edge]
        return ends[0] == ends[1]

    def _updated(self) -> Tensor:
        """Return new sums or means: only the changed entries are computed."""
        layer, plan, node = self.layer, self.plan, self.records.node
        is_mean = layer.combination == "mean"
        out = take_rows(layer.aggregated, node)
        count = take_rows(layer.count, node)
        if is_mean:
            out *= as_columns(count.clamp(min=1), out)
        left = self._enters.clone()  # rows whose reduced entry must still be removed
        scale = self._scale_of_rows()
        if plan is not None and plan.changes.num_entries:
            changes = plan.changes
            new, old = self._new_messages(plan), layer.messages(layer.recorded(changes.source), changes.edge)
            if scale is not None:
                new *= as_columns(self._scale_of_senders(plan), new)
            is_reduced = self._is_reduced(changes)
            left[changes.row[is_reduced]] = False
            if self._factor != 1.0:
                new = torch.where(as_columns(is_reduced, new), new * self._factor, new)
            out.index_add_(0, changes.row, new.sub_(old))
        if self._factor != 1.0:
            rows = left.nonzero().view(-1)
            edges = take_rows(self._reduced, rows)
            messages = layer.messages(layer.recorded(take_rows(layer.graph.source, edges)), edges)
            out.index_add_(0, rows, messages, alpha=self._factor - 1.0)
        if scale is not None:
            out *= as_columns(scale, out)
        if is_mean:
            out /= as_columns((count - self._vanishes.long()).clamp(min=1), out)
        return out

    def _new_messages(self, plan: MessagePlan) -> Tensor:
        """Return the new messages of changed entries, before the reduced one among them is reduced."""
        if not plan.has_new_features:
            return self.layer.messages(self.layer.recorded(plan.changes.source), plan.changes.edge)
        sender = plan.changes.sender if plan.senders is None else take_rows(plan.senders, plan.changes.sender)
        return self.layer.messages(self._given(0, sender), plan.changes.edge)

    def _given(self, side: int, rows: Tensor) -> Features:
        """Return the features that the layer is given now at some rows of its sources (0) or destinations (1)."""

        def take(name: str) -> Tensor:
            values = self._arguments.nodes[name][side]
            assert values is not None
            return take_rows(values, rows)

        return take

    def _scale_of_rows(self) -> Tensor | None:
        """Return the factor of all messages that enter each row; None if degrees do not change."""
        degrees = self.layer.degrees
        if degrees is None or not self.protocol.deletes:
            return None
        ones = degrees.changes.new_ones(self._is_end.numel())
        rows = self._is_end.nonzero().view(-1)
        return ones.index_copy_(0, rows, self._scale(take_rows(self._union_edge, rows)))

    def _scale_of_senders(self, plan: MessagePlan) -> Tensor:
        """Return the factor of the messages of changed entries, from the degrees of their sources."""
        changes, assumed = plan.changes, self.layer.degrees
        assert assumed is not None
        is_reached = take_rows(plan.sender_is_reached, changes.sender)
        ones = assumed.changes.new_ones(is_reached.numel())
        entries = is_reached.nonzero().view(-1)
        edges = take_rows(self._union_edge, take_rows(changes.row, entries))
        return ones.index_copy_(0, entries, self._scale(edges))

    def _scale(self, edges: Tensor) -> Tensor:
        """Return the factor of all messages into and out of the destinations of some edges that are deleted."""
        degrees = self.layer.degrees
        assert degrees is not None
        return take_rows(degrees.changes, edges)

    def _recomputed(self) -> Tensor:
        """Return new rows from all their entries, by the layer's own `propagate`."""
        layer, node = self.layer, self.records.node
        out = layer.aggregated.new_empty(node.numel(), *layer.aggregated.shape[1:])
        sizes = layer.graph.entering.sizes[node]
        per_entry = float(layer.shape.width * out.element_size() * 8 + 64)
        for begin, end in chunk_bounds(sizes * per_entry, REDUCTION_MEMORY // 4):
            out[begin:end] = self._rows(begin, end)
        return out

    def _rows(self, begin: int, end: int) -> Tensor:
        """Recompute the rows `begin` to `end`."""
        layer, graph = self.layer, self.layer.graph
        node = self.records.node[begin:end]
        row, edge = layer.entries(node)
        is_reduced = self._enters[begin:end][row] & (edge == self._reduced[begin:end][row])
        silenced: Tensor | None = None if self._factor == 1.0 else is_reduced
        vanishes = is_reduced & self._vanishes[begin:end][row]
        keep = None
        if bool(vanishes.any()):
            keep = ~vanishes
            row, edge, silenced = row[keep], edge[keep], is_reduced[keep]
        sources, targets = layer.recorded(graph.source[edge]), layer.recorded_targets(node)
        if self.plan is not None and self.plan.has_new_features:
            sources = self._moved_sources(self.plan, begin, end, row, edge, sources)
            targets = self._moved_targets(self.plan, begin, end, targets)
        return layer.propagate(row, end - begin, sources, targets, edge, silenced, self._factor)

    def _moved_sources(
        self, plan: MessagePlan, begin: int, end: int, row: Tensor, edge: Tensor, recorded: Features
    ) -> Features:
        """Return the features of the sources of some entries: new ones for changed entries."""
        within = (plan.changes.row >= begin) & (plan.changes.row < end)
        changes: Changes = plan.changes.at(within.nonzero().view(-1))
        stride = self.layer.graph.num_edges
        keys, order = (row * stride + edge).sort()
        changed_keys = (changes.row - begin) * stride + changes.edge
        place = torch.searchsorted(keys, changed_keys).clamp_(max=max(keys.numel() - 1, 0))
        is_entry = keys[place] == changed_keys if keys.numel() else torch.zeros_like(changed_keys, dtype=torch.bool)
        entry = order[place[is_entry]] if keys.numel() else place[:0]
        sender = changes.sender[is_entry]
        new_features = self._given(0, sender if plan.senders is None else take_rows(plan.senders, sender))
        return lambda name: recorded(name).index_copy(0, entry, new_features(name))

    def _moved_targets(self, plan: MessagePlan, begin: int, end: int, recorded: Features) -> Features:
        """Return the features of some rows: new ones where they changed."""
        within = ((plan.moved >= begin) & (plan.moved < end)).nonzero().view(-1)
        sender = take_rows(plan.moved_sender, within)
        new_features = self._given(1, sender if plan.targets is None else take_rows(plan.targets, sender))
        rows = take_rows(plan.moved, within) - begin
        return lambda name: recorded(name).index_copy(0, rows, new_features(name))
