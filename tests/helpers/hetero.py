"""A small heterogeneous graph, networks on it, and what they attend to, computed from the definitions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HANConv, HeteroConv, HGTConv
from torch_geometric.utils import softmax

from reference import Call

EdgeType = tuple[str, str, str]
Walk = tuple[dict[str, Call], dict[str, list[tuple[str, float]]], list[tuple[str, float]]]
"""Calls, what feeds them, and what the output comes from, as `gatt_by_calls` takes them."""

SIZES = {"paper": 7, "author": 5, "term": 3}
RELATIONS: dict[EdgeType, int] = {
    ("author", "writes", "paper"): 12,
    ("paper", "written_by", "author"): 11,
    ("term", "in", "paper"): 9,
    ("paper", "has", "term"): 8,
    ("paper", "cites", "paper"): 10,
}
METADATA = (list(SIZES), list(RELATIONS))
CHANNELS = 4


def hetero_graph(seed: int = 0) -> HeteroData:
    """Three types of nodes, five of edges, with duplicates and a given self-loop."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind, count in SIZES.items():
        data[kind].x = torch.randn(count, CHANNELS, generator=generator, dtype=torch.float64)
    for kind, count in RELATIONS.items():
        ends = [torch.randint(SIZES[side], (count,), generator=generator) for side in (kind[0], kind[2])]
        data[kind].edge_index = torch.stack(ends)
    data["paper", "cites", "paper"].edge_index[:, 0] = 2
    data["paper"].y = torch.arange(SIZES["paper"]) % 3
    return data


class HeteroNet(nn.Module):
    """Layers of `HeteroConv`, with an activation after each."""

    def __init__(self, conv: type[Any], aggr: str, loops: bool = False, **options: Any) -> None:
        super().__init__()
        wide = aggr == "cat"
        self.convs = nn.ModuleList()
        for _ in range(2):
            convs = {}
            for kind in RELATIONS:
                own = {"add_self_loops": loops and kind[0] == kind[2]} if conv is GATConv else {}
                convs[kind] = conv((-1, -1) if wide or kind[0] != kind[2] else CHANNELS, CHANNELS, **options, **own)
            self.convs.append(HeteroConv(convs, aggr=aggr))

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        for conv in self.convs:
            x_dict = {kind: F.elu(x) for kind, x in conv(x_dict, edge_index_dict).items()}
        return x_dict


class Stacked(nn.Module):
    """Layers that take and return dicts, and a head for papers."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.head = nn.Linear(CHANNELS, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.head(x_dict["paper"])


class Plain(nn.Module):
    """What `to_hetero` makes a heterogeneous network of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (GATConv((-1, -1), CHANNELS, add_self_loops=False) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


def listed(kind: EdgeType, edges: Tensor, weights: Tensor, given: int | None = None) -> Call:
    """What a call attends to on the edges of one type; edges beyond those given are self-loops that it added."""
    given = edges.shape[1] if given is None else given
    return [
        ((kind[0], i), (kind[2], j), (kind[1], number) if number < given else ("loop", i), weight)
        for number, (i, j, weight) in enumerate(zip(*edges.tolist(), weights.tolist(), strict=True))
    ]


def hetero_calls(layers: list[dict[EdgeType, Any]], data: HeteroData, aggr: str) -> Walk:
    """Calls, feeds and output of layers of one convolution per relation, run by hand."""
    calls: dict[str, Call] = {}
    fed_by: dict[str, list[tuple[str, float]]] = {}
    x = data.x_dict
    before: dict[str, list[tuple[str, float]]] = {kind: [] for kind in SIZES}
    for number, convs in enumerate(layers):
        sums: dict[str, list[Tensor]] = {}
        now: dict[str, list[str]] = {}
        for kind, conv in convs.items():
            name = f"{number} {kind}"
            edges = data[kind].edge_index
            out, (own, weights) = conv((x[kind[0]], x[kind[2]]), edges, return_attention_weights=True)
            calls[name] = listed(kind, own, weights.mean(dim=1))
            fed_by[name] = before[kind[0]]
            sums.setdefault(kind[2], []).append(out)
            now.setdefault(kind[2], []).append(name)
        combine = {"sum": sum, "mean": lambda parts: sum(parts) / len(parts), "cat": lambda parts: torch.cat(parts, 1)}
        x = {kind: F.elu(combine[aggr](parts)) for kind, parts in sums.items()}
        before = {
            kind: [(name, 1 / len(names) if aggr == "mean" else 1.0) for name in names] for kind, names in now.items()
        }
    return calls, fed_by, before["paper"]


def hgt_calls(model: Stacked, data: HeteroData) -> Walk:
    """Attention of HGT by its definition: one softmax over all edges that enter a node, whatever their relation."""
    calls: dict[str, Call] = {}
    x = data.x_dict
    for layer, conv in enumerate(model.convs):
        assert isinstance(conv, HGTConv)
        heads, size = conv.heads, CHANNELS // conv.heads
        kqv = {kind: conv.kqv_lin(x)[kind].view(-1, 3, heads, size) for kind in SIZES}
        scores, places = [], []
        for kind in RELATIONS:
            source, destination = data[kind].edge_index
            for number in range(source.numel()):
                relation = conv.edge_types_map[kind]
                for head in range(heads):
                    weight = conv.k_rel.weight[head * len(RELATIONS) + relation]
                    key = kqv[kind[0]][source[number], 0, head] @ weight
                    score = (kqv[kind[2]][destination[number], 1, head] * key).sum()
                    scores.append(score * conv.p_rel["__".join(kind)][0, head] / math.sqrt(size))
                places.append((kind, number, int(source[number]), int(destination[number])))
        table = torch.stack(scores).view(-1, heads)
        names = {node: place for place, node in enumerate({(kind[2], j) for kind, _, _, j in places})}
        row = torch.tensor([names[kind[2], j] for kind, _, _, j in places])
        alpha = softmax(table, row).mean(dim=1).tolist()
        calls[f"{layer}"] = [
            ((kind[0], i), (kind[2], j), (kind[1], number), weight)
            for (kind, number, i, j), weight in zip(places, alpha, strict=True)
        ]
        x = conv(x, data.edge_index_dict)
    last = len(model.convs) - 1
    return calls, {f"{layer}": [(f"{layer - 1}", 1.0)] for layer in range(1, last + 1)}, [(f"{last}", 1.0)]


def han_calls(model: Stacked, data: HeteroData) -> Walk:
    """Attention of HAN by its definition: a softmax for each relation, times the relation's worth for its type."""
    calls: dict[str, Call] = {}
    x = data.x_dict
    for layer, conv in enumerate(model.convs):
        assert isinstance(conv, HANConv)
        out, semantic = conv(x, data.edge_index_dict, return_semantic_attention_weights=True)
        hidden = {kind: conv.proj[kind](rows).view(-1, conv.heads, CHANNELS // conv.heads) for kind, rows in x.items()}
        seen: dict[str, int] = {}
        calls[f"{layer}"] = []
        for kind in RELATIONS:
            source, destination = data[kind].edge_index
            name = "__".join(kind)
            left = (hidden[kind[0]] * conv.lin_src[name]).sum(-1)[source]
            right = (hidden[kind[2]] * conv.lin_dst[name]).sum(-1)[destination]
            alpha = softmax(F.leaky_relu(left + right, conv.negative_slope), destination).mean(dim=1)
            worth = semantic[kind[2]][seen.get(kind[2], 0)]
            seen[kind[2]] = seen.get(kind[2], 0) + 1
            calls[f"{layer}"] += listed(kind, data[kind].edge_index, alpha * worth)
        x = out
    last = len(model.convs) - 1
    return calls, {f"{layer}": [(f"{layer - 1}", 1.0)] for layer in range(1, last + 1)}, [(f"{last}", 1.0)]
