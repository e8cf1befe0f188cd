"""Models that see beyond the reach of their attention layers are noticed, all others are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GATConv, GPSConv, GraphNorm, LayerNorm, TransformerConv, global_mean_pool

import attree.models
from attree.attention import Graph, Locality
from attree.attention import measure_locality as measure
from helpers.attention_models import Stack, snapshot

RING = torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40])
FEATURES = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


def measure_locality(model: nn.Module, x: Tensor, edge_index: Tensor, *args: Tensor, **options: Any) -> Locality:
    """The locality of a call."""
    graph = Graph(edge_index, x.shape[0])
    return measure(model, lambda features: model(features, edge_index, *args), x, graph=graph, **options)


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.norm = GATConv(4, 4), GATConv(4, 3), norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


LOCAL = {
    "gat": GAT(4, 6, 2, 3),
    "batch norm": GAT(4, 6, 2, 3, norm="batch", jk="cat"),
    "attree": attree.models.GATv2(4, 3, heads=2),
    "residual": Stack(GATConv(4, 4, residual=True), TransformerConv(4, 3, beta=True)),
    "norm of each node": Normed(LayerNorm(4, mode="node")),
}
WIDE = {
    "layer norm": GAT(4, 6, 2, 3, norm="layer_norm"),
    "graph norm": GAT(4, 6, 2, 3, norm="graph_norm"),
    "pair norm": GAT(4, 6, 2, 3, norm="pair_norm"),
    "global attention": Stack(GPSConv(4, GATConv(4, 4), heads=2), GPSConv(4, GATConv(4, 4), heads=2)),
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_models(name: str) -> None:
    model = LOCAL[name].train()
    before = snapshot(model)
    locality = measure_locality(model, FEATURES, RING, num_layers=2)
    assert snapshot(model) == before
    assert locality.local
    assert "depend only on nodes that the attention layers reach" in str(locality)


@pytest.mark.parametrize("name", WIDE)
def test_models_that_see_the_whole_graph(name: str) -> None:
    locality = measure_locality(WIDE[name], FEATURES, RING, num_layers=2)
    assert not locality.local
    assert "paths that bypass attention" in str(locality)


def test_constant_features_and_tables_of_nodes() -> None:
    ones = torch.ones(40, 4)
    assert measure_locality(Normed(nn.Identity()), ones, RING, num_layers=2).local
    assert not measure_locality(Normed(GraphNorm(4)), ones, RING, num_layers=2).local

    class Table(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.table, self.net = nn.Embedding(40, 4), Normed(norm)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.net(self.table(x), edge_index)

    assert measure_locality(Table(nn.Identity()), torch.arange(40), RING, num_layers=2).local
    assert not measure_locality(Table(LayerNorm(4)), torch.arange(40), RING, num_layers=2).local


class Pooled(nn.Module):
    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.mixes = GATConv(4, 4), GraphNorm(4), mixes

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        return global_mean_pool(self.norm(h, None if self.mixes else batch).relu(), batch)


@pytest.mark.parametrize("mixes", [True, False])
def test_graphs_must_not_see_other_graphs(mixes: bool) -> None:
    batch = torch.arange(40) // 10
    edge_index = RING[:, batch[RING[0]] == batch[RING[1]]]
    model = Pooled(mixes)
    assert measure_locality(model, FEATURES, edge_index, batch, num_layers=1, graph_of=batch).local is not mixes
    with pytest.raises(ValueError, match="`graph_of` to be the graph of each node if the model returns one row"):
        measure_locality(model, FEATURES, edge_index, batch, num_layers=1)


def test_where_nothing_is_out_of_reach_nothing_is_seen() -> None:
    nodes = torch.arange(5)
    complete = torch.cartesian_prod(nodes, nodes).T
    model = Normed(GraphNorm(4))
    assert measure_locality(model, FEATURES[:5], complete, num_layers=2) == Locality(
        0.0, pytest.approx(3.45e-4, rel=0.01)
    )
    one_graph = torch.zeros(40, dtype=torch.int64)
    assert measure_locality(Pooled(True), FEATURES, RING, one_graph, num_layers=1, graph_of=one_graph).change == 0.0
    assert measure_locality(model, FEATURES[:0], complete[:, :0], num_layers=2).local
