"""GAT's convolution taken apart (Velickovic et al., ICLR 2018)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from attree.faithfulness.exact.algebra.base import LayerAlgebra, States


class GATAlgebra(LayerAlgebra):
    """GAT: score = LeakyReLU(a_src . W h_i + a_dst . W h_j + a_edge . W_e e_ij); root = W_res h_j."""

    def project(self, h: Tensor) -> States:
        conv = self.conv
        value = self.by_head(conv.lin_src if conv.lin is None else conv.lin, h)
        at_target = value if conv.lin is not None else self.by_head(conv.lin_dst, h)
        source = (value * self.parameter("att_src")).sum(dim=-1)
        target = (at_target * self.parameter("att_dst")).sum(dim=-1)
        return States(value, source, target, None if conv.res is None else self.linear(conv.res, h))

    def project_edges(self, features: Tensor) -> Tensor | None:
        if self.conv.lin_edge is None:
            return None
        return (self.by_head(self.conv.lin_edge, features) * self.parameter("att_edge")).sum(dim=-1)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        total = source + target
        return F.leaky_relu(total if edge is None else total + edge, float(self.conv.negative_slope))
