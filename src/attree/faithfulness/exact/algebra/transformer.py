"""The graph transformer's convolution taken apart (Shi et al., IJCAI 2021)."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from attree.faithfulness.exact.algebra.base import LayerAlgebra, States


class TransformerAlgebra(LayerAlgebra):
    """Graph transformer: score = W_q h_j . (W_k h_i + W_e e_ij) / sqrt(C), value = W_v h_i + W_e e_ij, root = W_s h_j.

    The output is out + root, or beta root + (1 - beta) out with beta = sigmoid(w . [out, root, out - root]).
    """

    edge_in_value = True

    def project(self, h: Tensor) -> States:
        conv = self.conv
        value, key, query = (self.by_head(lin, h) for lin in (conv.lin_value, conv.lin_key, conv.lin_query))
        return States(value, key, query, self.linear(conv.lin_skip, h) if conv.root_weight else None)

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
