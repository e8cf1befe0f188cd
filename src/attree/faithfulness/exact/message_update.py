"""Computes the new aggregated messages of changed rows in one call of a layer without attention.

A sum loses the old messages of its changed entries and gains the new ones. A mean is a sum divided by the number of
entries, which falls by one where an edge is deleted. With weights that are normalised by degrees, a deleted edge also
scales all messages into and out of its destination. Other aggregations are recomputed from all entries of the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attree.faithfulness.exact.call_arguments import MessageArguments, as_columns
from attree.faithfulness.exact.changed_rows import CallPlan, Changes, ChunkPlan, MessagePlan, OutputRows
from attree.faithfulness.exact.lazy_rows import LazyRows
from attree.faithfulness.exact.lazy_sums import Entries, LazySums, Recorded, Term
from attree.faithfulness.exact.message_trace import Features, MessageTrace
from attree.faithfulness.protocol import ReductionProtocol
from attree.tensors.arrays import take_rows
from attree.tensors.limits import REDUCTION_MEMORY, chunk_bounds


class MessageUpdate:
    """Update of one call of a layer without attention on rows.

    Args:
        layer: Recorded results of the call.
        call: The plan of the call.
        chunk: The plan of the chunk of reduced edges.
        protocol: The reduction protocol.
        arguments: The arguments of the call on rows.
    """

    def __init__(
        self,
        layer: MessageTrace,
        call: CallPlan,
        chunk: ChunkPlan,
        protocol: ReductionProtocol,
        arguments: MessageArguments,
    ) -> None:
        self.layer = layer
        self.records = call.records
        self.plan = call.messages
        self.protocol = protocol
        self._outputs = call.outputs
        self._arguments = arguments
        self._factor = 0.0 if protocol.deletes else protocol.weight_factor
        records, graph = self.records, layer.graph
        # The reduced edge of each row in the numbering of the call, and whether the call has it in this row.
        self._union_edge = take_rows(chunk.edges, records.edge)
        self._reduced = graph.edges(self._union_edge)
        enters = graph.enters(self._reduced, records.node)
        self._enters = enters if layer.present is None else enters & layer.is_present(self._reduced.clamp(min=0))

    def outputs(self) -> list[Tensor]:
        """Return the aggregated messages of the call's rows: new ones for changed rows, recorded ones for others."""
        (rows,) = self._outputs
        values = self.layer.lazy_values
        if values is not None and rows.among_records is None and (self.plan is None or not self.plan.has_new_features):
            return [self._lazy(values, rows)]
        new = self._recomputed() if self.layer.combination == "other" else self._updated()
        return [self._among_rows(new, rows)]

    def _lazy(self, values: LazyRows, rows: OutputRows) -> Tensor:
        """Return the outputs of a layer on the model's input, computed when they are read.

        Only factors change there: each row is a multiple of the recorded one and of the features of a few sources.
        """
        layer, plan, graph = self.layer, self.plan, self.layer.graph
        factor, is_mean = layer.factor, layer.combination == "mean"
        assert factor is not None
        count = take_rows(layer.count, self.records.node)
        before, after = (
            number.clamp(min=1).to(factor.dtype) if is_mean else factor.new_ones(number.numel())
            for number in (count, count - self._vanishes.long())
        )
        scale = self._scale_of_rows()
        multiple = factor.new_ones(count.numel()) if scale is None else scale
        entry_row, entry_factor, entry_source = [], [], []
        left = self._enters
        if plan is not None and plan.changes.num_entries:  # degrees changed
            changes = plan.changes
            is_reduced = self._is_reduced(changes)
            left = left.index_fill(0, changes.row[is_reduced], False)
            new = torch.where(is_reduced, self._factor, self._scale_of_senders(plan))
            entry_row.append(changes.row)
            entry_factor.append((new - 1.0) * take_rows(factor, changes.edge))
            entry_source.append(changes.source)
        if self._factor != 1.0:
            of_left = left.nonzero().view(-1)
            edges = take_rows(self._reduced, of_left)
            entry_row.append(of_left)
            entry_factor.append((self._factor - 1.0) * take_rows(factor, edges))
            entry_source.append(take_rows(graph.source, edges))
        multiple = multiple / after
        place, node = rows.place, self.records.node
        if place is not None:
            node = rows.node
            multiple_of_rows = factor.new_ones(node.numel()).index_copy_(0, place, multiple * before)
        else:
            multiple_of_rows = multiple * before
        terms: list[Term] = [Recorded(layer.matrix, values, node, multiple_of_rows)]
        if entry_row:
            row = torch.cat(entry_row)
            of_entries = torch.cat(entry_factor) * take_rows(multiple, row)
            at = row if place is None else take_rows(place, row)
            terms.append(Entries(at, of_entries, values.at(torch.cat(entry_source))))
        return LazySums(tuple(terms), node.numel())

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
        ones = degrees.changes.new_ones(self._enters.numel())
        rows = self._enters.nonzero().view(-1)
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
