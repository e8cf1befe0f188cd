"""Nets of every kind whose edges have effects, and the effects by one pass of the whole model for each edge."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import GATConv, TransformerConv, global_mean_pool

from attree.attention import Graph
from attree.models import GAT, GATv2, SuperGAT
from helpers.attention_models import OwnConv
from helpers.graphs import NODES, messy_graph, randomize
from helpers.one_pass_each import reduced_outputs

X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
EDGES = messy_graph(0)
ATTRIBUTES = torch.randn(EDGES.shape[1], 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PAIRS = torch.tensor([[0, 3, 9, 2, 4], [1, 3, 0, 10, 5]])


class Wide(nn.Module):
    """A user's net: attention without added self-loops, edge attributes, a residual, an MLP head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv(5, 4, heads=3, edge_dim=2, add_self_loops=False)
        self.second = TransformerConv(12, 4, heads=2, edge_dim=2)
        self.head = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index, edge_attr))
        return self.head(self.second(x, edge_index, edge_attr) + x[:, :8])


class Normed(nn.Module):
    """Normalises over all nodes, so that no neighbourhood gives the outputs of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(5, 4), GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        return self.second((x - x.mean(dim=0)) / (x.std(dim=0) + 1e-5), edge_index)


class Own(nn.Module):
    """Convolutions of a user's own, which call PyG's softmax in `message`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last, self.head = OwnConv(), OwnConv(), nn.Linear(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.last(torch.tanh(self.conv(x, edge_index)), edge_index))


class Links(nn.Module):
    """Predicts for pairs of nodes whether they are linked."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GATv2(5, 4, 4, heads=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.net(x, edge_index)
        return (h[edge_label_index[0]] * h[edge_label_index[1]]).sum(dim=-1)


class Pooled(nn.Module):
    """Predicts for whole graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = GAT(5, 4, 4, heads=2), nn.Linear(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(F.elu(self.net(x, edge_index)), batch))


NETS: dict[str, tuple[nn.Module, dict[str, Tensor]]] = {
    "gat": (GAT(5, 3, 4, num_layers=2), {}),
    "gat, 3 layers, heads": (GAT(5, 3, 4, num_layers=3, heads=3), {}),
    "gatv2, heads averaged": (GATv2(5, 3, 4, heads=2, concat=False), {}),
    "supergat": (SuperGAT(5, 3, 4, heads=2), {}),
    "pyg, jumping knowledge": (PyGGAT(5, 4, 3, out_channels=3, jk="cat", heads=2), {}),
    "one logit": (GAT(5, 1, 4), {}),
    "user's": (Wide(), {"edge_attr": ATTRIBUTES}),
    "user's convolution": (Own(), {}),
    "not local": (Normed(), {}),
    "links": (Links(), {"edge_label_index": PAIRS}),
    "graph": (Pooled(), {"batch": torch.zeros(NODES, dtype=torch.int64)}),
}
"""Nets by name, with further arguments of their forward."""


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A net with random parameters in float64, and its further arguments."""
    net, kwargs = NETS[name]
    return randomize(net, 1).double().eval(), kwargs


def probability(logits: Tensor, usual: Tensor) -> Tensor:
    """The probability of the class that the usual logits predict, for each row."""
    if logits.dim() == 1 or logits.shape[1] == 1:
        logits, usual = (torch.stack([-values.view(-1) / 2, values.view(-1) / 2], dim=1) for values in (logits, usual))
    return logits.softmax(dim=1).gather(1, usual.argmax(dim=1, keepdim=True)).squeeze(1)


def probabilities(model: nn.Module, protocol: str, amount: float, **kwargs: Any) -> Tensor:
    """Each row's probability of its predicted class with each edge of the looped graph reduced, [edges, rows]."""
    usual = model(X, EDGES, **kwargs).detach()
    edges = Graph(EDGES, NODES).edge_index
    outputs = reduced_outputs(model, edges, protocol, X, EDGES, amount=amount, **kwargs)
    return torch.stack([probability(output, usual) for output in outputs])
