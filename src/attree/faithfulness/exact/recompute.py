"""Whole rows of one layer computed anew, for nodes whose own features changed.

With its target's state every score of a row changes, so nothing can be updated.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attree.faithfulness.exact.algebra import States
from attree.faithfulness.exact.row_groups import RowGroup
from attree.faithfulness.exact.trace import LayerTrace, row_softmax, sum_entries
from attree.faithfulness.protocol import Protocol
from attree.tensors.ragged import take_rows


def recompute_rows(
    layer: LayerTrace, protocol: Protocol, groups: Iterable[RowGroup], target: Tensor, senders: States | None
) -> Tensor:
    """Compute weighted sums [rows, heads, channels] of rows that `row_groups` has cut into groups.

    Args:
        layer: What the layer computed before.
        protocol: What happens to a reduced edge.
        groups: The rows.
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
    """What the rows of all groups are computed with."""

    def __init__(self, layer: LayerTrace, protocol: Protocol, senders: States | None) -> None:
        self.layer = layer
        self.protocol = protocol
        self.senders = senders
        self._node: tuple[Tensor, Tensor, Tensor | None, Tensor] | None = None

    def sources(self, group: RowGroup) -> tuple[Tensor, Tensor | None, Tensor]:
        """A dense block's sources, edges, and values by head; blocks of one node come one after another."""
        if self._node is None or self._node[0] is not group.source:
            states, edge = self.layer.states, self.layer.edges_at(group.edge)
            value = self.layer.value(take_rows(states.value, group.source), edge)
            source = take_rows(states.source, group.source)
            self._node = group.source, source, edge, value.transpose(0, 1).contiguous()
        return self._node[1:]

    def change_scores(self, group: RowGroup, target: Tensor, score: Tensor) -> None:
        """Set the scores [entries, heads] of changed and of reduced entries."""
        changes = group.changes
        if self.senders is not None and changes.num_entries:
            source = take_rows(self.senders.source, changes.sender)
            edge = self.layer.edges_at(changes.edge)
            score[group.slot] = self.layer.algebra.score(source, take_rows(target, changes.row), edge)
        if not self.protocol.keeps_scores:
            score[group.reduced] = self.protocol.reduce_scores(score[group.reduced])

    def shift_of(self, group: RowGroup) -> Tensor | None:
        """What is added to the scores of a group's edges, [entries, 1]."""
        if self.layer.shift is None:
            return None
        assert group.edge is not None
        return take_rows(self.layer.shift, group.edge)

    def change_weights(self, group: RowGroup, weights: Tensor) -> None:
        """Set the weights [entries, heads] of reduced entries."""
        if not self.protocol.keeps_weights:
            weights[group.reduced] = self.protocol.reduce_weights(weights[group.reduced])

    def move_values(self, group: RowGroup, weights: Tensor, out: Tensor) -> Tensor:
        """Give sums that took the old values of changed senders the new ones."""
        changes = group.changes
        if self.senders is not None and changes.num_entries:
            edge = self.layer.edges_at(changes.edge)
            moved = self.layer.value(take_rows(self.senders.value, changes.sender), edge)
            moved -= self.layer.value(take_rows(self.layer.states.value, changes.source), edge)
            moved *= take_rows(weights, group.slot).unsqueeze(-1)
            out.index_add_(0, changes.row, moved)
        return out


def _listed(context: _Context, group: RowGroup, target: Tensor) -> Tensor:
    """Rows of any nodes, entry by entry."""
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
    """Rows of one node, as matrices of scores."""
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
