"""Models as people write them, by what the exact engine does with them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    GAT,
    GATConv,
    GATv2Conv,
    GPSConv,
    GraphNorm,
    JumpingKnowledge,
    LayerNorm,
    PairNorm,
    SuperGATConv,
    TransformerConv,
    global_add_pool,
)
from torch_geometric.utils import add_self_loops, degree

IN, OUT = 4, 3


class Mixed(nn.Module):
    """Mixed layers with edge features, skips and a linear head; the first adds no self-loops."""

    def __init__(self) -> None:
        super().__init__()
        self.first = TransformerConv(IN, 6, heads=2, edge_dim=3, beta=True)
        self.second = GATv2Conv(12, 5, heads=2, edge_dim=3, fill_value="mean")
        self.third = GATConv(10, 6, add_self_loops=False)
        self.norm = nn.BatchNorm1d(10)
        self.head = nn.Linear(6, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, scale: Tensor, shift: float = 0.0) -> Tensor:
        x = F.elu(self.first(x, edge_index, edge_attr))
        x = F.elu(self.norm(self.second(x, edge_index, edge_attr))) * scale + shift
        return self.head(self.third(x, edge_index)).log_softmax(-1)


class OwnLoops(nn.Module):
    """Adds a second self-loop to some nodes, outside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(IN, OUT, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, add_self_loops(edge_index, num_nodes=x.shape[0])[0])


class Twice(nn.Module):
    """One convolution called twice, in place activations, an encoder, and a jump over all."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.conv, self.head = nn.Linear(IN, 6), GATConv(6, 3, heads=2), nn.Linear(12, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.encode(x), inplace=True)
        start = x
        for _ in range(2):
            x = self.conv(x, edge_index).relu_()
        return self.head(torch.cat([x, start], dim=-1))


class Parallel(nn.Module):
    """Two convolutions on the same input, then one on what both say."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = GATConv(IN, 5), SuperGATConv(IN, 5), GATv2Conv(5, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(F.elu(self.left(x, edge_index) + self.right(x, edge_index)), edge_index)


class Stacks(nn.Module):
    """Two stacks side by side, of different depth, weighted and added."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.share = GAT(IN, 5, 2, OUT), GATv2Conv(IN, OUT), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.share * self.left(x, edge_index) + (1 - self.share) * self.right(x, edge_index)


class TwoHeads(nn.Module):
    """One encoder and two heads that both reach the output, as those of a variational autoencoder do."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.scale = GATConv(IN, 6), GATConv(6, OUT), TransformerConv(6, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.encode(x, edge_index))
        return self.mean(x, edge_index) + 0.5 * torch.exp(self.scale(x, edge_index).clamp(max=2))


class Auxiliary(nn.Module):
    """A second head that nobody reads, on a convolution of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.main, self.other = GATConv(IN, 5), GATConv(5, OUT), GATConv(5, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.conv(x, edge_index))
        out = self.main(x, edge_index)
        self.other(x, edge_index)
        return out


class Table(nn.Module):
    """Node embeddings of its own, looked up by node id."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(num_nodes, 6), GAT(6, 6, 2, OUT)

    def forward(self, ids: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.table(ids), edge_index)


class Jumping(nn.Module):
    """Jumping knowledge with an LSTM over the layers of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATConv(IN, 6), GATConv(6, 6)])
        self.jump, self.head = JumpingKnowledge("lstm", 6, 2), nn.Linear(6, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        seen = []
        for conv in self.convs:
            x = conv(x, edge_index).tanh()
            seen.append(x)
        return self.head(self.jump(seen))


class Bent(nn.Module):
    """A GAT with something between its layers that looks at more than one node."""

    def __init__(self, bend: nn.Module) -> None:
        super().__init__()
        self.first, self.bend, self.last = GATConv(IN, 6), bend, GATConv(6, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.bend(self.first(x, edge_index)), edge_index)


class AddPool(nn.Module):
    """Every node sees the sum of all, times a number that is 0 at first."""

    def __init__(self, gate: float = 1.0) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * global_add_pool(x, None)


class Noise(nn.Module):
    """Randomness that eval mode does not stop."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Degrees(nn.Module):
    """Scales nodes by their degree: reads edges outside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(IN, 6), GATConv(6, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index)
        return self.last(x / (1 + degree(edge_index[1], x.shape[0]).unsqueeze(-1)), edge_index)


class MovingEdges(nn.Module):
    """Edge features made of the nodes' states."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(IN, 6), GATConv(6, OUT, edge_dim=6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index)
        return self.last(x, edge_index, x[edge_index[0]] - x[edge_index[1]])


class Asked(nn.Module):
    """Asks its layer for the attention too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index, return_attention_weights=True)[0]


class Doubled(GATConv):
    """A subclass that computes something else."""

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return 2 * super().message(x_j, alpha)


class OneLayer(nn.Module):
    """Any one convolution."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class GPS(nn.Module):
    """Local attention beside global attention over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GPSConv(IN, GATConv(IN, IN), heads=2), nn.Linear(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index))


def served(num_nodes: int) -> dict[str, tuple[nn.Module, tuple[str, ...]]]:
    """Models that run on rows, with the further arguments that they take."""
    pyg: dict[str, Any] = {
        "PyG GAT": {},
        "PyG GATv2": {"v2": True},
        "PyG GAT heads": {"heads": 2},
        "PyG GAT batch norm": {"norm": "batch"},
        "PyG GAT node norm": {"norm": LayerNorm(6, mode="node")},
        "PyG GAT jk cat": {"jk": "cat", "heads": 3},
        "PyG GAT jk max residual": {"jk": "max", "residual": True, "norm": "batch"},
        "PyG GAT no loops": {"add_self_loops": False},
        "PyG GAT edge_dim": {"edge_dim": 3, "v2": True},
    }
    models: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
        name: (GAT(IN, 6, 2, OUT, **options), ("edge_attr",) if "edge_dim" in options else ())
        for name, options in pyg.items()
    }
    models["mixed"] = Mixed(), ("edge_attr", "scale")
    models["own loops"] = OwnLoops(), ()
    models["called twice"] = Twice(), ()
    models["parallel"] = Parallel(), ()
    models["two stacks"] = Stacks(), ()
    models["two heads"] = TwoHeads(), ()
    models["auxiliary head"] = Auxiliary(), ()
    models["table"] = Table(num_nodes), ("ids",)
    models["jk lstm"] = Jumping(), ()
    return models


def refused() -> dict[str, tuple[nn.Module, str]]:
    """Models that do not, with why."""
    return {
        "graph-wide layer norm": (GAT(IN, 6, 2, OUT, norm="layer"), "node by node"),
        "graph norm": (Bent(GraphNorm(6)), "node by node"),
        "pair norm": (Bent(PairNorm()), "node by node"),
        "pooling": (Bent(AddPool()), "node by node"),
        "noise": (Bent(Noise()), "node by node"),
        "degrees": (Degrees(), "mixes nodes and edges"),
        "edge features of nodes": (MovingEdges(), "outputs of layers at their ends"),
        "subclass": (OneLayer(Doubled(IN, OUT)), "layer Doubled is not known"),
        "other aggregation": (OneLayer(GATConv(IN, OUT, aggr="max")), "computes something else"),
        "GPS": (GPS(), "node by node"),
    }
