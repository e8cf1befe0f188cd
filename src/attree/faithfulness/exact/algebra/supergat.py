"""SuperGAT's convolution taken apart (Kim and Oh, ICLR 2021)."""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.faithfulness.exact.algebra.base import LayerAlgebra, States


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
        """One end's share of GAT's score, [n, heads]."""
        return (states * self.parameter(name)).sum(dim=-1)
