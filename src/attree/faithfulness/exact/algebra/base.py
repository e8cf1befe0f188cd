"""What attention convolutions have in common: the arithmetic of one layer, taken apart so that single rows can change.

A layer computes, for node j with entering edges (i -> j) and every head,

    out_j = finish(sum_i softmax_i(score(source_i, target_j, edge_ij)) * value(value_i, edge_ij), root_j),

where source, target, value and root are projections of one node each and edge is a projection of an edge's features.
Convolutions differ only in their projections, their score and their finish. Each has a subclass of `LayerAlgebra`,
which `register_algebra` makes known.
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
"""Bytes of the terms that scores of all sources with some targets sum: what stays in cache is many times faster."""


class States(NamedTuple):
    """What a layer needs of each node, [n, ...].

    Attributes:
        value: What is summed, [n, heads, channels].
        source: The node's part in the scores of edges that leave it.
        target: Its part in the scores of edges that enter it.
        root: What `finish` needs of the node itself, such as a skip connection; None if nothing.
    """

    value: Tensor
    source: Tensor
    target: Tensor
    root: Tensor | None = None


class LayerAlgebra(ABC):
    """One convolution's arithmetic in a chosen floating-point type.

    Subclasses read parameters from the convolution, where they are of that type while the engine runs.

    Args:
        conv: The convolution. Its `out_channels` is read, and `heads`, `concat` and `bias` where it has them; without
            these it has one head and no bias.
        dtype: The type of all results.
    """

    edge_argument: ClassVar[str | None] = "edge_attr"
    """The argument of the convolution's `forward` that holds edge features, if there is one."""

    ignored_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of its `forward` that change nothing when it is not in training; others must be left out or None."""

    edge_in_value: ClassVar[bool] = False
    """Whether the summed values depend on edge features."""

    def __init__(self, conv: MessagePassing, dtype: torch.dtype) -> None:
        self.conv = conv
        self.dtype = dtype
        self.heads, self.channels = int(getattr(conv, "heads", 1)), int(conv.out_channels)

    @abstractmethod
    def project(self, h: Tensor) -> States:
        """States of nodes from their features [n, in], dense or sparse; computed in their type, kept in `dtype`."""

    def project_sides(self, source: Tensor, target: Tensor) -> States:
        """States of a call whose messages go from nodes of one type to those of another, or of the same.

        `value` and `source` have one row for each node that messages come from, `target` and `root` one for each that
        they go to.

        Args:
            source: Features of the nodes that messages come from.
            target: Features of the nodes that messages go to.
        """
        raise NotRowwiseError(f"the arithmetic of {type(self.conv).__name__} between two types is not known")

    def project_types(
        self, sources: Sequence[tuple[EdgeType, Tensor]], targets: Sequence[tuple[str, Tensor]]
    ) -> States:
        """As `project_sides`, for a call with several types on either side; states stand one type after the other.

        Args:
            sources: Each relation, and the features of the nodes that its messages come from.
            targets: Each type that messages go to, and the features of its nodes.
        """
        ((_, source),), ((_, target),) = sources, targets
        return self.project_sides(source, target)

    @abstractmethod
    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        """Scores before softmax of edges, [m, heads], from `States.source` and `.target` of their ends.

        Args:
            source: Of the node that each edge leaves.
            target: Of the node that it enters.
            edge: Its row of what `project_edges` returned.
        """

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        """Scores of all sources [d, ...], each with its edge, with all targets [r, ...], as [r, heads, d]."""
        wide = None if edge is None else edge.unsqueeze(0)
        return self.score(source.unsqueeze(0), target.unsqueeze(1), wide).transpose(1, 2)

    def project_edges(self, features: Tensor) -> Tensor | None:
        """What scores and values need of each edge, [num_edges, ...], from edge features [num_edges, in]."""
        return None

    def value(self, value: Tensor, edge: Tensor) -> Tensor:
        """What is summed for edges [m, heads, channels], from `States.value` of their sources; see `edge_in_value`."""
        return value

    def edges_used(self, edge_index: Tensor, features: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
        """The edges that the convolution scores, and their features, when it is given these."""
        if not getattr(self.conv, "add_self_loops", False):
            return edge_index, features
        edge_index, features = remove_self_loops(edge_index, features)
        fill = getattr(self.conv, "fill_value", None)
        return add_self_loops(edge_index, features, fill_value=fill, num_nodes=num_nodes)

    def finish(self, aggregated: Tensor, root: Tensor | None) -> Tensor:
        """The layer's output [n, out] from weighted sums [n, heads, channels] and `States.root`."""
        joined = self.heads == 1 or self.conv.concat
        out = aggregated.flatten(1) if joined else aggregated.mean(dim=1)
        if root is not None:
            out = out + root
        return out if getattr(self.conv, "bias", None) is None else out + self.parameter("bias")

    def linear(self, lin: nn.Linear, h: Tensor) -> Tensor:
        """A linear map of features, dense or sparse, in their type; kept in `dtype`."""
        weight = lin.weight.detach().to(h.dtype)
        bias = None if lin.bias is None else lin.bias.detach().to(h.dtype)
        if h.layout == torch.strided:
            out = F.linear(h, weight, bias)
        else:
            out = torch.sparse.mm(h, weight.t())
            out = out if bias is None else out + bias
        return out.to(self.dtype)

    def by_head(self, lin: nn.Linear, h: Tensor) -> Tensor:
        """A linear map of features to [n, heads, channels]."""
        return self.linear(lin, h).view(-1, self.heads, self.channels)

    def parameter(self, name: str) -> Tensor:
        """A parameter of the convolution."""
        return self.parameter_of(getattr(self.conv, name))

    def parameter_of(self, value: Tensor) -> Tensor:
        """A parameter in the type of all results."""
        return value.detach().to(self.dtype)
