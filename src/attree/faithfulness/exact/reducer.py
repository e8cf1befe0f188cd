"""Attention reduction by exact row updates, for networks whose layers can be taken apart.

Reducing an edge changes few rows of each layer (see `plan`), and these are followed layer by layer for all reduced
edges at once. A row whose own features are unchanged is updated from the layer's kept sums,

    out' = (out - sum_c alpha_c x_c + sum_c beta_c x'_c) / (1 - sum_c alpha_c + sum_c beta_c),

over its changed entries c, with alpha the old weights and beta = exp(new score - log normaliser); a row whose own
features changed is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.errors import expect
from attree.faithfulness.exact.algebra import States
from attree.faithfulness.exact.plan import ChunkPlan, LayerPlan, ReductionPlan
from attree.faithfulness.exact.recompute import recompute_rows
from attree.faithfulness.exact.records import Changes, Records
from attree.faithfulness.exact.row_groups import RowGroup
from attree.faithfulness.exact.sparse import compact_features
from attree.faithfulness.exact.trace import Trace, trace_network
from attree.faithfulness.protocol import Protocol
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.memory import REDUCTION_MEMORY
from attree.models.attention_net import AttentionNet
from attree.ragged import take_rows
from attree.subject.head import Head


class ExactReducer:
    """Reduces edges of one forward pass of a network that can be taken apart (see `can_trace`).

    Args:
        net: The network.
        x: Node features.
        graph: The looped graph.
        memory: Bytes of working memory; what one reduced edge changes is never cut.
        head: What the outputs mean.
    """

    def __init__(
        self, net: AttentionNet, x: Tensor, graph: LoopedGraph, memory: int = REDUCTION_MEMORY, head: Head | None = None
    ) -> None:
        expect(memory > 0, "memory", "a number of bytes > 0", memory)
        expect(x.is_floating_point(), "x", "of a floating-point type", x.dtype)
        self.net = net
        self.graph = graph
        self.memory = memory
        self.head = Head() if head is None else head
        self._x = compact_features(x)
        self._plan: ReductionPlan | None = None
        self._trace: Trace | None = trace_network(net, self._x, graph, memory)

    @property
    def attention(self) -> Attention:
        """What the network attended to in the forward pass."""
        return self.trace.attention

    @property
    def trace(self) -> Trace:
        """Everything that the forward pass computed."""
        if self._trace is None:
            self._trace = trace_network(self.net, self._x, self.graph, self.memory)
        return self._trace

    def forget(self) -> None:
        """Drop the forward pass: whatever is asked next is answered by a new one, with the weights of then.

        The node features must stay as they were: a compact copy of them may have been kept.
        """
        self._trace = None

    @torch.no_grad()
    def reduce(
        self, pairs: Pairs, protocol: Protocol, with_probability: bool = False, progress: Progress | None = None
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs whose edge carries no flow change nothing."""
        trace = self.trace
        if self._plan is None or self._plan.pairs is not pairs:
            shapes = [(layer.algebra.heads, layer.algebra.channels) for layer in trace.layers]
            self._plan = ReductionPlan(self.graph, pairs, shapes, self.memory)
        writer = ReductionWriter(pairs, trace.logits, self.head, with_probability)
        for chunk in self._plan.chunks():
            reduced = _ChunkUpdate(self.net, trace, self._plan, chunk, protocol).logits()
            writer.fill(chunk.pairs, take_rows(reduced, chunk.found))
            if progress is not None:
                progress(chunk.done, self._plan.num_pairs)
        return writer.result


class _ChunkUpdate:
    """New values of all rows that some reduced edges change."""

    def __init__(
        self, net: AttentionNet, trace: Trace, plan: ReductionPlan, chunk: ChunkPlan, protocol: Protocol
    ) -> None:
        self.net = net
        self.trace = trace
        self.plan = plan
        self.chunk = chunk
        self.protocol = protocol

    def logits(self) -> Tensor:
        """Class scores of the last layer's records."""
        layers = self.trace.layers
        out = self._first()
        for number, layer in enumerate(self.chunk.later, 1):
            h = self.net.activation(layers[number - 1].algebra.finish(out))
            out = self._later(number, layer, layers[number].algebra.project(h))
        return layers[-1].algebra.finish(out)

    def _first(self) -> Tensor:
        """First layer: the reduced edge is the only change, and its row's own features are as they were."""
        layer, edge, node = self.trace.layers[0], self.chunk.edges, self.chunk.first.node
        out, alpha = take_rows(layer.aggregated, node), take_rows(layer.weights, edge)
        value = take_rows(layer.states.value, take_rows(self.trace.graph.source, edge))
        if self.protocol.keeps_scores:
            return out.addcmul_((self.protocol.reduce_weights(alpha) - alpha).unsqueeze(-1), value)
        log_norm = take_rows(layer.log_norm, node)
        beta = (self.protocol.reduce_scores(alpha.log() + log_norm) - log_norm).exp()
        norm = 1 - alpha + beta
        out = (out + (self.protocol.reduce_weights(beta) - alpha).unsqueeze(-1) * value) / norm.unsqueeze(-1)
        none = edge[:0]
        self._restore(0, out, _unsafe(norm), self.chunk.first, Changes(none, none, none, none), None)
        return out

    def _later(self, number: int, plan: LayerPlan, senders: States) -> Tensor:
        """Later layers: rows whose own features changed are recomputed, the others are updated."""
        layer, light, nodes = self.trace.layers[number], plan.light, plan.records.node
        node = take_rows(nodes, light.row)
        alpha = take_rows(layer.weights, light.edge)
        source = take_rows(senders.source, light.sender)
        score = layer.algebra.score(source, take_rows(layer.states.target, node))
        beta = (score - take_rows(layer.log_norm, node)).exp()
        shift = take_rows(senders.value, light.sender).mul_(beta.unsqueeze(-1))
        shift.addcmul_(alpha.unsqueeze(-1), take_rows(layer.states.value, light.source), value=-1.0)
        out = take_rows(layer.aggregated, nodes).index_add_(0, light.row, shift)
        norm = torch.ones_like(out[..., 0]).index_add_(0, light.row, beta - alpha)
        out /= norm.unsqueeze(-1)

        target = take_rows(senders.target, plan.own_sender)
        groups: Iterable[RowGroup] = (
            self.plan.groups(number, plan.records, plan.changes, self.chunk.edges, plan.own)
            if plan.groups is None
            else plan.groups
        )
        out[plan.own] = recompute_rows(layer, self.protocol, groups, target, senders)
        # An own row has no light entries: its norm is 1 and safe.
        self._restore(number, out, _unsafe(norm), plan.records, plan.changes, senders)
        return out

    def _restore(
        self, number: int, out: Tensor, stale: Tensor, records: Records, changes: Changes, senders: States | None
    ) -> None:
        """Compute the stale ones among the rows `out` anew."""
        rows = stale.nonzero().view(-1)
        if rows.numel() == 0:
            return
        layer = self.trace.layers[number]
        groups = self.plan.groups(number, records, changes, self.chunk.edges, rows)
        target = layer.states.target[records.node[rows]]
        out[rows] = recompute_rows(layer, self.protocol, groups, target, senders)


def _unsafe(norm: Tensor) -> Tensor:
    """Rows [n] that an update gets wrong, in some head: where little is left of a denominator, a difference loses
    digits (10 of 16 are kept); where it has grown by as much, old and new sums may overflow.
    """
    least = torch.finfo(norm.dtype).eps ** 0.375
    return ~((norm > least) & (norm < 1 / least)).all(dim=-1)
