"""What one reduced edge after another changes: records of nodes, and entries of the rows that they enter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.faithfulness.layer_algebra import States


@dataclass(frozen=True)
class Records:
    """Changed nodes: record r says that reducing edge `edge[r]` changes node `node[r]`; sorted by (edge, node).

    Attributes:
        edge: Position of the reduced edge in the chunk.
        node: The changed node.
    """

    edge: Tensor
    node: Tensor

    def find(self, edge: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Positions of given (edge, node) records, and whether each exists."""
        own, asked = self.edge * num_nodes + self.node, edge * num_nodes + node
        if own.numel() == 0:
            return torch.zeros_like(asked), torch.zeros_like(asked, dtype=torch.bool)
        place = torch.searchsorted(own, asked).clamp_(max=own.numel() - 1)
        return place, own[place] == asked


@dataclass(frozen=True)
class Changes:
    """Changed entries of one layer's rows: entry c says that `edge[c]` enters row `row[c]` from record `sender[c]`.

    Attributes:
        row: Position of the row among the layer's records.
        edge: The edge.
        sender: The record of the edge's source in the layer before.
        states: The new states of the senders.
    """

    row: Tensor
    edge: Tensor
    sender: Tensor
    states: States

    def where(self, chosen: Tensor) -> Changes:
        """Some of the entries."""
        return Changes(self.row[chosen], self.edge[chosen], self.sender[chosen], self.states)
