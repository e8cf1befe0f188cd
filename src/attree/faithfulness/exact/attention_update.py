"""One recorded call of an attention convolution, and the new values of single rows of its output.

If a row's own features are unchanged, the row is updated from the sums of the recorded pass,

    out' = (out - sum_c alpha_c x_c + sum_c beta_c x'_c) / (1 - sum_c alpha_c + sum_c beta_c),

where c runs over its changed entries, alpha are the old weights and beta = exp(new score - log normaliser). If the
row's own features changed, every score of the row changes, and the row is recomputed in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.faithfulness.exact.call_arguments import LayerEdges
from attree.faithfulness.exact.call_plans import CallPlan, ChunkPlan, LaterPlan, OutputRows
from attree.faithfulness.exact.changed_rows import Changes, RefilledLoops, RowGroup, RowKeys
from attree.faithfulness.exact.convolution_algebra import LayerAlgebra, States
from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape
from attree.faithfulness.exact.lazy_features import weighted_sums
from attree.faithfulness.exact.reduction_plan import ReductionPlan
from attree.faithfulness.protocol import ReductionProtocol
from attree.tensors.arrays import take_rows
from attree.tensors.memory import chunk_bounds

CHUNK_BYTES = 64 * 2**20
"""Maximum bytes of entries that are computed at a time; larger chunks are no faster."""


@dataclass(frozen=True)
class LayerTrace:
    """Results of one layer.

    Attributes:
        algebra: The layer's arithmetic.
        graph: The edges that the layer runs on.
        states: Projections of every node.
        edge: Projections of every edge; None if the layer has no edge features.
        shift: Term added to scores, see `LayerEdges`; None if there is none.
        weights: The attention, [num_edges, heads].
        log_norm: Log of each softmax's denominator, [num_nodes, heads]: weight = exp(score - log_norm); 0 for nodes
            without entering edges.
        aggregated: Weighted sums, [num_nodes, heads, channels].
        loop_features: Features of self-loops when an edge is deleted, see `LayerEdges.refilled`.
    """

    algebra: LayerAlgebra
    graph: LayerGraph
    states: States
    edge: Tensor | None
    shift: Tensor | None
    weights: Tensor
    log_norm: Tensor
    aggregated: Tensor
    loop_features: Tensor | None = None

    @cached_property
    def refilled(self) -> Tensor | None:
        """For each edge, the projection of the self-loop at its destination when the edge is deleted."""
        return None if self.loop_features is None else self.algebra.project_edges(self.loop_features)

    @property
    def conv(self) -> MessagePassing:
        """The convolution."""
        return self.algebra.conv

    @property
    def shape(self) -> LayerShape:
        """Properties that determine the size of the layer's work."""
        refills = self.loop_features is not None
        return LayerShape(self.algebra.heads, self.algebra.channels, self.by_edge, refills=refills)

    @property
    def input_types(self) -> tuple[str, ...] | None:
        """The node type of each features tensor; None for a graph of one type."""
        return None if self.graph.blocks is None else self.graph.blocks.inputs

    @property
    def by_edge(self) -> bool:
        """Whether the layer needs the edge of each entry, not only its source."""
        return self.edge is not None or self.shift is not None

    def edges_at(self, edges: Tensor | None) -> Tensor | None:
        """Return the projections of some edges."""
        return None if self.edge is None or edges is None else take_rows(self.edge, edges)

    def value(self, value: Tensor, edge: Tensor | None) -> Tensor:
        """Return the values to sum for entries, from their sources' values and the projections of their edges."""
        return value if edge is None or not self.algebra.edge_in_value else self.algebra.value(value, edge)

    def project(self, inputs: Sequence[Tensor]) -> States:
        """Return states from the layer's input features, of all nodes or of some."""
        return project(self.algebra, self.graph, inputs)

    @cached_property
    def output(self) -> Tensor:
        """Output of the layer, [num_nodes, out]; read it only while the model is open."""
        return self.algebra.finish(self.aggregated, self.states.root)


def project(algebra: LayerAlgebra, graph: LayerGraph, inputs: Sequence[Tensor]) -> States:
    """Return states of a layer from its input features, of all nodes or of some."""
    blocks = graph.blocks
    if blocks is None:
        return algebra.project(inputs[0])
    sources = [(kind, inputs[number]) for kind, number in zip(blocks.relations, blocks.sources, strict=True)]
    return algebra.project_types(sources, [(blocks.inputs[number], inputs[number]) for number in blocks.targets])


def trace_layer(algebra: LayerAlgebra, states: States, edges: LayerEdges, memory: int) -> LayerTrace:
    """Compute a layer row by row, as many rows at a time as fit into `memory` bytes.

    Args:
        algebra: The layer's arithmetic.
        states: Projections of all nodes.
        edges: The layer's edges.
        memory: Bytes of working memory, in addition to the stored results.
    """
    graph = edges.graph
    edge = None if edges.features is None else algebra.project_edges(edges.features)
    weights = states.value.new_empty(graph.num_edges, algebra.heads)
    log_norm = states.value.new_empty(graph.num_nodes, algebra.heads)
    aggregated = states.value.new_empty(graph.num_nodes, *states.value.shape[1:])
    trace = LayerTrace(algebra, graph, states, edge, edges.shift, weights, log_norm, aggregated, edges.refilled)
    ptr, entering = graph.entering
    width = algebra.heads * algebra.channels
    for begin, end in chunk_bounds(graph.entering.sizes * float(width * 8 * 3 + 64), min(memory, CHUNK_BYTES)):
        first, last = int(ptr[begin]), int(ptr[end])
        node, source = graph.entering_destination[first:last], graph.entering_source[first:last]
        row, edge_ids = (node if begin == 0 else node - begin), entering[first:last]
        at_edges = trace.edges_at(edge_ids)
        scores = algebra.score(take_rows(states.source, source), take_rows(states.target, node), at_edges)
        if edges.shift is not None:
            scores += take_rows(edges.shift, edge_ids)
        part, norm = row_softmax(scores, row, end - begin)
        weights.index_copy_(0, edge_ids, part)
        log_norm[begin:end] = norm
        trace.aggregated[begin:end] = sum_entries(trace, ptr[begin : end + 1] - first, row, source, part, at_edges)
    return trace


def sum_entries(
    layer: LayerTrace, ptr: Tensor, row: Tensor, source: Tensor, weights: Tensor, edge: Tensor | None
) -> Tensor:
    """Return weighted sums of recorded values, [rows, heads, channels].

    Args:
        layer: The layer.
        ptr: The entries of row r are `ptr[r]:ptr[r + 1]`.
        row: The row of each entry.
        source: The source node of each entry.
        weights: The weight of each entry, [entries, heads].
        edge: The projection of each entry's edge; None if the layer has no edge features.
    """
    values = layer.states.value
    if edge is None or not layer.algebra.edge_in_value:
        return weighted_sums(ptr, row, source, weights, values)
    entries = layer.value(take_rows(values, source), edge) * weights.unsqueeze(-1)
    return values.new_zeros(ptr.numel() - 1, *values.shape[1:]).index_add_(0, row, entries)


def row_softmax(score: Tensor, row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the softmax over each row's entries, and the logs of its denominators [num_rows, heads].

    A row without entries, or with all scores -inf, gets zeros.
    """
    peak = score.new_full((num_rows, score.shape[1]), -torch.inf)
    peak.scatter_reduce_(0, row.unsqueeze(-1).expand_as(score), score, "amax")
    peak.masked_fill_(peak.isinf(), 0.0)
    raised = (score - take_rows(peak, row)).exp_()
    norm = torch.zeros_like(peak).index_add_(0, row, raised)
    norm.masked_fill_(norm == 0, 1.0)
    return raised.div_(take_rows(norm, row)), norm.log().add_(peak)


def recompute_rows(
    layer: LayerTrace, protocol: ReductionProtocol, groups: Iterable[RowGroup], target: Tensor, senders: States | None
) -> Tensor:
    """Return weighted sums [rows, heads, channels] of the rows in some groups.

    Args:
        layer: Recorded results of the layer.
        protocol: The reduction protocol.
        groups: The rows, in groups formed by `row_groups`.
        target: The new target state of each row.
        senders: The new states of the nodes that changed entries come from; None if no group has such entries.
    """
    out = layer.aggregated.new_empty(target.shape[0], *layer.aggregated.shape[1:])
    context = _Context(layer, protocol, senders)
    for group in groups:
        compute = _listed if group.entry_row is not None else _dense
        out[group.rows] = compute(context, group, take_rows(target, group.rows))
    return out


class _Context:
    """Data shared by all groups."""

    def __init__(self, layer: LayerTrace, protocol: ReductionProtocol, senders: States | None) -> None:
        self.layer = layer
        self.protocol = protocol
        self.senders = senders
        self._node: tuple[Tensor, Tensor, Tensor | None, Tensor] | None = None

    def sources(self, group: RowGroup) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return a dense block's sources, edges, and values by head; consecutive blocks of a node share them."""
        if self._node is None or self._node[0] is not group.source:
            states, edge = self.layer.states, self.layer.edges_at(group.edge)
            value = self.layer.value(take_rows(states.value, group.source), edge)
            source = take_rows(states.source, group.source)
            self._node = group.source, source, edge, value.transpose(0, 1).contiguous()
        return self._node[1:]

    def change_scores(self, group: RowGroup, target: Tensor, score: Tensor) -> None:
        """Set the scores [entries, heads] of changed entries and of reduced entries."""
        changes = group.changes
        if self.senders is not None and changes.num_entries:
            source = take_rows(self.senders.source, changes.sender)
            edge = self.layer.edges_at(changes.edge)
            score[group.slot] = self.layer.algebra.score(source, take_rows(target, changes.row), edge)
        if group.loops is not None and self.protocol.deletes:
            self._refill_loops(group, group.loops, target, score)
        if not self.protocol.keeps_scores:
            score[group.reduced] = self.protocol.reduce_scores(score[group.reduced])

    def _refill_loops(self, group: RowGroup, loops: RefilledLoops, target: Tensor, score: Tensor) -> None:
        """Set the scores of self-loops whose features change with the deleted edge."""
        source = take_rows(self.layer.states.source, loops.node)
        if self.senders is not None and group.changes.num_entries:
            changed = torch.full_like(score[:, 0], -1, dtype=torch.int64)
            changed[group.slot] = torch.arange(group.slot.numel(), device=score.device)
            entry = take_rows(changed, loops.slot)
            is_new = (entry >= 0).nonzero().view(-1)
            sender = take_rows(group.changes.sender, take_rows(entry, is_new))
            source.index_copy_(0, is_new, take_rows(self.senders.source, sender))
        assert self.layer.refilled is not None
        edge = take_rows(self.layer.refilled, loops.edge)
        score[loops.slot] = self.layer.algebra.score(source, take_rows(target, loops.row), edge)

    def shift_of(self, group: RowGroup) -> Tensor | None:
        """Return the term added to the scores of a group's edges, [entries, 1]."""
        if self.layer.shift is None:
            return None
        assert group.edge is not None
        return take_rows(self.layer.shift, group.edge)

    def change_weights(self, group: RowGroup, weights: Tensor) -> None:
        """Set the weights [entries, heads] of reduced entries."""
        if not self.protocol.keeps_weights:
            weights[group.reduced] = self.protocol.reduce_weights(weights[group.reduced])

    def move_values(self, group: RowGroup, weights: Tensor, out: Tensor) -> Tensor:
        """Replace the old values of changed senders in sums by the new values."""
        changes = group.changes
        if self.senders is not None and changes.num_entries:
            edge = self.layer.edges_at(changes.edge)
            moved = self.layer.value(take_rows(self.senders.value, changes.sender), edge)
            moved -= self.layer.value(take_rows(self.layer.states.value, changes.source), edge)
            moved *= take_rows(weights, group.slot).unsqueeze(-1)
            out.index_add_(0, changes.row, moved)
        return out


def _listed(context: _Context, group: RowGroup, target: Tensor) -> Tensor:
    """Compute rows of different nodes, entry by entry."""
    layer, row = context.layer, group.entry_row
    assert row is not None
    edge, shift = layer.edges_at(group.edge), context.shift_of(group)
    score = layer.algebra.score(take_rows(layer.states.source, group.source), take_rows(target, row), edge)
    context.change_scores(group, target, score)
    weights, _ = row_softmax(score if shift is None else score + shift, row, target.shape[0])
    context.change_weights(group, weights)
    out = sum_entries(layer, group.ptr, row, group.source, weights, edge)
    return context.move_values(group, weights, out)


def _dense(context: _Context, group: RowGroup, target: Tensor) -> Tensor:
    """Compute rows of one node, as matrices of scores."""
    algebra, (source, edge, value) = context.layer.algebra, context.sources(group)
    heads, degree, shift = algebra.heads, group.source.numel(), context.shift_of(group)
    score = algebra.score_all(source, target, edge).transpose(0, 1).reshape(heads, -1)
    context.change_scores(group, target, score.t())
    score = score.view(heads, -1, degree)
    weights = (score if shift is None else score + shift.view(-1)).softmax(dim=-1)
    entries = weights.view(heads, -1).t()
    context.change_weights(group, entries)
    out = torch.bmm(weights, value).transpose(0, 1).contiguous()
    return context.move_values(group, entries, out)


class CallUpdate:
    """Update of one call of a convolution on rows.

    Args:
        number: The number of the call, from 0.
        layer: Recorded results of the call.
        plan: The reduction plan.
        chunk: The plan of the chunk of reduced edges.
        protocol: The reduction protocol.
    """

    def __init__(
        self, number: int, layer: LayerTrace, plan: ReductionPlan, chunk: ChunkPlan, protocol: ReductionProtocol
    ) -> None:
        self.number = number
        self.layer = layer
        self.plan = plan
        self.chunk = chunk
        self.protocol = protocol

    def outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the call's outputs for its rows, one tensor or one per type, from the features of its input rows."""
        call: CallPlan = self.chunk.calls[self.number]
        node, root = call.records.node, self.layer.states.root
        if call.later is None:
            aggregated = self._first(call.records)
            root = None if root is None else take_rows(root, node)
        else:
            later = call.later
            changed = [
                x if place is None else take_rows(x, place) for x, place in zip(inputs, later.senders, strict=True)
            ]
            senders = self.layer.project(changed)
            aggregated = self._later(call.records, later, senders)
            if root is not None and senders.root is not None:
                recomputed, sender = later.recomputed, later.recomputed_sender
                if later.unchanged is not None:
                    recomputed, sender = recomputed[~later.unchanged], sender[~later.unchanged]
                root = take_rows(root, node).index_copy_(0, recomputed, take_rows(senders.root, sender))
        out = self.layer.algebra.finish(aggregated, root)
        return [self._among_rows(out, rows) for rows in call.outputs]

    def _among_rows(self, out: Tensor, rows: OutputRows) -> Tensor:
        """Return the outputs of all rows: new ones for changed rows, recorded ones for the others."""
        out = out if rows.among_records is None else take_rows(out, rows.among_records)
        if rows.place is None:
            return out
        return take_rows(self.layer.output, rows.node).index_copy_(0, rows.place, out)

    def _first(self, records: RowKeys) -> Tensor:
        """Update rows of a call on the model's input: only the reduced edge changes, no node's own features do."""
        layer, node = self.layer, records.node
        edge = layer.graph.edges(take_rows(self.chunk.variants.edge, records.variant))
        out, alpha = take_rows(layer.aggregated, node), take_rows(layer.weights, edge)
        value = layer.value(take_rows(layer.states.value, take_rows(layer.graph.source, edge)), layer.edges_at(edge))
        if self.protocol.keeps_scores:
            return out.addcmul_((self.protocol.reduce_weights(alpha) - alpha).unsqueeze(-1), value)
        log_norm = take_rows(layer.log_norm, node)
        beta = (self._reduced(alpha.log() + log_norm, edge) - log_norm).exp_()
        if layer.shift is not None:
            # If the layer does not have the edge, there is no score to change.
            beta.masked_fill_(take_rows(layer.shift, edge).isneginf(), 0.0)
        norm = 1 - alpha + beta
        out.addcmul_((self.protocol.reduce_weights(beta) - alpha).unsqueeze(-1), value)
        if layer.refilled is not None and self.protocol.deletes:
            self._refill_loops(out, norm, node, edge, log_norm)
        out.div_(norm.unsqueeze(-1))
        none = edge[:0]
        self._restore(out, _unsafe(norm), records, Changes(none, none, none, none), None)
        return out

    def _refill_loops(self, out: Tensor, norm: Tensor, node: Tensor, edge: Tensor, log_norm: Tensor) -> None:
        """Add what changes at self-loops with the features of the deleted edges, to sums and denominators of rows."""
        layer, num_proper = self.layer, self.layer.graph.graph.num_proper_edges
        rows = (edge < num_proper).nonzero().view(-1)
        node, loop = take_rows(node, rows), take_rows(node, rows) + num_proper
        assert layer.refilled is not None
        source, target = take_rows(layer.states.source, node), take_rows(layer.states.target, node)
        score = layer.algebra.score(source, target, take_rows(layer.refilled, take_rows(edge, rows)))
        if layer.shift is not None:
            score = score + take_rows(layer.shift, loop)
        change = (score - take_rows(log_norm, rows)).exp_() - take_rows(layer.weights, loop)
        out.index_add_(0, rows, take_rows(layer.states.value, node) * change.unsqueeze(-1))
        norm.index_add_(0, rows, change)

    def _reduced(self, score: Tensor, edge: Tensor) -> Tensor:
        """Return the scores of reduced edges; `score` includes the term added to scores, and so does the result."""
        if self.layer.shift is None:
            return self.protocol.reduce_scores(score)
        shift = take_rows(self.layer.shift, edge)
        return self.protocol.reduce_scores(score - shift) + shift

    def _later(self, records: RowKeys, plan: LaterPlan, senders: States) -> Tensor:
        """Update rows of a call on earlier outputs; recompute those whose own features changed."""
        layer, light, nodes = self.layer, plan.light, records.node
        node = take_rows(nodes, light.row)
        alpha = take_rows(layer.weights, light.edge)
        source = take_rows(senders.source, light.sender)
        edge = layer.edges_at(light.edge)
        score = layer.algebra.score(source, take_rows(layer.states.target, node), edge)
        if layer.shift is not None:
            score += take_rows(layer.shift, light.edge)
        beta = (score - take_rows(layer.log_norm, node)).exp()
        shift = layer.value(take_rows(senders.value, light.sender), edge).mul_(beta.unsqueeze(-1))
        old = layer.value(take_rows(layer.states.value, light.source), edge)
        shift.addcmul_(alpha.unsqueeze(-1), old, value=-1.0)
        out = take_rows(layer.aggregated, nodes).index_add_(0, light.row, shift)
        norm = torch.ones_like(out[..., 0]).index_add_(0, light.row, beta - alpha)
        out /= norm.unsqueeze(-1)

        if plan.unchanged is None:
            target = take_rows(senders.target, plan.recomputed_sender)
        else:
            target = take_rows(layer.states.target, take_rows(nodes, plan.recomputed))
            new = (~plan.unchanged).nonzero().view(-1)
            target.index_copy_(0, new, take_rows(senders.target, take_rows(plan.recomputed_sender, new)))
        groups: Iterable[RowGroup] = (
            self.plan.groups(self.number, records, plan.changes, self.chunk.variants.edge, plan.recomputed)
            if plan.groups is None
            else plan.groups
        )
        out[plan.recomputed] = recompute_rows(layer, self.protocol, groups, target, senders)
        # Own rows have no light entries, so their norm is 1 and they are not stale.
        self._restore(out, _unsafe(norm), records, plan.changes, senders)
        return out

    def _restore(self, out: Tensor, stale: Tensor, records: RowKeys, changes: Changes, senders: States | None) -> None:
        """Recompute the rows of `out` that are marked as stale, because the update formula would be inaccurate."""
        rows = stale.nonzero().view(-1)
        if rows.numel() == 0:
            return
        groups = self.plan.groups(self.number, records, changes, self.chunk.variants.edge, rows)
        target = self.layer.states.target[records.node[rows]]
        out[rows] = recompute_rows(self.layer, self.protocol, groups, target, senders)


def _unsafe(norm: Tensor) -> Tensor:
    """Return a mask of rows [n] that the update formula gets wrong in some head.

    If a denominator has become small, the difference loses digits (10 of 16 are kept). If it has grown by the same
    factor, old and new sums may overflow.
    """
    least = torch.finfo(norm.dtype).eps ** 0.375
    return ~((norm > least) & (norm < 1 / least)).all(dim=-1)
