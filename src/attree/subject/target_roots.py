"""Targets (the nodes, pairs or graphs to explain), their rows in the output, and the roots of their trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.errors import ArgumentError, expect
from attree.tensors.precision import exact_dtype

Level = Literal["node", "edge", "graph"]
"""Level of a model's output: each row belongs to a node, to a pair of nodes, or to a graph."""

LEVELS: tuple[Level, ...] = ("node", "edge", "graph")

Targets = int | Sequence[int] | Tensor | Literal["all"]
"""Targets to explain: one node, pair or graph, several (ids, or a mask), or all."""


def as_targets(targets: Targets, count: int, device: torch.device, what: str = "node") -> Tensor:
    """Check the ids of targets and return them as a tensor.

    Args:
        targets: Ids, a mask, or 'all'.
        count: Number of possible targets.
        device: Device of the result.
        what: What to call a target in a message.
    """
    expected = f"'all', {what} ids or a mask of {what}s"
    if isinstance(targets, str):
        expect(targets == "all", "targets", expected, targets)
        return torch.arange(count, device=device)
    try:
        ids = torch.as_tensor(targets, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"Expected argument `targets` to be {expected}, but got {targets!r}.") from None
    if ids.dtype == torch.bool and ids.dim() > 0:
        expect(ids.shape == (count,), "targets", f"a mask of {count} {what}s", tuple(ids.shape))
        return ids.nonzero().view(-1)
    ids = ids.reshape(-1)
    fine = ids.numel() == 0 or not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    expect(fine, "targets", "integers", ids.dtype)
    ids = ids.long()
    outside = ids[(ids < 0) | (ids >= count)]
    expect(outside.numel() == 0, "targets", f"{what} ids in [0, {count})", outside[:3].tolist())
    expect(ids.unique().numel() == ids.numel(), "targets", f"distinct {what} ids", "some more than once")
    return ids


@dataclass(frozen=True)
class OutputLevel:
    """The level of a model's output, and the node, pair or graph of each row.

    Attributes:
        level: `node`, `edge` (a pair of nodes) or `graph`.
        batch: Graph level: the graph of each node.
        ends: Edge level: the two nodes of each row, [2, rows].
        nodes: Node level: the node of each row; None if there is one row per node, in order.
        node_type: Node level, heterogeneous graphs: the type of the nodes; `nodes` are numbered within it.
    """

    level: Level
    batch: Tensor | None = None
    ends: Tensor | None = None
    nodes: Tensor | None = None
    node_type: str | None = None

    def num_targets(self, graph: Graph) -> int:
        """Return the number of nodes, pairs or graphs that can be explained."""
        if self.batch is not None:
            return int(self.batch.max()) + 1 if self.batch.numel() else 0
        return len(graph.nodes(self.node_type)) if self.ends is None else self.ends.shape[1]

    def targets(self, targets: Targets, graph: Graph) -> Tensor:
        """Check the ids of targets and return them as a tensor on the graph's device."""
        what = "pair" if self.level == "edge" else self.level
        explained = self.nodes if self.batch is None else self.batch.unique()
        if explained is not None and isinstance(targets, str) and targets == "all":
            return explained
        ids = as_targets(targets, self.num_targets(graph), graph.device, what)
        if explained is not None:
            expected = "ids of graphs that have nodes" if what == "graph" else "ids of nodes that the model returns"
            expect(bool(torch.isin(ids, explained).all()), "targets", expected, ids.tolist()[:5])
        return ids

    def rows(self, targets: Tensor, graph: Graph) -> Tensor:
        """Return the output row of each target."""
        if self.nodes is None:
            return targets
        row = torch.full((self.num_targets(graph),), -1, device=self.nodes.device)
        row[self.nodes] = torch.arange(self.nodes.numel(), device=self.nodes.device)
        return row[targets]


@dataclass(frozen=True)
class Roots:
    """The roots of the computation trees of some targets, as entries (target, node, weight) sorted by target.

    A node has one root of weight 1: itself. A pair of nodes (u, v) has two roots of weight 1. A graph has one root per
    node, and its weight is the weight of the node in the readout.

    Attributes:
        targets: Ids of the targets, [T]: nodes, pairs or graphs.
        owner: For each entry, the position of its target in `targets`, ascending.
        node: The node of each entry.
        weight: The weight of each entry.
        node_type: The node type of the targets, if they are nodes of a heterogeneous graph.
    """

    targets: Tensor
    owner: Tensor
    node: Tensor
    weight: Tensor
    node_type: str | None = None

    @classmethod
    def at_nodes(
        cls,
        targets: Tensor,
        dtype: torch.dtype | None = None,
        nodes: Tensor | None = None,
        node_type: str | None = None,
    ) -> Roots:
        """Return the roots of targets that are nodes.

        Args:
            targets: Ids of the targets.
            dtype: The type of the weights; by default the widest of the device.
            nodes: The node of each target in the graph; None if it is the target's id.
            node_type: The node type of the targets in a heterogeneous graph.
        """
        positions = torch.arange(targets.numel(), device=targets.device)
        return cls(targets, positions, targets if nodes is None else nodes, _ones(targets, dtype), node_type)

    @classmethod
    def at_pairs(cls, targets: Tensor, ends: Tensor, dtype: torch.dtype | None = None) -> Roots:
        """Return the roots of targets that are pairs of nodes.

        Args:
            targets: Ids of the pairs: columns of `ends`.
            ends: The two nodes of every pair, [2, P].
            dtype: The type of the weights.
        """
        owner = torch.arange(targets.numel(), device=targets.device).repeat_interleave(2)
        nodes = ends[:, targets].sort(dim=0).values.t().reshape(-1)
        weight = _ones(nodes, dtype)
        # A pair of a node with itself has one root, of weight 2.
        again = (owner[1:] == owner[:-1]) & (nodes[1:] == nodes[:-1])
        is_first = torch.cat([torch.ones_like(owner[:1], dtype=torch.bool), ~again])
        weight[:-1][again] = 2
        return cls(targets, owner[is_first], nodes[is_first], weight[is_first])

    @classmethod
    def at_graphs(cls, targets: Tensor, batch: Tensor, weights: Tensor) -> Roots:
        """Return the roots of targets that are graphs.

        Args:
            targets: Ids of the graphs.
            batch: The graph of each node.
            weights: The weight of each node in the readout; a node of weight 0 is no root.
        """
        position = torch.full((int(batch.max()) + 1 if batch.numel() else 0,), -1, device=batch.device)
        position[targets] = torch.arange(targets.numel(), device=batch.device)
        owner = position[batch]
        nodes = owner.argsort(stable=True)
        nodes = nodes[(owner[nodes] >= 0) & (weights[nodes] != 0)]
        return cls(targets, owner[nodes], nodes, weights[nodes])

    def slice(self, begin: int, end: int) -> Roots:
        """Return the roots of the targets at positions `begin` to `end`."""
        first, last = torch.searchsorted(self.owner, torch.tensor([begin, end], device=self.owner.device)).tolist()
        return Roots(
            self.targets[begin:end],
            self.owner[first:last] - begin,
            self.node[first:last],
            self.weight[first:last],
            self.node_type,
        )

    def sums(self, values: Tensor) -> Tensor:
        """Return, for each target, the sum of a per-node value over its roots, [T]."""
        return values.new_zeros(self.targets.numel()).index_add_(0, self.owner, values[self.node])


def _ones(nodes: Tensor, dtype: torch.dtype | None) -> Tensor:
    dtype = exact_dtype(nodes.device) if dtype is None else dtype
    return torch.ones(nodes.numel(), dtype=dtype, device=nodes.device)
