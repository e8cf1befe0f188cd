"""The edge set that attention lives on: the graph's edges without self-loops, plus one self-loop per node.

Every per-edge array in attree is aligned with `Graph.edge_index`. PyG's attention convolutions use the same
order (they drop self-loops, then append one per node), so their weights need no re-ordering.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from attree.tensors.edges import check_edge_index
from attree.tensors.ragged import Rows, group


class Graph:
    """A graph with exactly one self-loop per node, and the maps between its edges and those it was made from.

    Args:
        edge_index: The graph's edges [2, E]; self-loops in it are merged into the one its node has anyway, duplicate
            edges are kept.
        num_nodes: Number of nodes.

    >>> graph = Graph(torch.tensor([[0, 1, 1], [1, 1, 2]]), num_nodes=3)
    >>> graph.edge_index.tolist()
    [[0, 1, 0, 1, 2], [1, 2, 0, 1, 2]]
    >>> graph.position.tolist()  # where the three given edges are now
    [0, 3, 1]
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        check_edge_index(edge_index, num_nodes)
        edge_index = plain(edge_index)
        self.num_nodes = num_nodes
        self.original_edge_index = edge_index
        proper = edge_index[0] != edge_index[1]
        self.num_proper_edges = int(proper.sum())
        nodes = torch.arange(num_nodes, device=edge_index.device)
        self.edge_index = torch.cat([edge_index[:, proper], nodes.expand(2, -1)], dim=1)
        # Proper edges keep their order; a self-loop of node i stands at num_proper_edges + i.
        self.position = torch.where(proper, proper.cumsum(0) - 1, self.num_proper_edges + edge_index[0])

    @property
    def num_edges(self) -> int:
        """Number of edges, self-loops included."""
        return self.edge_index.shape[1]

    @property
    def source(self) -> Tensor:
        """Where each edge starts, [num_edges]."""
        return self.edge_index[0]

    @property
    def destination(self) -> Tensor:
        """Where each edge ends, [num_edges]."""
        return self.edge_index[1]

    @property
    def device(self) -> torch.device:
        """Device of every tensor of this graph."""
        return self.edge_index.device

    @cached_property
    def entering(self) -> Rows:
        """Edges grouped by the node they enter: the rows that attention is normalised over."""
        return group(self.destination, self.num_nodes)

    @cached_property
    def entering_source(self) -> Tensor:
        """`source` in the order of `entering.items`."""
        return self.source[self.entering.items]

    @cached_property
    def entering_destination(self) -> Tensor:
        """`destination` in the order of `entering.items`: ascending."""
        return self.destination[self.entering.items]

    @cached_property
    def entering_rank(self) -> Tensor:
        """For each edge, how many edges precede it in its row of `entering`."""
        ptr, edges = self.entering
        rank = torch.empty_like(edges)
        rank[edges] = torch.arange(self.num_edges, device=self.device) - ptr[self.destination[edges]]
        return rank

    def to_original(self, values: Tensor) -> Tensor:
        """Per-edge values of this graph, read at the edges it was made from: [..., num_edges] to [..., E]."""
        return values[..., self.position]

    def matches(self, edge_index: Tensor, num_nodes: int) -> bool:
        """Whether this is the looped graph of `edge_index` (compared by content, cheap against rebuilding)."""
        return (
            self.num_nodes == num_nodes
            and self.device == edge_index.device
            and torch.equal(self.original_edge_index, plain(edge_index))
        )


def plain(edge_index: Any) -> Any:
    """The plain tensor of PyG's `EdgeIndex`, which carries its order and caches along; all else as it is."""
    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
