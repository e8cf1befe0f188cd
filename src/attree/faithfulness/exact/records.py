"""Changed nodes, and the entries that they change in the next layer: what the plan of exact updates is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.tensors.ragged import find


@dataclass(frozen=True)
class Records:
    """Changed nodes: record r says that reducing edge `edge[r]` changes node `node[r]`; sorted by (edge, node).

    Attributes:
        edge: Position of the reduced edge in the chunk.
        node: The changed node.
    """

    edge: Tensor
    node: Tensor

    @classmethod
    def union(cls, parts: Sequence[Records], num_nodes: int) -> Records:
        """All records of several lists; a single list as it is."""
        if len(parts) == 1:
            return parts[0]
        key = torch.cat([part.edge * num_nodes + part.node for part in parts]).unique()
        return cls(key // num_nodes, key % num_nodes)

    def at(self, chosen: Tensor) -> Records:
        """Some of the records."""
        return Records(self.edge[chosen], self.node[chosen])

    def find(self, edge: Tensor, node: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Positions of given (edge, node) records, and whether each exists."""
        own, asked = self.edge * num_nodes + self.node, edge * num_nodes + node
        return find(own, asked)


@dataclass(frozen=True)
class Changes:
    """Changed entries of one layer's rows: entry c says that `edge[c]` enters row `row[c]` from record `sender[c]`.

    Attributes:
        row: Position of the row among the layer's records.
        edge: The edge.
        source: The node that the edge leaves.
        sender: The record of that node in the layer before.
    """

    row: Tensor
    edge: Tensor
    source: Tensor
    sender: Tensor

    @property
    def num_entries(self) -> int:
        """Number of changed entries."""
        return self.row.numel()

    def at(self, chosen: Tensor | slice) -> Changes:
        """Some of the entries."""
        return Changes(self.row[chosen], self.edge[chosen], self.source[chosen], self.sender[chosen])

    def moved_to(self, row: Tensor) -> Changes:
        """The same entries of rows that stand elsewhere."""
        return Changes(row, self.edge, self.source, self.sender)
