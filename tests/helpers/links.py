"""Small data whose links are predicted."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from attree.data import Counts, LinkDataModule


class Blocks(LinkDataModule):
    """Two groups of nodes, dense within and with nothing between, whose features tell the group."""

    name = "Blocks"
    counts = Counts(60, None, 2, 1)

    def load(self) -> Data:
        generator = torch.Generator().manual_seed(0)
        group = torch.arange(60) % 2
        joined = (group[:, None] == group) & (torch.rand(60, 60, generator=generator) < 0.3)
        joined = joined.triu(1) | joined.triu(1).T
        x = torch.stack([group, 1 - group], dim=1).float()
        return Data(x=x, edge_index=joined.nonzero().T.contiguous(), y=torch.zeros(60, dtype=torch.long))
