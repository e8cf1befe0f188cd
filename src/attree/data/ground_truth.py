"""Ground truth: the edges that truly explain each target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.errors import ArgumentError, expect, expect_instance
from attree.tensors.arrays import are_pointers, find, row_of


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """The true edges of every target.

    Edges are pairs of nodes, not positions in an `edge_index`: so they do not depend on the order of a layer's edges or
    on added self-loops. A pair (i, i) is the self-loop of node i.

    Attributes:
        targets: Ids of the nodes that have a true explanation, each once, shape [T].
        edges: True edges as (source, destination), shape [2, M].
        ptr: Slices of `edges`, shape [T + 1]: target k owns `edges[:, ptr[k]:ptr[k + 1]]`. None if all edges are true
            for every target.

    >>> edges = torch.tensor([[0, 1, 4], [1, 2, 5]])
    >>> truth = GroundTruth(torch.tensor([2, 5]), edges, ptr=torch.tensor([0, 2, 3]))
    >>> truth.edges_of(2).tolist()
    [[0, 1], [1, 2]]
    >>> truth.labels(torch.tensor([0, 1]), torch.tensor([4, 4]), torch.tensor([5, 5])).tolist()
    [False, True]
    """

    targets: Tensor
    edges: Tensor
    ptr: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise unless targets, edges and offsets of the ground truth have valid shapes and fit together."""
        for argument, value, dim in (("targets", self.targets, 1), ("edges", self.edges, 2)):
            expect_instance(value, argument, Tensor)
            expect(
                value.dim() == dim and value.dtype == torch.long,
                argument,
                f"a {dim}-dimensional tensor of 64-bit integers",
                f"{value.dim()} dimensions of {value.dtype}",
            )
            smallest = int(value.min()) if value.numel() else 0
            expect(smallest >= 0, argument, "node ids >= 0", smallest)
        expect(self.edges.size(0) == 2, "edges", "of shape [2, M]", tuple(self.edges.shape))
        num_targets, num_edges = self.targets.numel(), self.edges.size(1)
        distinct = self.targets.unique().numel()
        expect(distinct == num_targets, "targets", "distinct nodes", f"{num_targets - distinct} repeated")
        expect_instance(self.ptr, "ptr", Tensor, optional=True)
        if self.ptr is not None:
            expected = f"non-decreasing offsets from 0 to {num_edges}, {num_targets + 1} of them"
            expect(are_pointers(self.ptr, num_targets, num_edges), "ptr", expected, self.ptr.tolist()[:9])

    @classmethod
    def of_graphs(cls, batch: Data) -> Self | None:
        """Return the true edges of the graphs of a batch, from their `true_edge_mask`; None if they have no such mask.

        Self-loops of the nodes of true edges are true, too. Graphs without true edges have no ground truth.

        >>> from torch_geometric.data import Batch
        >>> graph = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
        >>> graph.true_edge_mask = torch.tensor([False, True, False])
        >>> GroundTruth.of_graphs(Batch.from_data_list([graph, graph])).edges_of(1).tolist()
        [[4, 4, 5], [5, 4, 5]]
        """
        mask = batch.get("true_edge_mask")
        if not isinstance(mask, Tensor):
            return None
        edge_index = batch.edge_index[:, mask]
        edges = torch.cat([edge_index, edge_index.unique().expand(2, -1)], dim=1)
        graph = batch.get("batch")
        owner = torch.zeros_like(edges[1]) if graph is None else graph[edges[1]]
        order = owner.sort(stable=True).indices
        targets, counts = owner.unique(return_counts=True)
        ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(targets, edges[:, order], ptr) if targets.numel() else None

    @property
    def num_targets(self) -> int:
        """Number of targets with a true explanation."""
        return self.targets.numel()

    def edges_of(self, target: int) -> Tensor:
        """Return the true edges of node `target`, shape [2, m]."""
        positions = (self.targets == target).nonzero()
        if positions.numel() == 0:
            raise ArgumentError(f"Node {target} has no ground truth; `targets` lists the nodes that have one.")
        if self.ptr is None:
            return self.edges
        position = int(positions)
        return self.edges[:, int(self.ptr[position]) : int(self.ptr[position + 1])]

    def of_targets(self, targets: Tensor) -> GroundTruth | None:
        """Return the ground truth of some nodes; None if none of them has one.

        >>> truth = GroundTruth(torch.tensor([2, 5]), torch.tensor([[0, 4], [2, 5]]), ptr=torch.tensor([0, 1, 2]))
        >>> truth.of_targets(torch.tensor([7, 5])).edges.tolist()
        [[4], [5]]
        """
        positions = torch.isin(self.targets, targets.to(self.targets)).nonzero().view(-1)
        if positions.numel() == 0:
            return None
        if self.ptr is None:
            return GroundTruth(self.targets[positions], self.edges)
        parts = [self.edges[:, int(self.ptr[place]) : int(self.ptr[place + 1])] for place in positions.tolist()]
        ptr = torch.tensor([0, *(part.shape[1] for part in parts)]).cumsum(0).to(self.ptr)
        return GroundTruth(self.targets[positions], torch.cat(parts, dim=1), ptr)

    def labels(self, target_position: Tensor, source: Tensor, destination: Tensor) -> Tensor:
        """Return, for each (target, edge) pair, whether the edge is a true edge of the target.

        Args:
            target_position: Position in `targets` (not a node id), shape [P].
            source: Source node of each edge, shape [P].
            destination: Destination node of each edge, shape [P].

        Returns:
            Boolean tensor of shape [P] on the device of `source`.
        """
        device = source.device
        pair, member = self._pair_keys.to(device), self._member_keys.to(device)
        # A node beyond the last true one would have the key of another pair.
        in_range = (source < self._base) & (destination < self._base)
        rank, is_true = find(pair, source * self._base + destination)
        is_true &= in_range
        if self.ptr is not None:
            is_true &= find(member, target_position * max(pair.numel(), 1) + rank)[1]
        return is_true

    def to(self, device: torch.device | str) -> Self:
        """Return the same ground truth with its tensors on `device`."""
        # This skips validation, which would synchronise with the device, and also moves the prepared keys.
        moved = object.__new__(type(self))
        for name, value in self.__dict__.items():
            moved.__dict__[name] = value.to(device) if isinstance(value, Tensor) else value
        return moved

    @cached_property
    def _base(self) -> int:
        return int(self.edges.max()) + 1 if self.edges.numel() else 1

    @cached_property
    def _pair_keys(self) -> Tensor:
        """Sorted distinct keys source * base + destination of all true edges."""
        return (self.edges[0] * self._base + self.edges[1]).unique()

    @cached_property
    def _member_keys(self) -> Tensor:
        """Sorted keys position * number of pairs + rank of the pair. They stay small even for millions of nodes."""
        if self.ptr is None:
            return self.edges.new_empty(0)
        position = row_of(self.ptr.diff())
        rank, _ = find(self._pair_keys, self.edges[0] * self._base + self.edges[1])
        return (position * max(self._pair_keys.numel(), 1) + rank).unique()
