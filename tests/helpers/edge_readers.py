"""Models that read edges outside their attention layers, or nodes beyond the reach of these layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    DenseGCNConv,
    GATConv,
    GATv2Conv,
    GPSConv,
    GraphNorm,
    MetaLayer,
    TransformerConv,
    dense_diff_pool,
    dense_mincut_pool,
)
from torch_geometric.utils import degree, scatter, to_dense_adj

IN, HIDDEN, OUT = 4, 6, 3


class Between(nn.Module):
    """Two attention layers with a step between them, or before, or after them."""

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], where: str = "between") -> None:
        super().__init__()
        self.first, self.last, self.head = GATConv(IN, HIDDEN), GATConv(HIDDEN, HIDDEN), nn.Linear(HIDDEN, OUT)
        self.step, self.where = step, where

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.step(x, edge_index) if self.where == "before" else x
        x = self.first(x, edge_index).tanh()
        x = self.step(x, edge_index) if self.where == "between" else x
        x = self.last(x, edge_index)
        x = self.step(x, edge_index) if self.where == "after" else x
        return self.head(x)


def log_degree(x: Tensor, edge_index: Tensor) -> Tensor:
    return x * torch.log(degree(edge_index[1], x.shape[0]) + 1).unsqueeze(-1)


def mean_of_neighbours(x: Tensor, edge_index: Tensor) -> Tensor:
    """A hand-written SAGE step without weights."""
    return x + scatter(x[edge_index[0]], edge_index[1], dim=0, dim_size=x.shape[0], reduce="mean")


def gcn(x: Tensor, edge_index: Tensor) -> Tensor:
    """A hand-written GCN step without weights."""
    source, destination = edge_index
    norm = (degree(destination, x.shape[0], x.dtype) + 1).rsqrt()
    return x * norm.unsqueeze(1) ** 2 + torch.zeros_like(x).index_add(
        0, destination, x[source] * (norm[source] * norm[destination]).unsqueeze(1)
    )


def walk_encoding(x: Tensor, edge_index: Tensor) -> Tensor:
    """Return probabilities of random walks of two and three steps, added to the features."""
    adjacency = to_dense_adj(edge_index, max_num_nodes=x.shape[0])[0].to(x.dtype)
    walk = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
    two = walk @ walk
    return x + two.diagonal().unsqueeze(1) + 2 * (two @ walk).diagonal().unsqueeze(1)


def popularity(x: Tensor, edge_index: Tensor) -> Tensor:
    return x + edge_index[0].bincount(minlength=x.shape[0]).unsqueeze(1).float() / 4


def masked_attention(x: Tensor, edge_index: Tensor) -> Tensor:
    """Dense attention that an adjacency matrix masks."""
    seen = to_dense_adj(edge_index, max_num_nodes=x.shape[0])[0].bool() | torch.eye(x.shape[0], dtype=torch.bool)
    return (x @ x.t()).masked_fill(~seen.t(), -torch.inf).softmax(dim=1) @ x + x


class DegreeFeature(nn.Module):
    """Feeds the degree as one more feature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATv2Conv(IN + 1, HIDDEN, heads=2, concat=False), GATv2Conv(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        degrees = degree(edge_index[1], x.shape[0]).unsqueeze(1)
        return self.last(self.first(torch.cat([x, degrees / 3], dim=1), edge_index).relu(), edge_index)


class WithEdges(nn.Module):
    """Edge features, with self-loops that get the mean of those that enter a node (PyG's default)."""

    def __init__(self, kind: type[nn.Module] = GATConv, **options: object) -> None:
        super().__init__()
        self.first, self.last = kind(IN, HIDDEN, edge_dim=2, **options), kind(HIDDEN, OUT, edge_dim=2, **options)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


class Aggregated(nn.Module):
    def __init__(self, aggr: str) -> None:
        super().__init__()
        self.first, self.last = GATConv(IN, HIDDEN, aggr=aggr), TransformerConv(HIDDEN, OUT, aggr=aggr)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).tanh(), edge_index)


class Meta(nn.Module):
    """A MetaLayer that updates nodes by the mean of their edges, after an attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GATConv(IN, HIDDEN), nn.Linear(HIDDEN, OUT)
        self.meta = MetaLayer(node_model=NodeModel())

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.head(self.meta(self.conv(x, edge_index), edge_index, edge_attr)[0])


class NodeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(HIDDEN + 2, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: object, batch: object) -> Tensor:
        sent = torch.cat([x[edge_index[0]], edge_attr], dim=1)
        return x + self.lin(scatter(sent, edge_index[1], dim=0, dim_size=x.shape[0], reduce="mean")).tanh()


class Pooled(nn.Module):
    """Clusters nodes with DiffPool or MinCut, which read the adjacency matrix; one graph."""

    def __init__(self, pool: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.conv, self.assign, self.head = GATConv(IN, HIDDEN), nn.Linear(IN, 3), nn.Linear(HIDDEN, OUT)
        self.dense, self.pool = DenseGCNConv(HIDDEN, HIDDEN), pool

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adjacency = to_dense_adj(edge_index, max_num_nodes=x.shape[0])
        pooled, coarse, *_ = self.pool(self.conv(x, edge_index)[None], adjacency, self.assign(x)[None])
        return self.head(self.dense(pooled, coarse).relu().mean(dim=1))


class GPS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GPSConv(IN, GATConv(IN, IN), heads=2, norm=None) for _ in range(2)])
        self.head = nn.Linear(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).tanh()
        return self.head(x)


class Buffers(nn.Module):
    """Makes float32 tensors inside its forward, and casts to float32, unless another type is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(IN, HIDDEN), GATConv(HIDDEN, OUT)
        self.dtype = torch.float32

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = torch.zeros(x.shape[0], HIDDEN)
        out[:] = self.first(x.to(self.dtype), edge_index)
        counts = torch.zeros(x.shape[0], 1).index_add_(0, edge_index[1], torch.ones(edge_index.shape[1], 1))
        return self.last((out / (counts + 1)).type(self.dtype), edge_index)


def minus_first(x: Tensor, edge_index: Tensor) -> Tensor:
    return x - x[0]


MODELS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "log degree between layers": (lambda: Between(log_degree), False),
    "log degree after layers": (lambda: Between(log_degree, "after"), False),
    "log degree before layers": (lambda: Between(log_degree, "before"), False),
    "degree feature": (DegreeFeature, False),
    "mean of neighbours between layers": (lambda: Between(mean_of_neighbours), False),
    "mean of neighbours before layers": (lambda: Between(mean_of_neighbours, "before"), False),
    "GCN step between layers": (lambda: Between(gcn), False),
    "GCN step after layers": (lambda: Between(gcn, "after"), False),
    "GCN step before layers": (lambda: Between(gcn, "before"), False),
    "positional encoding": (lambda: Between(walk_encoding, "before"), False),
    "popularity": (lambda: Between(popularity, "before"), False),
    "masked attention": (lambda: Between(masked_attention), False),
    "edge features": (WithEdges, True),
    "edge features, GATv2": (lambda: WithEdges(GATv2Conv), True),
    "edge features, filled with the largest": (lambda: WithEdges(GATv2Conv, fill_value="max"), True),
    "edge features, filled with 0": (lambda: WithEdges(GATConv, fill_value=0.0), True),
    "mean": (lambda: Aggregated("mean"), False),
    "median": (lambda: Aggregated("median"), False),
    "std": (lambda: Aggregated("std"), False),
    "max": (lambda: Aggregated("max"), False),
    "MetaLayer": (Meta, True),
    "DiffPool": (lambda: Pooled(dense_diff_pool), False),
    "MinCut": (lambda: Pooled(dense_mincut_pool), False),
    "minus the first node": (lambda: Between(minus_first), False),
    "graph norm": (lambda: Between(lambda x, edge_index: F.elu(GraphNorm(HIDDEN).to(x.dtype)(x))), False),
    "GPS": (GPS, False),
    "float32 inside": (Buffers, False),
}
"""Models by name: how to make them, and whether they take edge features."""
