"""Score edges block by block, from the walks over the computation trees and the attention of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.graph import Graph
from attree.attention.wiring import Wiring
from attree.attribution.flows import Frontier
from attree.subject.global_trace import GlobalTrace
from attree.tensors.limits import chunk_bounds
from attree.tensors.ragged import expand

CPU_BLOCK = 2**15
"""Scores per block on the CPU: small enough for the cache, and for operations that start no threads."""

GPU_BLOCK = 2**23
"""Scores per block on other devices: large enough to hide the launch cost."""


def score_dtype(attention: Attention) -> torch.dtype:
    """Return the dtype of scores: that of the attention, or float32 for half precision."""
    dtype = attention.weights[0].dtype
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class LayerTable:
    """Attention of every layer, ordered by destination, so that the edges that enter a node are contiguous.

    Attributes:
        graph: The graph.
        alphas: Attention per layer in the order of `graph.edge_index`, [num_edges] each.
        used: 1 if the layer uses the edge, else 0, in the same order.
        alpha_rows: `alphas` in the order of `graph.entering.items`, [L, num_edges].
        used_rows: `used` in that order; None if every layer uses every edge.
        wiring: Which layer feeds which.
        everywhere: All layers of the network if some attend over all nodes; otherwise None.
    """

    graph: Graph
    alphas: list[Tensor]
    used: list[Tensor]
    alpha_rows: Tensor
    used_rows: Tensor | None
    wiring: Wiring
    everywhere: GlobalTrace | None = None

    @classmethod
    def of(cls, attention: Attention, heads: Sequence[int] | None) -> LayerTable:
        """Build the table; half-precision attention becomes float32, because scores sum many weights."""
        order = attention.graph.entering.items
        alphas = attention.per_edge(heads)
        alphas = [alpha.to(score_dtype(attention)) for alpha in alphas]
        used = [
            torch.ones_like(alpha) if present is None else present.to(alpha.dtype)
            for alpha, present in zip(alphas, attention.present, strict=True)
        ]
        complete = all(present is None for present in attention.present)
        alpha_rows = torch.stack([alpha.index_select(0, order) for alpha in alphas])
        used_rows = None if complete else torch.stack([row.index_select(0, order) for row in used])
        return cls(attention.graph, alphas, used, alpha_rows, used_rows, attention.layout)


@dataclass(frozen=True)
class EdgeBlock:
    """Some edges that carry flows to some targets, grouped by destination, with everything that a score may need.

    Attributes:
        table: Attention of every layer.
        frontier: The walk's entries whose entering edges are listed.
        owner: For each edge, the entry whose node it enters.
        place: For each edge, its position in `graph.entering.items`.
        edges: For each edge, its id in `graph.edge_index`.
    """

    table: LayerTable
    frontier: Frontier
    owner: Tensor
    place: Tensor
    edges: Tensor

    @property
    def targets(self) -> Tensor:
        """Id of the target of each edge."""
        return self.frontier.targets.index_select(0, self.frontier.owner).index_select(0, self.owner)

    def weighted(self) -> Tensor:
        """Return the sum over the layers of r[destination] * attention."""
        return self._sum(self.frontier.weight.to(self.table.alpha_rows.dtype), self.table.alpha_rows)

    def flows(self) -> Tensor:
        """Return the number of flows that start with each edge; the walk must have counted flows."""
        assert self.frontier.count is not None
        if self.table.used_rows is None:
            return self.frontier.count.sum(dim=0).index_select(0, self.owner)
        return self._sum(self.frontier.count, self.table.used_rows.to(self.frontier.count.dtype))

    def _sum(self, of_entry: Tensor, of_place: Tensor) -> Tensor:
        """Return the sum over the layers of an entry's factor times an edge's factor."""
        total = of_entry[0].index_select(0, self.owner).mul_(of_place[0].index_select(0, self.place))
        for layer in range(1, of_entry.shape[0]):
            total.addcmul_(of_entry[layer].index_select(0, self.owner), of_place[layer].index_select(0, self.place))
        return total


def edge_blocks(table: LayerTable, frontier: Frontier) -> Iterator[EdgeBlock]:
    """Split the edges that carry flows into blocks; all edges that enter an entry's node are in one block."""
    rows = table.graph.entering
    size = CPU_BLOCK if table.graph.device.type == "cpu" else GPU_BLOCK
    for first, last in chunk_bounds(rows.sizes.index_select(0, frontier.node), size):
        part = frontier.entries(first, last)
        owner, place = expand(rows.ptr, part.node)
        yield EdgeBlock(table, part, owner, place, rows.items.index_select(0, place))
