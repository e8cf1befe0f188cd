"""Random attention networks on random graphs, drawn from all that the exact engine says it serves."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    JumpingKnowledge,
    LayerNorm,
    SuperGATConv,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

CHANNELS, EDGE_CHANNELS, CLASSES = 3, 2, 3
KINDS = ("gat", "gatv2", "supergat", "transformer")
READOUTS = {"add": global_add_pool, "max": global_max_pool, "mean": global_mean_pool}


def random_conv(draw: Random, kind: str, width: int, edges: bool) -> nn.Module:
    """One convolution with random options, all of whose outputs are `width` wide."""
    heads = draw.choice([1, 2, 3])
    concat = draw.random() < 0.5
    out = width // heads if concat else width
    options: dict[str, Any] = {"heads": heads, "concat": concat, "bias": draw.random() < 0.8}
    if kind != "transformer":
        options["add_self_loops"] = draw.random() < 0.6
    if kind in ("gat", "gatv2"):
        options["residual"] = draw.random() < 0.3
        options["fill_value"] = draw.choice(["mean", "max", "add", 0.5])
        options["negative_slope"] = draw.choice([0.2, 0.05])
    if kind != "supergat":
        options["edge_dim"] = EDGE_CHANNELS if edges else None
    if kind == "gat":
        return GATConv(width, out, **options)
    if kind == "gatv2":
        return GATv2Conv(width, out, share_weights=draw.random() < 0.4, **options)
    if kind == "supergat":
        return SuperGATConv(width, out, attention_type=draw.choice(["MX", "SD"]), **options)
    return TransformerConv(width, out, beta=draw.random() < 0.4, root_weight=draw.random() < 0.7, **options)


class RandomNet(nn.Module):
    """Layers of one or two convolutions with norms, skips, jumping knowledge, and a head of nodes or graphs."""

    def __init__(self, draw: Random, graphs: bool) -> None:
        super().__init__()
        width = 6
        self.kind = draw.choice([*KINDS, "mixed"])
        self.depth = draw.choice([1, 2, 2, 3, 3, 4])
        self.shared = self.depth > 1 and draw.random() < 0.25
        self.parallel = not self.shared and self.depth < 3 and draw.random() < 0.25
        self.skip = draw.choice(["none", "none", "add", "input", "highway"])
        self.edges = draw.random() < 0.4
        self.act = draw.choice([F.elu, F.relu, F.leaky_relu, torch.tanh])
        self.norm_first = draw.random() < 0.5
        self.encoder = (
            nn.Linear(CHANNELS, width)
            if draw.random() < 0.7
            else nn.Sequential(nn.Linear(CHANNELS, 8), nn.ReLU(), nn.Linear(8, width))
        )
        kinds = [draw.choice(KINDS) if self.kind == "mixed" else self.kind for _ in range(2 * self.depth)]
        # Only some layers of a net look at edge features.
        looks = [self.edges and kind != "supergat" and draw.random() < 0.8 for kind in kinds]
        self.looks = looks[: self.depth] if not self.shared else [looks[0]] * self.depth
        self.looks_too = looks[self.depth :]
        convs = [random_conv(draw, kinds[i], width, looks[i]) for i in range(self.depth)]
        self.convs = nn.ModuleList(convs[:1] * self.depth if self.shared else convs)
        self.branches = nn.ModuleList(
            [random_conv(draw, kinds[i], width, looks[i]) for i in range(self.depth, 2 * self.depth)]
            if self.parallel
            else []
        )
        norm = draw.choice(["none", "batch", "layer"])
        make = {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": lambda n: LayerNorm(n, mode="node")}[norm]
        self.norms = nn.ModuleList([make(width) for _ in range(self.depth)])
        self.mix = nn.Linear(2 * width, width)
        jk = draw.choice(["none", "none", "cat", "max"])
        self.jk = None if jk == "none" else JumpingKnowledge(jk, width, self.depth)
        self.readout = draw.choice([*READOUTS]) if graphs else None
        head = width * self.depth if jk == "cat" else width
        self.head = draw.choice(
            [nn.Linear(head, CLASSES), nn.Sequential(nn.Linear(head, 5), nn.ELU(), nn.Linear(5, CLASSES))]
        )

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        x = start = self.encoder(x)
        seen = []
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            before = x
            x = conv(x, edge_index, edge_attr) if self.looks[layer] else conv(x, edge_index)
            if self.parallel:
                looks, branch = self.looks_too[layer], self.branches[layer]
                x = self.mix(
                    torch.cat([x, branch(before, edge_index, edge_attr) if looks else branch(before, edge_index)], -1)
                )
            x = self.act(norm(x)) if self.norm_first else norm(self.act(x))
            x = F.dropout(x, 0.5, self.training)
            if self.skip == "add":
                x = x + before
            elif self.skip == "input":
                x = self.mix(torch.cat([x, start], dim=-1))
            elif self.skip == "highway":
                gate = torch.sigmoid(before)
                x = gate * x + (1 - gate) * before
            seen.append(x)
        x = x if self.jk is None else self.jk(seen)
        if self.readout is not None:
            x = READOUTS[self.readout](x, batch)
        return self.head(x)


@dataclass(frozen=True)
class RandomCase:
    """A network in float64 and what it is called with."""

    net: RandomNet
    x: Tensor
    edge_index: Tensor
    kwargs: dict[str, Tensor]


def random_edges(draw: Random, num_nodes: int, first: int = 0) -> list[tuple[int, int]]:
    """Directed edges with duplicates and self-loops; the last node is often isolated."""
    last = num_nodes - 1 if num_nodes > 1 and draw.random() < 0.5 else num_nodes
    edges = [(draw.randrange(last), draw.randrange(last)) for _ in range(draw.randrange(2, 2 * num_nodes + 2))]
    edges += [draw.choice(edges) for _ in range(draw.randrange(3))]
    edges += [(node, node) for node in [draw.randrange(last)] if draw.random() < 0.4]
    if draw.random() < 0.3:
        edges += [(j, i) for i, j in edges]
    draw.shuffle(edges)
    return [(first + i, first + j) for i, j in edges]


def random_case(seed: int) -> RandomCase:
    """Everything follows from the seed; every third network classifies graphs."""
    draw = Random(seed)
    graphs = seed % 3 == 2
    net = RandomNet(draw, graphs).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                values = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.copy_(values.abs() + 0.5 if "running_var" in name else values * 0.7)
    sizes = [draw.randrange(2, 6) for _ in range(2)] if graphs else [draw.randrange(1, 8)]
    edges = [edge for number, size in enumerate(sizes) for edge in random_edges(draw, size, sum(sizes[:number]))]
    num_nodes = sum(sizes)
    edge_index = torch.tensor(edges, dtype=torch.int64).t().contiguous()
    x = torch.randn(num_nodes, CHANNELS, generator=generator, dtype=torch.float64)
    kwargs = {}
    if net.edges:
        features = torch.randn(len(edges), EDGE_CHANNELS, generator=generator, dtype=torch.float64)
        if seed % 10:  # several self-loops of a node have the same features
            is_loop = edge_index[0] == edge_index[1]
            features[is_loop] = torch.randn(num_nodes, EDGE_CHANNELS, generator=generator).double()[
                edge_index[0, is_loop]
            ]
        kwargs["edge_attr"] = features
    if graphs:
        kwargs["batch"] = torch.repeat_interleave(torch.tensor(sizes))
    return RandomCase(net, x, edge_index, kwargs)
