"""Where computation trees begin: the nodes that an output reads, and how much it reads of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attree.tensors.limits import exact_dtype

Level = Literal["node", "edge", "graph"]
"""What a model's outputs belong to: nodes, pairs of nodes, or graphs."""

LEVELS: tuple[Level, ...] = ("node", "edge", "graph")


@dataclass(frozen=True)
class Roots:
    """The roots of the computation trees of some targets: r_L as (target, node, weight) entries, sorted by target.

    A node has one root of weight 1: itself. A pair of nodes (u, v) has two of weight 1 each. A graph has one root a
    node, weighted as the readout weighs it.

    Attributes:
        targets: Ids of what is explained, [T]: nodes, pairs or graphs.
        owner: For each entry the position in `targets`, ascending.
        node: The node of each entry.
        weight: The weight of each entry.
        node_type: Where the targets are nodes of one type of a heterogeneous graph: that type.
    """

    targets: Tensor
    owner: Tensor
    node: Tensor
    weight: Tensor
    node_type: str | None = None

    @classmethod
    def at_nodes(cls, targets: Tensor, dtype: torch.dtype | None = None, nodes: Tensor | None = None) -> Roots:
        """Each target is a node.

        Args:
            targets: Ids of the targets.
            dtype: The type of the weights; by default the most exact of the device.
            nodes: The node of each target in the graph, if that is not its id, as in a union of types.
        """
        positions = torch.arange(targets.numel(), device=targets.device)
        return cls(targets, positions, targets if nodes is None else nodes, _ones(targets, dtype))

    @classmethod
    def at_pairs(cls, targets: Tensor, ends: Tensor, dtype: torch.dtype | None = None) -> Roots:
        """Each target is a pair of nodes.

        Args:
            targets: Ids of the pairs, columns of `ends`.
            ends: The two nodes of every pair, [2, P].
            dtype: The type of the weights.
        """
        owner = torch.arange(targets.numel(), device=targets.device).repeat_interleave(2)
        nodes = ends[:, targets].sort(dim=0).values.t().reshape(-1)
        weight = _ones(nodes, dtype)
        # A pair of a node with itself has one root, of weight 2.
        again = (owner[1:] == owner[:-1]) & (nodes[1:] == nodes[:-1])
        kept = torch.cat([torch.ones_like(owner[:1], dtype=torch.bool), ~again])
        weight[:-1][again] = 2
        return cls(targets, owner[kept], nodes[kept], weight[kept])

    @classmethod
    def at_graphs(cls, targets: Tensor, batch: Tensor, weights: Tensor) -> Roots:
        """Each target is a graph.

        Args:
            targets: Ids of the graphs.
            batch: The graph of each node.
            weights: What the readout gives to each node; no tree grows from a node that it ignores.
        """
        position = torch.full((int(batch.max()) + 1 if batch.numel() else 0,), -1, device=batch.device)
        position[targets] = torch.arange(targets.numel(), device=batch.device)
        owner = position[batch]
        nodes = owner.argsort(stable=True)
        nodes = nodes[(owner[nodes] >= 0) & (weights[nodes] != 0)]
        return cls(targets, owner[nodes], nodes, weights[nodes])

    def slice(self, begin: int, end: int) -> Roots:
        """The roots of targets `begin` to `end`."""
        first, last = torch.searchsorted(self.owner, torch.tensor([begin, end], device=self.owner.device)).tolist()
        return Roots(
            self.targets[begin:end],
            self.owner[first:last] - begin,
            self.node[first:last],
            self.weight[first:last],
            self.node_type,
        )

    def sums(self, values: Tensor) -> Tensor:
        """For each target the sum of a value per node over its roots, [T]."""
        return values.new_zeros(self.targets.numel()).index_add_(0, self.owner, values[self.node])


def _ones(nodes: Tensor, dtype: torch.dtype | None) -> Tensor:
    dtype = exact_dtype(nodes.device) if dtype is None else dtype
    return torch.ones(nodes.numel(), dtype=dtype, device=nodes.device)
