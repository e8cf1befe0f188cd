"""Small graphs with everything that breaks things: a hub, leaves, isolated nodes, self-loops, duplicate edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NODES = 11


def messy_graph(seed: int) -> Tensor:
    """Node 0 is a hub, node 9 a leaf that only receives, node 10 isolated; some edges come twice, some are loops."""
    generator = torch.Generator().manual_seed(seed)
    hub = torch.stack([torch.arange(1, 9), torch.zeros(8, dtype=torch.int64)])
    some = torch.randint(0, 9, (2, 14), generator=generator)
    leaf = torch.tensor([[int(some[0, 0])], [9]])
    loop = torch.tensor([[2, 4, 4], [2, 4, 4]])
    edges = torch.cat([hub, some, leaf, loop, some[:, :2]], dim=1)
    return edges[:, torch.randperm(edges.shape[1], generator=generator)]


def randomize(model: nn.Module, seed: int, scale: float = 0.8) -> nn.Module:
    """Parameters large enough for attention to be far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model
