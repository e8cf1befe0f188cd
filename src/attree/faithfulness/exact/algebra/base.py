"""Base class for the arithmetic of an attention convolution, split into steps so that single rows can be recomputed.

For node j with entering edges (i -> j) and every head, a layer computes

    out_j = finish(sum_i softmax_i(score(source_i, target_j, edge_ij)) * value(value_i, edge_ij), root_j).

Here source, target, value and root are projections of single nodes, and edge is a projection of edge features.
Convolutions differ only in their projections, score and finish. Each has a subclass of `LayerAlgebra`, registered by
`register_algebra`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, remove_self_loops

from attree.attention.graph import EdgeType
from attree.subject.part_check import NotRowwiseError

PIECE_BYTES = 2 * 2**20
"""Bytes of intermediate terms when all sources are scored with some targets; small pieces stay in the CPU cache."""

WIDENED_BYTES = 64 * 2**20
"""Bytes of features that are converted to the exact dtype at a time."""


class States(NamedTuple):
    """Projections of nodes that a layer needs, [n, ...].

    Attributes:
        value: The values to sum, [n, heads, channels].
        source: The node's part in the scores of edges that leave it.
        target: The node's part in the scores of edges that enter it.
        root: The node's own input to `finish`, such as a skip connection; None if there is none.
    """

    value: Tensor
    source: Tensor
    target: Tensor
    root: Tensor | None = None


class LayerAlgebra(ABC):
    """Arithmetic of one convolution in a chosen floating-point dtype.

    Subclasses read parameters from the convolution; while the engine runs, these have the chosen dtype.

    Args:
        conv: The convolution. Its `out_channels` is read, and `heads`, `concat` and `bias` if it has them. By default
            it has one head and no bias.
        dtype: The dtype of all results.
    """

    edge_argument: ClassVar[str | None] = "edge_attr"
    """Name of the argument of the convolution's `forward` that holds edge features; None if it takes none."""

    ignored_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of `forward` that have no effect outside training; all other arguments must be omitted or None."""

    edge_in_value: ClassVar[bool] = False
    """Whether the summed values depend on edge features."""

    def __init__(self, conv: MessagePassing, dtype: torch.dtype) -> None:
        self.conv = conv
        self.dtype = dtype
        self.heads, self.channels = int(getattr(conv, "heads", 1)), int(conv.out_channels)

    @abstractmethod
    def project(self, h: Tensor) -> States:
        """Return states of nodes from features [n, in], dense or sparse; computed in their dtype, stored in `dtype`."""

    def project_sides(self, source: Tensor, target: Tensor) -> States:
        """Return the states of a call with messages from nodes of one type to nodes of another, or the same, type.

        `value` and `source` have one row per source node, `target` and `root` one per destination node.

        Args:
            source: Features of the source nodes.
            target: Features of the destination nodes.
        """
        raise NotRowwiseError(f"the arithmetic of {type(self.conv).__name__} between two types is not known")

    def project_types(
        self, sources: Sequence[tuple[EdgeType, Tensor]], targets: Sequence[tuple[str, Tensor]]
    ) -> States:
        """Return the states of a call with several types on either side, concatenated by type; see `project_sides`.

        Args:
            sources: Each relation and the features of its source nodes.
            targets: Each destination type and the features of its nodes.
        """
        ((_, source),), ((_, target),) = sources, targets
        return self.project_sides(source, target)

    @abstractmethod
    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        """Return the scores of edges before softmax, [m, heads].

        Args:
            source: `States.source` of each edge's source node.
            target: `States.target` of each edge's destination node.
            edge: Each edge's row of the result of `project_edges`.
        """

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        """Return the scores [r, heads, d] of all sources [d, ...], each with its edge, with all targets [r, ...]."""
        wide = None if edge is None else edge.unsqueeze(0)
        return self.score(source.unsqueeze(0), target.unsqueeze(1), wide).transpose(1, 2)

    def project_edges(self, features: Tensor) -> Tensor | None:
        """Return the projections of edges, [num_edges, ...], from their features [num_edges, in]; None if unused."""
        return None

    def value(self, value: Tensor, edge: Tensor) -> Tensor:
        """Return the values to sum, [m, heads, channels], from `States.value` of the sources; see `edge_in_value`."""
        return value

    def edges_used(self, edge_index: Tensor, features: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
        """Return the edges that the convolution scores, and their features, for given edges and features."""
        if not getattr(self.conv, "add_self_loops", False):
            return edge_index, features
        edge_index, features = remove_self_loops(edge_index, features)
        fill = getattr(self.conv, "fill_value", None)
        return add_self_loops(edge_index, features, fill_value=fill, num_nodes=num_nodes)

    def finish(self, aggregated: Tensor, root: Tensor | None) -> Tensor:
        """Return the layer's output [n, out] from weighted sums [n, heads, channels] and `States.root`."""
        joined = self.heads == 1 or self.conv.concat
        out = aggregated.flatten(1) if joined else aggregated.mean(dim=1)
        if root is not None:
            out = out + root
        return out if getattr(self.conv, "bias", None) is None else out + self.parameter("bias")

    def linear(self, lin: nn.Linear, h: Tensor) -> Tensor:
        """Apply a linear layer to features, dense or sparse, in `dtype`."""
        weight = self.parameter_of(lin.weight)
        bias = None if lin.bias is None else self.parameter_of(lin.bias)
        if h.layout != torch.strided:
            out = torch.sparse.mm(h.to(self.dtype), weight.t())
            return out if bias is None else out + bias
        rows = max(WIDENED_BYTES // max(h[:1].numel() * self.dtype.itemsize, 1), 1)
        if h.dtype == self.dtype or h.shape[0] <= rows:
            return F.linear(h.to(self.dtype), weight, bias)
        return torch.cat([F.linear(part.to(self.dtype), weight, bias) for part in h.split(rows)])

    def by_head(self, lin: nn.Linear, h: Tensor) -> Tensor:
        """Apply a linear layer to features and split the result by head, [n, heads, channels]."""
        return self.linear(lin, h).view(-1, self.heads, self.channels)

    def parameter(self, name: str) -> Tensor:
        """Return a parameter of the convolution in `dtype`."""
        return self.parameter_of(getattr(self.conv, name))

    def parameter_of(self, value: Tensor) -> Tensor:
        """Return a tensor, detached, in `dtype`."""
        return value.detach().to(self.dtype)
