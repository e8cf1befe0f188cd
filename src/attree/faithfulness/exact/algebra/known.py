"""Algebras of PyG's attention convolutions, and the registry to which users add their own."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, HGTConv, MessagePassing, SuperGATConv, TransformerConv

from attree.attention.graph import EdgeType
from attree.errors import expect
from attree.faithfulness.exact.algebra import base
from attree.faithfulness.exact.algebra.base import LayerAlgebra, States
from attree.subject.part_check import NotRowwiseError
from attree.tensors.ragged import take_rows


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
        rows = max(base.PIECE_BYTES // (source.numel() * source.element_size()), 1)
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
