"""Graph transformers, small graphs for them, and their weights over all nodes from the definitions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, GINEConv, GPSConv, global_add_pool
from torch_geometric.utils import to_dense_batch

IN, WIDTH, EDGE, CLASSES = 4, 8, 3, 2


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


LOCAL = {
    "gine": lambda: GINEConv(mlp(), edge_dim=EDGE),
    "gat": lambda: GATConv(WIDTH, WIDTH, edge_dim=EDGE),
    "gcn": lambda: GCNConv(WIDTH, WIDTH),
    "none": lambda: None,
}


class GPS(nn.Module):
    """GPS layers, pooled into graphs or not."""

    def __init__(self, local: str, attention: str = "multihead", pooled: bool = True, num_layers: int = 2) -> None:
        super().__init__()
        self.local, self.pooled = local, pooled
        self.first = nn.Linear(IN, WIDTH)
        self.convs = nn.ModuleList(
            GPSConv(WIDTH, LOCAL[local](), heads=2, attn_type=attention, dropout=0.0) for _ in range(num_layers)
        )
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x)
        arguments = {"edge_attr": edge_attr} if self.local in ("gine", "gat") else {}
        for conv in self.convs:
            x = conv(x, edge_index, batch, **arguments)
        x = self.last(x)
        return global_add_pool(x, batch) if self.pooled else x


class Encoder(nn.Module):
    """A GAT layer, then two layers of a transformer encoder over the nodes of each graph."""

    def __init__(self, local: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.first = GATConv(IN, WIDTH, edge_dim=EDGE) if local else nn.Linear(IN, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.local, self.batch_first, self.last = local, batch_first, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x, edge_index, edge_attr) if self.local else self.first(x)
        dense, mask = to_dense_batch(x, batch)
        dense = dense if self.batch_first else dense.transpose(0, 1)
        dense = self.encoder(dense, src_key_padding_mask=~mask)
        dense = dense if self.batch_first else dense.transpose(0, 1)
        return global_add_pool(self.last(dense[mask]), batch)


def molecule(num_nodes: int, seed: int = 0) -> Data:
    """A random tree with one more edge, in both directions."""
    generator = torch.Generator().manual_seed(seed)
    parents = [int(torch.randint(node, (1,), generator=generator)) for node in range(1, num_nodes)]
    ends = torch.tensor([*((node + 1, parent) for node, parent in enumerate(parents)), (0, num_nodes - 1)]).t()
    edge_index = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
    x = torch.randn(num_nodes, IN, generator=generator, dtype=torch.float64)
    edge_attr = torch.randn(edge_index.shape[1], EDGE, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=torch.tensor([seed % CLASSES]))


def molecules(*sizes: int) -> Batch:
    return Batch.from_data_list([molecule(size, seed) for seed, size in enumerate(sizes)])


def seeded(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with weights of a seed, such that no prediction is certain."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / max(weight.shape[-1], 1) ** 0.5)
    if hasattr(model, "last"):
        model.last.weight.data *= 0.1
    return model.double().eval()


def inputs_of(model: nn.Module, run: Any, kind: type[nn.Module]) -> list[Tensor]:
    """The first argument of every call of the modules of a class, in order."""
    inputs: list[Tensor] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone()))
        for module in model.modules()
        if isinstance(module, kind)
    ]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return inputs


def multihead_weights(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)), the mean over heads, of the nodes of one graph, [n, n]."""
    width = module.embed_dim // module.num_heads
    queries, keys, _ = (x @ module.in_proj_weight.T + module.in_proj_bias).split(module.embed_dim, dim=-1)
    heads = [slice(head * width, (head + 1) * width) for head in range(module.num_heads)]
    return torch.stack([(queries[:, h] @ keys[:, h].T / math.sqrt(width)).softmax(-1) for h in heads]).mean(0)
