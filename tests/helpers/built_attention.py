"""A network whose attention, values and surroundings are chosen by hand, so that what explains it is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

NODES, KINDS = 120, 4


class Built(nn.Module):
    """One attention layer whose scores, values and surroundings are chosen by hand.

    Args:
        sharpness: How strongly attention prefers neighbours whose last feature is large; 0 is uniform attention.
        skip: Weight of the node's own features in the output.
        through: Weight of what comes through attention.
        scale: Factor of the logits.
    """

    def __init__(self, sharpness: float, skip: float = 0.0, through: float = 1.0, scale: float = 1.0) -> None:
        super().__init__()
        self.conv = GATConv(KINDS + 1, KINDS + 1, heads=1, bias=False)
        self.skip, self.through, self.scale = skip, through, scale
        with torch.no_grad():
            self.conv.lin.weight.copy_(torch.eye(KINDS + 1))
            self.conv.att_src.zero_()
            self.conv.att_dst.zero_()
            self.conv.att_src[0, 0, -1] = sharpness

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        received = self.conv(x, edge_index)[:, :KINDS]
        return self.scale * (self.through * received + self.skip * x[:, :KINDS])


def loud_graph() -> Data:
    """A random graph: each node has a kind, and a loudness that attention may look at."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.eye(KINDS)[torch.randint(KINDS, (NODES,), generator=generator)]
    loud = torch.rand(NODES, 1, generator=generator) * 3
    edges = torch.randint(NODES, (2, 6 * NODES), generator=generator)
    return Data(x=torch.cat([kinds, loud], dim=1), edge_index=edges[:, edges[0] != edges[1]].unique(dim=1))
