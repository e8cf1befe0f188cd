"""New values of the rows that some reduced edges change in one call.

A row whose own features are unchanged is updated from the call's kept sums,

    out' = (out - sum_c alpha_c x_c + sum_c beta_c x'_c) / (1 - sum_c alpha_c + sum_c beta_c),

over its changed entries c, with alpha the old weights and beta = exp(new score - log normaliser); a row whose own
features changed is computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attree.faithfulness.exact.algebra import States
from attree.faithfulness.exact.chunk_plan import CallPlan, ChunkPlan, LaterPlan
from attree.faithfulness.exact.recompute import recompute_rows
from attree.faithfulness.exact.records import Changes, Records
from attree.faithfulness.exact.reduction_plan import ReductionPlan
from attree.faithfulness.exact.row_groups import RowGroup
from attree.faithfulness.exact.trace import LayerTrace
from attree.faithfulness.protocol import Protocol
from attree.tensors.ragged import take_rows


class CallUpdate:
    """One call of a convolution on rows.

    Args:
        number: The number of the call, from 0.
        layer: What the call computed before.
        plan: The plan.
        chunk: The chunk of reduced edges.
        protocol: What happens to a reduced edge.
    """

    def __init__(
        self, number: int, layer: LayerTrace, plan: ReductionPlan, chunk: ChunkPlan, protocol: Protocol
    ) -> None:
        self.number = number
        self.layer = layer
        self.plan = plan
        self.chunk = chunk
        self.protocol = protocol

    def output(self, x: Tensor) -> Tensor:
        """What the call returns for its rows, from the features of the rows of its input."""
        call: CallPlan = self.chunk.calls[self.number]
        node, root = call.records.node, self.layer.states.root
        if call.later is None:
            aggregated = self._first(call.records)
            root = None if root is None else take_rows(root, node)
        else:
            senders = self.layer.algebra.project(x if call.later.senders is None else take_rows(x, call.later.senders))
            aggregated = self._later(call.records, call.later, senders)
            if root is not None and senders.root is not None:
                root = take_rows(root, node).index_copy_(
                    0, call.later.own, take_rows(senders.root, call.later.own_sender)
                )
        out = self.layer.algebra.finish(aggregated, root)
        if call.place is None:
            return out
        family = self.plan.wiring.family[self.number + 1]
        return take_rows(self.layer.output, self.chunk.rows[family].node).index_copy_(0, call.place, out)

    def _first(self, records: Records) -> Tensor:
        """A call that the input feeds: the reduced edge is the only change, its row's own features are as they were."""
        layer, node = self.layer, records.node
        edge = take_rows(self.chunk.edges, records.edge)
        out, alpha = take_rows(layer.aggregated, node), take_rows(layer.weights, edge)
        value = layer.value(
            take_rows(layer.states.value, take_rows(self.plan.graph.source, edge)), layer.edges_at(edge)
        )
        if self.protocol.keeps_scores:
            return out.addcmul_((self.protocol.reduce_weights(alpha) - alpha).unsqueeze(-1), value)
        log_norm = take_rows(layer.log_norm, node)
        beta = (self._reduced(alpha.log() + log_norm, edge) - log_norm).exp_()
        if layer.shift is not None:
            # An edge that the layer does not have has no score that could become another.
            beta.masked_fill_(take_rows(layer.shift, edge).isneginf(), 0.0)
        norm = 1 - alpha + beta
        out.addcmul_((self.protocol.reduce_weights(beta) - alpha).unsqueeze(-1), value).div_(norm.unsqueeze(-1))
        none = edge[:0]
        self._restore(out, _unsafe(norm), records, Changes(none, none, none, none), None)
        return out

    def _reduced(self, score: Tensor, edge: Tensor) -> Tensor:
        """Scores of reduced edges, from their scores with what is added to these."""
        if self.layer.shift is None:
            return self.protocol.reduce_scores(score)
        shift = take_rows(self.layer.shift, edge)
        return self.protocol.reduce_scores(score - shift) + shift

    def _later(self, records: Records, plan: LaterPlan, senders: States) -> Tensor:
        """Other calls: rows whose own features changed are recomputed, the others are updated."""
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

        target = take_rows(senders.target, plan.own_sender)
        groups: Iterable[RowGroup] = (
            self.plan.groups(self.number, records, plan.changes, self.chunk.edges, plan.own)
            if plan.groups is None
            else plan.groups
        )
        out[plan.own] = recompute_rows(layer, self.protocol, groups, target, senders)
        # An own row has no light entries: its norm is 1 and safe.
        self._restore(out, _unsafe(norm), records, plan.changes, senders)
        return out

    def _restore(self, out: Tensor, stale: Tensor, records: Records, changes: Changes, senders: States | None) -> None:
        """Compute the stale ones among the rows `out` anew."""
        rows = stale.nonzero().view(-1)
        if rows.numel() == 0:
            return
        groups = self.plan.groups(self.number, records, changes, self.chunk.edges, rows)
        target = self.layer.states.target[records.node[rows]]
        out[rows] = recompute_rows(self.layer, self.protocol, groups, target, senders)


def _unsafe(norm: Tensor) -> Tensor:
    """Rows [n] that an update gets wrong, in some head: where little is left of a denominator, a difference loses
    digits (10 of 16 are kept); where it has grown by as much, old and new sums may overflow.
    """
    least = torch.finfo(norm.dtype).eps ** 0.375
    return ~((norm > least) & (norm < 1 / least)).all(dim=-1)
