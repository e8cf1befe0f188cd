"""The arithmetic of attention convolutions in steps, so that single rows can be recomputed; users add their own.

For node j with entering edges (i -> j) and every head, a layer computes

    out_j = finish(sum_i softmax_i(score(source_i, target_j, edge_ij)) * value(value_i, edge_ij), root_j).

Here source, target, value and root are projections of single nodes, and edge is a projection of edge features.
Convolutions differ only in their projections, score and finish. Each has a subclass of `LayerAlgebra`, registered by
`register_algebra`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from math import sqrt
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    HGTConv,
    Linear,
    MessagePassing,
    SuperGATConv,
    TransformerConv,
)
from torch_geometric.utils import add_self_loops, remove_self_loops

from attree.attention.graph import EdgeType
from attree.errors import expect
from attree.faithfulness.wide_floats import WideFloats
from attree.subject.model_call import NotRowwiseError
from attree.tensors.arrays import take_rows

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
        """Apply a linear layer, or any module in its place (LoRA), to features, dense or sparse, in `dtype`."""
        if not is_plain_linear(lin):
            return self._by_module(lin, h)
        weight = self.parameter_of(lin.weight)
        bias = None if lin.bias is None else self.parameter_of(lin.bias)
        if h.layout != torch.strided:
            out = torch.sparse.mm(h.to(self.dtype), weight.t())
            return out if bias is None else out + bias
        rows = max(WIDENED_BYTES // max(h[:1].numel() * self.dtype.itemsize, 1), 1)
        if h.dtype == self.dtype or h.shape[0] <= rows:
            return F.linear(h.to(self.dtype), weight, bias)
        return torch.cat([F.linear(part.to(self.dtype), weight, bias) for part in h.split(rows)])

    def _by_module(self, module: nn.Module, h: Tensor) -> Tensor:
        """Apply a module to features by its own forward, some rows at a time."""
        pieces = max(h.shape[0] * h.shape[1] * self.dtype.itemsize // WIDENED_BYTES, 1)
        h = h.to_dense() if h.layout != torch.strided else h
        with WideFloats() if self.dtype == torch.float64 else nullcontext():
            return torch.cat([module(rows.to(self.dtype)) for rows in h.tensor_split(pieces)])

    def by_head(self, lin: nn.Linear, h: Tensor) -> Tensor:
        """Apply a linear layer to features and split the result by head, [n, heads, channels]."""
        return self.linear(lin, h).view(-1, self.heads, self.channels)

    def parameter(self, name: str) -> Tensor:
        """Return a parameter of the convolution in `dtype`."""
        return self.parameter_of(getattr(self.conv, name))

    def parameter_of(self, value: Tensor) -> Tensor:
        """Return a tensor, detached, in `dtype`."""
        return value.detach().to(self.dtype)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer that computes nothing but x W^T + b from its weight and bias."""
    hooks = (module._forward_pre_hooks, module._forward_hooks)
    return type(module).forward in (nn.Linear.forward, Linear.forward) and not any(hooks)


class GATAlgebra(LayerAlgebra):
    """GAT: score = LeakyReLU(a_src . W h_i + a_dst . W h_j + a_edge . W_e e_ij); root = W_res h_j."""

    def project(self, h: Tensor) -> States:
        return self.project_sides(h, h)

    def project_sides(self, source: Tensor, target: Tensor) -> States:
        """Return GAT's projections: values, parts of the score at source and target, and the residual."""
        conv = self.conv
        value = self.by_head(conv.lin_src if conv.lin is None else conv.lin, source)
        if conv.lin is not None and source is target:
            at_target = value
        else:
            at_target = self.by_head(conv.lin_dst if conv.lin is None else conv.lin, target)
        left = (value * self.parameter("att_src")).sum(dim=-1)
        right = (at_target * self.parameter("att_dst")).sum(dim=-1)
        return States(value, left, right, None if conv.res is None else self.linear(conv.res, target))

    def project_edges(self, features: Tensor) -> Tensor | None:
        if self.conv.lin_edge is None:
            return None
        return (self.by_head(self.conv.lin_edge, features) * self.parameter("att_edge")).sum(dim=-1)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        total = source + target
        return F.leaky_relu(total if edge is None else total + edge, float(self.conv.negative_slope))


class GATv2Algebra(LayerAlgebra):
    """GATv2: score = a . LeakyReLU(W_l h_i + W_r h_j + W_e e_ij); root = W_res h_j."""

    def project(self, h: Tensor) -> States:
        return self.project_sides(h, h)

    def project_sides(self, source: Tensor, target: Tensor) -> States:
        conv = self.conv
        value = self.by_head(conv.lin_l, source)
        right = value if conv.share_weights and source is target else self.by_head(conv.lin_r, target)
        return States(value, value, right, None if conv.res is None else self.linear(conv.res, target))

    def project_edges(self, features: Tensor) -> Tensor | None:
        return None if self.conv.lin_edge is None else self.by_head(self.conv.lin_edge, features)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        total = source + target
        total = F.leaky_relu(total if edge is None else total + edge, float(self.conv.negative_slope))
        return (total * self.parameter("att")).sum(dim=-1)

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        # Score some targets at a time: the terms of a score, one per channel, take far more memory than the scores.
        source = source if edge is None else source + edge
        rows = max(PIECE_BYTES // (source.numel() * source.element_size()), 1)
        score = torch.cat([self.score(source, part.unsqueeze(1)) for part in target.split(rows)])
        return score.transpose(1, 2)


class SuperGATAlgebra(LayerAlgebra):
    """SuperGAT: score = LeakyReLU(dot / sqrt(C)) for SD, LeakyReLU((a_l . W h_i + a_r . W h_j) sigmoid(dot)) for MX."""

    edge_argument = None
    ignored_arguments = frozenset({"neg_edge_index", "batch"})

    def project(self, h: Tensor) -> States:
        value = self.by_head(self.conv.lin, h)
        return States(value, value, value)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        dot = (source * target).sum(dim=-1)
        if self.conv.attention_type == "SD":
            return self._scaled(dot)
        return self._mixed(dot, self._share(source, "att_l"), self._share(target, "att_r"))

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        dot = torch.einsum("rhc,dhc->rhd", target, source)
        if self.conv.attention_type == "SD":
            return self._scaled(dot)
        return self._mixed(dot, self._share(source, "att_l").t(), self._share(target, "att_r").unsqueeze(-1))

    def _scaled(self, dot: Tensor) -> Tensor:
        return F.leaky_relu(dot / sqrt(self.channels), float(self.conv.negative_slope))

    def _mixed(self, dot: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return F.leaky_relu((left + right) * dot.sigmoid(), float(self.conv.negative_slope))

    def _share(self, states: Tensor, name: str) -> Tensor:
        """Return the part of GAT's score that comes from one end of an edge, [n, heads]."""
        return (states * self.parameter(name)).sum(dim=-1)


class AGNNAlgebra(LayerAlgebra):
    """AGNN: score = b cos(h_i, h_j), value = h_i; it has no projections, so its output is as wide as its input."""

    edge_argument = None

    def __init__(self, conv: MessagePassing, dtype: torch.dtype) -> None:
        self.conv, self.dtype = conv, dtype
        self.heads, self.channels = 1, 1

    def project(self, h: Tensor) -> States:
        h = (h.to_dense() if h.layout != torch.strided else h).to(self.dtype)
        self.channels = h.shape[1]
        norm = F.normalize(h, dim=-1)
        return States(h.unsqueeze(1), norm, norm)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return (source * target).sum(dim=-1, keepdim=True) * self.parameter("beta")

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return (target @ source.t() * self.parameter("beta")).unsqueeze(1)


class TransformerAlgebra(LayerAlgebra):
    """Graph transformer: score = W_q h_j . (W_k h_i + W_e e_ij) / sqrt(C), value = W_v h_i + W_e e_ij, root = W_s h_j.

    The output is out + root, or beta root + (1 - beta) out with beta = sigmoid(w . [out, root, out - root]).
    """

    edge_in_value = True

    def project(self, h: Tensor) -> States:
        return self.project_sides(h, h)

    def project_sides(self, source: Tensor, target: Tensor) -> States:
        conv = self.conv
        value, key = (self.by_head(lin, source) for lin in (conv.lin_value, conv.lin_key))
        query = self.by_head(conv.lin_query, target)
        return States(value, key, query, self.linear(conv.lin_skip, target) if conv.root_weight else None)

    def project_edges(self, features: Tensor) -> Tensor | None:
        return None if self.conv.lin_edge is None else self.by_head(self.conv.lin_edge, features)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return (target * (source if edge is None else source + edge)).sum(dim=-1) / sqrt(self.channels)

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        source = source if edge is None else source + edge
        return torch.einsum("rhc,dhc->rhd", target, source) / sqrt(self.channels)

    def value(self, value: Tensor, edge: Tensor) -> Tensor:
        return value + edge

    def finish(self, aggregated: Tensor, root: Tensor | None) -> Tensor:
        out = aggregated.flatten(1) if self.conv.concat else aggregated.mean(dim=1)
        if root is None:
            return out
        if self.conv.lin_beta is None:
            return out + root
        beta = self.linear(self.conv.lin_beta, torch.cat([out, root, out - root], dim=-1)).sigmoid()
        return beta * root + (1 - beta) * out


class HGTAlgebra(LayerAlgebra):
    """Heterogeneous graph transformer: one softmax over all relations r that enter a node.

    score = p_r (W_q h_j) . (K_r W_k h_i) / sqrt(C), value = V_r W_v h_i, with W of the node's type. The output is
    a W_o gelu(out) + (1 - a) h_j, with a = sigmoid(skip) if h_j is as wide as the output, else a = 1. `finish` depends
    on the node's type, so root holds h_j followed by the number of the type.
    """

    edge_argument = None

    def __init__(self, conv: MessagePassing, dtype: torch.dtype) -> None:
        super().__init__(conv, dtype)
        self.channels = int(conv.out_channels) // self.heads

    def project(self, h: Tensor) -> States:
        raise NotRowwiseError("HGTConv is called on one tensor")

    def project_types(
        self, sources: Sequence[tuple[EdgeType, Tensor]], targets: Sequence[tuple[str, Tensor]]
    ) -> States:
        """Return HGT's projections: values and keys by relation, queries, and targets' own input and type."""
        width = int(self.conv.out_channels)
        parts: dict[tuple[str, int], Tensor] = {}
        keys, values, queries, roots = [], [], [], []
        for kind, h in sources:
            key, value = (self._part(kind[0], h, number, parts) for number in (0, 2))
            strength = self.parameter_of(self.conv.p_rel["__".join(kind)]).view(1, -1, 1)
            keys.append(torch.einsum("nhc,hcd->nhd", key, self._relation("k_rel", kind)) * strength)
            values.append(torch.einsum("nhc,hcd->nhd", value, self._relation("v_rel", kind)))
        for kind_of_node, h in targets:
            queries.append(self._part(kind_of_node, h, 1, parts))
            number = float(self.conv.node_types.index(kind_of_node))
            inputs = h.to_dense() if h.layout != torch.strided else h
            inputs = inputs.to(self.dtype) if h.shape[1] == width else queries[-1].new_zeros(h.shape[0], width)
            roots.append(torch.cat([inputs, inputs.new_full((h.shape[0], 1), number)], dim=1))
        return States(torch.cat(values), torch.cat(keys), torch.cat(queries), torch.cat(roots))

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return (target * source).sum(dim=-1) / sqrt(self.channels)

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return torch.einsum("rhc,dhc->rhd", target, source) / sqrt(self.channels)

    def finish(self, aggregated: Tensor, root: Tensor | None) -> Tensor:
        """Return HGT's output from the summed messages: GELU, linear layer of the node type, skip connection."""
        assert root is not None
        hidden, root_rows, type_of_row = F.gelu(aggregated.flatten(1)), root[:, :-1], root[:, -1]
        out = torch.empty_like(hidden)
        for number, kind in enumerate(self.conv.node_types):
            rows = (type_of_row == number).nonzero().view(-1)
            if rows.numel() == 0:
                continue
            through = self.linear(self.conv.out_lin.lins[kind], take_rows(hidden, rows))
            if int(self.conv.kqv_lin.lins[kind].in_channels) == hidden.shape[1]:
                share = self.parameter_of(self.conv.skip[kind]).sigmoid()
                through = share * through + (1 - share) * take_rows(root_rows, rows)
            out.index_copy_(0, rows, through)
        return out

    def _part(self, kind: str, h: Tensor, number: int, parts: dict[tuple[str, int], Tensor]) -> Tensor:
        """Return keys (0), queries (1) or values (2) of nodes; each features tensor is projected once."""
        if (kind, id(h)) not in parts:
            parts[kind, id(h)] = self.linear(self.conv.kqv_lin.lins[kind], h)
        return parts[kind, id(h)].tensor_split(3, dim=1)[number].reshape(-1, self.heads, self.channels)

    def _relation(self, name: str, kind: EdgeType) -> Tensor:
        """Return the matrices of a relation, [heads, channels, channels]."""
        weight = self.parameter_of(getattr(self.conv, name).weight)
        return weight.view(self.heads, -1, self.channels, self.channels)[:, self.conv.edge_types_map[kind]]


ALGEBRAS: dict[type[MessagePassing], type[LayerAlgebra]] = {
    AGNNConv: AGNNAlgebra,
    GATConv: GATAlgebra,
    GATv2Conv: GATv2Algebra,
    SuperGATConv: SuperGATAlgebra,
    TransformerConv: TransformerAlgebra,
    HGTConv: HGTAlgebra,
}
"""Algebra of each supported convolution, by exact type, because a subclass may compute something else."""


def register_algebra(conv: type[MessagePassing], algebra: type[LayerAlgebra]) -> None:
    """Register the algebra of a convolution, so that the exact engine supports it.

    An algebra is one class with the convolution's projections of a node and its score of an edge. Before it is used for
    a model, it is compared with the convolution itself; if they differ, a slower engine is used.

        class DotAlgebra(LayerAlgebra):
            def project(self, h):
                value = self.by_head(self.conv.lin, h)
                return States(value, source=value, target=value)

            def score(self, source, target, edge=None):
                return (source * target).sum(dim=-1)

        register_algebra(DotConv, DotAlgebra)

    Args:
        conv: The convolution's class; a subclass needs its own registration.
        algebra: Its algebra.
    """
    expect(isinstance(conv, type) and issubclass(conv, MessagePassing), "conv", "a class of MessagePassing", conv)
    fine = isinstance(algebra, type) and issubclass(algebra, LayerAlgebra)
    expect(fine, "algebra", "a subclass of LayerAlgebra", algebra)
    ALGEBRAS[conv] = algebra
