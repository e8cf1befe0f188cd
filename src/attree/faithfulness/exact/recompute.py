"""Whole rows of one layer computed anew, for nodes whose own features changed.

With its target's state every score of a row changes, so nothing can be updated.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attree.faithfulness.exact.algebra import States
from attree.faithfulness.exact.row_groups import RowGroup
from attree.faithfulness.exact.sparse import weighted_sums
from attree.faithfulness.exact.trace import LayerTrace, row_softmax
from attree.faithfulness.protocol import Protocol
from attree.ragged import take_rows


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
        self._node: tuple[Tensor, States, Tensor] | None = None

    def sources(self, group: RowGroup) -> tuple[States, Tensor]:
        """States of a dense block's sources, and their values by head; blocks of one node come one after another."""
        if self._node is None or self._node[0] is not group.source:
            states = self.layer.states.at(group.source)
            self._node = group.source, states, states.value.transpose(0, 1).contiguous()
        return self._node[1:]

    def change_scores(self, group: RowGroup, target: Tensor, score: Tensor) -> None:
        """Set the scores [entries, heads] of changed and of reduced entries."""
        changes = group.changes
        if self.senders is not None and changes.num_entries:
            source = take_rows(self.senders.source, changes.sender)
            score[group.slot] = self.layer.algebra.score(source, take_rows(target, changes.row))
        if not self.protocol.keeps_scores:
            score[group.reduced] = self.protocol.reduce_scores(score[group.reduced])

    def change_weights(self, group: RowGroup, weights: Tensor) -> None:
        """Set the weights [entries, heads] of reduced entries."""
        if not self.protocol.keeps_weights:
            weights[group.reduced] = self.protocol.reduce_weights(weights[group.reduced])

    def move_values(self, group: RowGroup, weights: Tensor, out: Tensor) -> Tensor:
        """Give sums that took the old values of changed senders the new ones."""
        changes = group.changes
        if self.senders is not None and changes.num_entries:
            moved = take_rows(self.senders.value, changes.sender)
            moved -= take_rows(self.layer.states.value, changes.source)
            moved *= take_rows(weights, group.slot).unsqueeze(-1)
            out.index_add_(0, changes.row, moved)
        return out


def _listed(context: _Context, group: RowGroup, target: Tensor) -> Tensor:
    """Rows of any nodes, entry by entry."""
    states, row = context.layer.states, group.entry_row
    assert row is not None
    score = context.layer.algebra.score(take_rows(states.source, group.source), take_rows(target, row))
    context.change_scores(group, target, score)
    weights, _ = row_softmax(score, row, target.shape[0])
    context.change_weights(group, weights)
    out = weighted_sums(group.ptr, row, group.source, weights, states.value)
    return context.move_values(group, weights, out)


def _dense(context: _Context, group: RowGroup, target: Tensor) -> Tensor:
    """Rows of one node, as matrices of scores."""
    algebra, (states, value) = context.layer.algebra, context.sources(group)
    heads, degree = algebra.heads, group.source.numel()
    score = algebra.score_all(states.source, target).transpose(0, 1).reshape(heads, -1)
    context.change_scores(group, target, score.t())
    weights = score.view(heads, -1, degree).softmax(dim=-1)
    entries = weights.view(heads, -1).t()
    context.change_weights(group, entries)
    out = torch.bmm(weights, value).transpose(0, 1).contiguous()
    return context.move_values(group, entries, out)
