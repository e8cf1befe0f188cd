"""The arithmetic of each attention convolution, taken apart so that single rows can be updated.

A layer computes, for node j with entering edges (i -> j) and every head,

    out_j = sum_i softmax_i(score(source_i, target_j)) * value_i,

where source, target and value are projections of one node each. Which projections, and which score, is all that
differs between GAT, GATv2 and SuperGAT; parameters are read from PyG's convolutions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing, SuperGATConv

PIECE_BYTES = 2 * 2**20
"""Bytes of the terms that scores of all sources with some targets sum: what stays in cache is many times faster."""


class States(NamedTuple):
    """What a layer needs of each node, [n, ...]: its value, and its part in scores as source and as target."""

    value: Tensor
    source: Tensor
    target: Tensor

    def at(self, index: Tensor) -> States:
        """The states of some nodes."""
        value = self.value[index]
        source = value if self.source is self.value else self.source[index]
        target = value if self.target is self.value else self.target[index]
        return States(value, source, target)


class LayerAlgebra(ABC):
    """One convolution's arithmetic in a chosen floating-point type."""

    def __init__(self, conv: MessagePassing, dtype: torch.dtype) -> None:
        self.conv = conv
        self.dtype = dtype
        self.heads, self.channels = int(conv.heads), int(conv.out_channels)
        self.slope = float(conv.negative_slope)
        self.bias = None if conv.bias is None else conv.bias.detach().to(dtype)

    @abstractmethod
    def project(self, h: Tensor) -> States:
        """States of nodes from their features [n, in], dense or sparse; computed in their type, kept in `dtype`."""

    @abstractmethod
    def score(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores before softmax of edges, [m, heads], from `States.source` and `States.target` of their ends."""

    def score_all(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of all sources [d, ...] with all targets [r, ...], as [r, heads, d]."""
        return self.score(source.unsqueeze(0), target.unsqueeze(1)).transpose(1, 2)

    def finish(self, aggregated: Tensor) -> Tensor:
        """The layer's output [n, out] from the weighted sums [n, heads, channels]."""
        out = aggregated.flatten(1) if self.conv.concat else aggregated.mean(dim=1)
        return out if self.bias is None else out + self.bias

    def _linear(self, lin: nn.Linear, h: Tensor) -> Tensor:
        weight = lin.weight.detach().to(h.dtype)
        bias = None if lin.bias is None else lin.bias.detach().to(h.dtype)
        if h.layout == torch.strided:
            out = F.linear(h, weight, bias)
        else:
            out = torch.sparse.mm(h, weight.t())
            out = out if bias is None else out + bias
        return out.to(self.dtype).view(-1, self.heads, self.channels)

    def _parameter(self, name: str) -> Tensor:
        return getattr(self.conv, name).detach().to(self.dtype)


class GATAlgebra(LayerAlgebra):
    """GAT: score = LeakyReLU(a_src . W h_i + a_dst . W h_j)."""

    def project(self, h: Tensor) -> States:
        value = self._linear(self.conv.lin, h)
        source = (value * self._parameter("att_src")).sum(dim=-1)
        target = (value * self._parameter("att_dst")).sum(dim=-1)
        return States(value, source, target)

    def score(self, source: Tensor, target: Tensor) -> Tensor:
        return F.leaky_relu(source + target, self.slope)


class GATv2Algebra(LayerAlgebra):
    """GATv2: score = a . LeakyReLU(W_l h_i + W_r h_j)."""

    def project(self, h: Tensor) -> States:
        value = self._linear(self.conv.lin_l, h)
        target = value if self.conv.share_weights else self._linear(self.conv.lin_r, h)
        return States(value, value, target)

    def score(self, source: Tensor, target: Tensor) -> Tensor:
        return (F.leaky_relu(source + target, self.slope) * self._parameter("att")).sum(dim=-1)

    def score_all(self, source: Tensor, target: Tensor) -> Tensor:
        # Some targets at a time: a score sums one term a channel, so all terms at once take many times the result.
        rows = max(PIECE_BYTES // (source.numel() * source.element_size()), 1)
        score = torch.cat([self.score(source, part.unsqueeze(1)) for part in target.split(rows)])
        return score.transpose(1, 2)


class SuperGATAlgebra(LayerAlgebra):
    """SuperGAT: score = LeakyReLU(dot / sqrt(C)) for SD, LeakyReLU((a_l . W h_i + a_r . W h_j) sigmoid(dot)) for MX."""

    def project(self, h: Tensor) -> States:
        value = self._linear(self.conv.lin, h)
        return States(value, value, value)

    def score(self, source: Tensor, target: Tensor) -> Tensor:
        dot = (source * target).sum(dim=-1)
        if self.conv.attention_type == "SD":
            return self._scaled(dot)
        return self._mixed(dot, self._share(source, "att_l"), self._share(target, "att_r"))

    def score_all(self, source: Tensor, target: Tensor) -> Tensor:
        dot = torch.einsum("rhc,dhc->rhd", target, source)
        if self.conv.attention_type == "SD":
            return self._scaled(dot)
        return self._mixed(dot, self._share(source, "att_l").t(), self._share(target, "att_r").unsqueeze(-1))

    def _scaled(self, dot: Tensor) -> Tensor:
        return F.leaky_relu(dot / sqrt(self.channels), self.slope)

    def _mixed(self, dot: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return F.leaky_relu((left + right) * dot.sigmoid(), self.slope)

    def _share(self, states: Tensor, name: str) -> Tensor:
        """One end's share of GAT's score, [n, heads]."""
        return (states * self._parameter(name)).sum(dim=-1)


ALGEBRAS: dict[type[MessagePassing], type[LayerAlgebra]] = {
    GATConv: GATAlgebra,
    GATv2Conv: GATv2Algebra,
    SuperGATConv: SuperGATAlgebra,
}
"""The algebra of each convolution that can be taken apart."""
