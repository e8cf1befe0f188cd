"""GATv2's convolution taken apart (Brody et al., ICLR 2022)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.faithfulness.exact.algebra import base
from attree.faithfulness.exact.algebra.base import LayerAlgebra, States


class GATv2Algebra(LayerAlgebra):
    """GATv2: score = a . LeakyReLU(W_l h_i + W_r h_j + W_e e_ij); root = W_res h_j."""

    def project(self, h: Tensor) -> States:
        conv = self.conv
        value = self.by_head(conv.lin_l, h)
        target = value if conv.share_weights else self.by_head(conv.lin_r, h)
        return States(value, value, target, None if conv.res is None else self.linear(conv.res, h))

    def project_edges(self, features: Tensor) -> Tensor | None:
        return None if self.conv.lin_edge is None else self.by_head(self.conv.lin_edge, features)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        total = source + target
        total = F.leaky_relu(total if edge is None else total + edge, float(self.conv.negative_slope))
        return (total * self.parameter("att")).sum(dim=-1)

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        # Some targets at a time: a score sums one term a channel, so all terms at once take many times the result.
        source = source if edge is None else source + edge
        rows = max(base.PIECE_BYTES // (source.numel() * source.element_size()), 1)
        score = torch.cat([self.score(source, part.unsqueeze(1)) for part in target.split(rows)])
        return score.transpose(1, 2)
