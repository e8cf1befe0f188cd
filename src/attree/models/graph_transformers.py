"""Graph transformers for configs: every node attends to every node of its graph, besides the layers along edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, GPSConv
from torch_geometric.nn.models import SGFormer as PyGSGFormer

from attree.defaults import MAX_LAYERS, MAX_SIZE
from attree.errors import expect, expect_int, expect_number


class GPS(nn.Module):
    """General, powerful, scalable graph transformer (Rampasek et al., NeurIPS 2022), with GINE along the edges.

    All edges are of one kind: GINE adds one learned vector to the features along each. There is no positional encoding.

    Args:
        in_channels: Width of the node features.
        out_channels: Number of classes.
        hidden_channels: Width of all layers; a multiple of `heads`.
        num_layers: Number of GPS layers.
        heads: Attention heads.
        dropout: Dropout in every layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 32,
        num_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check(in_channels, out_channels, hidden_channels, num_layers, heads, dropout)
        expect(hidden_channels % heads == 0, "hidden_channels", f"a multiple of `heads` = {heads}", hidden_channels)
        self.in_channels, self.out_channels, self.hidden_channels = in_channels, out_channels, hidden_channels
        self.num_layers, self.heads, self.dropout = num_layers, heads, dropout
        width = hidden_channels
        self.first, self.last = nn.Linear(in_channels, width), nn.Linear(width, out_channels)
        self.edge = nn.Parameter(torch.zeros(width))
        mlps = (nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(num_layers))
        self.convs = nn.ModuleList([GPSConv(width, GINEConv(mlp), heads=heads, dropout=dropout) for mlp in mlps])

    @property
    def conv(self) -> str:
        """Name of the layers, as dashboards and tables show it."""
        return "GPS"

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Logits of every node, [num_nodes, out_channels]; the arguments are those of `attree.models.GAT`."""
        x, edge_attr = self.first(x), self.edge.expand(edge_index.shape[1], -1)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        logits: Tensor = self.last(x)
        return logits


class SGFormer(nn.Module):
    """SGFormer (Wu et al., NeurIPS 2023): linear attention over all nodes beside a GCN, over PyG's model of this name.

    Args:
        in_channels: Width of the node features.
        out_channels: Number of classes.
        hidden_channels: Width of all layers.
        num_layers: Number of GCN layers.
        global_layers: Number of attention layers.
        heads: Attention heads.
        dropout: Dropout in every layer.
        graph_weight: Weight of the GCN's output; that of the attention is 1 minus it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        num_layers: int = 2,
        global_layers: int = 1,
        heads: int = 1,
        dropout: float = 0.5,
        graph_weight: float = 0.8,
    ) -> None:
        super().__init__()
        _check(in_channels, out_channels, hidden_channels, num_layers, heads, dropout)
        expect_int(global_layers, "global_layers", 1, MAX_LAYERS)
        expect_number(graph_weight, "graph_weight", at_least=0, at_most=1)
        self.in_channels, self.out_channels, self.hidden_channels = in_channels, out_channels, hidden_channels
        self.num_layers, self.global_layers, self.heads = num_layers, global_layers, heads
        self.dropout, self.graph_weight = dropout, graph_weight
        self.model = PyGSGFormer(
            in_channels,
            hidden_channels,
            out_channels,
            trans_num_layers=global_layers,
            trans_num_heads=heads,
            trans_dropout=dropout,
            gnn_num_layers=num_layers,
            gnn_dropout=dropout,
            graph_weight=graph_weight,
        )

    @property
    def conv(self) -> str:
        """Name of the layers, as dashboards and tables show it."""
        return "SGFormer"

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Logarithms of the class probabilities of every node; the arguments are those of `attree.models.GAT`."""
        batch = edge_index.new_zeros(x.shape[0]) if batch is None else batch
        log_probabilities: Tensor = self.model(x, edge_index, batch)
        return log_probabilities


def _check(
    in_channels: int, out_channels: int, hidden_channels: int, num_layers: int, heads: int, dropout: float
) -> None:
    expect_int(in_channels, "in_channels", 1, MAX_SIZE)
    expect_int(out_channels, "out_channels", 1, MAX_SIZE)
    expect_int(hidden_channels, "hidden_channels", 1, MAX_SIZE)
    expect_int(num_layers, "num_layers", 1, MAX_LAYERS)
    expect_int(heads, "heads", 1, MAX_SIZE)
    expect_number(dropout, "dropout", at_least=0, below=1)
