"""A graph whose edges speak for and against a prediction, and what deleting each edge from the data does."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Data


def star(nodes: int = 40) -> Data:
    """A graph in which node 0 has many neighbours, so that not all edges are printed."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.arange(1, nodes)
    return Data(x=torch.randn(nodes, 4, generator=generator), edge_index=torch.stack([sources, 0 * sources]))


def deletion_effects(model: nn.Module, data: Data, target: int) -> dict[tuple[int, int], float]:
    """The drop of the predicted class's probability when each edge is deleted from the data."""
    with torch.no_grad():
        before = model(data.x, data.edge_index).double().softmax(-1)[target]
        effects = {}
        for edge, ends in enumerate(data.edge_index.T.tolist()):
            remaining = torch.arange(data.edge_index.shape[1]) != edge
            after = model(data.x, data.edge_index[:, remaining]).double().softmax(-1)[target]
            effects[ends[0], ends[1]] = float(before.max() - after[before.argmax()])
    return effects
