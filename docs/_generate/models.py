"""Print the table of docs/reference/which_models_work.md: how attree measures effects on small models of every kind.

    python docs/_generate/models.py

Each model runs on a small random graph. The table says by which engine edges are deleted, by which their weights are
set to 0, or why the model is refused. A test compares the page with what this script prints.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import (
    APPNP,
    GAT,
    AGNNConv,
    ARMAConv,
    ASAPooling,
    AttentiveFP,
    ChebConv,
    DenseGATConv,
    DenseSAGEConv,
    DirGNNConv,
    EdgeConv,
    EdgePooling,
    GATConv,
    GatedGraphConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    GraphUNet,
    HeteroConv,
    HGTConv,
    LGConv,
    MessagePassing,
    MFConv,
    NNConv,
    PNAConv,
    ResGatedGraphConv,
    RGCNConv,
    SAGEConv,
    SAGPooling,
    SGConv,
    SuperGATConv,
    TAGConv,
    TGNMemory,
    TopKPooling,
    TransformerConv,
    dense_diff_pool,
    global_mean_pool,
    to_hetero,
)
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator
from torch_geometric.utils import sort_edge_index, to_dense_adj, to_dense_batch, to_undirected

from attree.attribution import subject_pairs
from attree.errors import UnsupportedModelError
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reducer, WholeReducer
from attree.subject import Subject

NODES, WIDTH, CLASSES = 14, 6, 3
EDGE_TYPES = [("a", "to", "b"), ("b", "of", "a"), ("a", "cites", "a")]
WORDS = {ExactReducer: "exact updates", CopiesReducer: "copies of neighbourhoods", WholeReducer: "one pass per edge"}
Layer = Callable[[int, int], MessagePassing]


class Stack(nn.Module):
    """Layers with ReLU in between."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        widths = [WIDTH] * len(layers) + [CLASSES]
        self.convs = nn.ModuleList(layer(widths[k], widths[k + 1]) for k, layer in enumerate(layers))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Logits of every node."""
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index, *(() if edge_attr is None else (edge_attr,)))
        return x


class Light(nn.Module):
    """A layer without weights, twice, and a linear head."""

    def __init__(self, conv: MessagePassing) -> None:
        super().__init__()
        self.conv, self.head = conv, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        return self.head(self.conv(self.conv(x, edge_index), edge_index))


class OfGraphs(nn.Module):
    """A readout of each graph."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        self.net = Stack(*layers)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Logits of every graph."""
        return global_mean_pool(self.net(x, edge_index), batch)


class OfLinks(nn.Module):
    """A dot product of two nodes."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        self.net = Stack(*layers)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        """One logit a link."""
        z = self.net(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class Typed(nn.Module):
    """Two layers on several edge types."""

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(WIDTH), make(CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        """Logits of the nodes of type `a`."""
        hidden = {kind: rows.relu() for kind, rows in self.first(x_dict, edge_index_dict).items()}
        return self.second(hidden, edge_index_dict)["a"]


class Relational(nn.Module):
    """RGCN on edges with types."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = RGCNConv(WIDTH, CLASSES, num_relations=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """Logits of every node."""
        return self.conv(x, edge_index, edge_type)


class Pooled(nn.Module):
    """Nodes are dropped or merged between two layers."""

    def __init__(self, pool: nn.Module, layer: Layer) -> None:
        super().__init__()
        self.first, self.pool, self.second = layer(WIDTH, WIDTH), pool, layer(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Logits of every graph."""
        x = self.first(x, edge_index).relu()
        if isinstance(self.pool, EdgePooling):
            x, edge_index, batch, _ = self.pool(x, edge_index, batch)
        else:
            x, edge_index, _, batch, *_ = self.pool(x, edge_index, None, batch)
        return global_mean_pool(self.second(x, edge_index), batch)


class Fingerprint(nn.Module):
    """AttentiveFP: GRU cells between layers, and a layer as the readout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = AttentiveFP(WIDTH, WIDTH, CLASSES, edge_dim=4, num_layers=2, num_timesteps=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        """Logits of every graph."""
        return self.net(x, edge_index, edge_attr, batch)


class Unet(nn.Module):
    """PyG's graph U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GraphUNet(WIDTH, WIDTH, CLASSES, depth=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        return self.net(x, edge_index)


class Dense(nn.Module):
    """Layers on a dense adjacency matrix, with soft clusters in between."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.assign, self.first, self.second = layer(WIDTH, 4), layer(WIDTH, WIDTH), layer(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Logits of every graph."""
        adjacency, (h, mask) = to_dense_adj(edge_index, batch), to_dense_batch(x, batch)
        clusters = self.assign(h, adjacency, mask)
        h, adjacency, *_ = dense_diff_pool(self.first(h, adjacency, mask).relu(), adjacency, clusters, mask)
        return self.second(h, adjacency).sum(dim=1)


class Temporal(nn.Module):
    """Links from the memory of a temporal graph network."""

    def __init__(self) -> None:
        super().__init__()
        message = IdentityMessage(4, WIDTH, WIDTH)
        self.memory = TGNMemory(NODES, 4, WIDTH, WIDTH, message, LastAggregator())
        nn.init.normal_(self.memory.memory)
        self.conv = TransformerConv(WIDTH, WIDTH, edge_dim=4)

    def forward(self, n_id: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_label_index: Tensor) -> Tensor:
        """One logit a link."""
        z = self.conv(self.memory(n_id)[0], edge_index, edge_attr)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class OverTime(nn.Module):
    """A layer on each snapshot of the features, and a recurrent network over its outputs."""

    def __init__(self, layer: Layer, recurrent: nn.Module) -> None:
        super().__init__()
        self.conv, self.recurrent, self.head = layer(WIDTH, WIDTH), recurrent, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        outputs = [self.conv(x[:, time], edge_index) for time in range(x.shape[1])]
        if isinstance(self.recurrent, nn.GRU):
            return self.head(self.recurrent(torch.stack(outputs, dim=1))[0][:, -1])
        state = torch.zeros_like(outputs[0])
        for output in outputs:
            state = self.recurrent(output, state)
        return self.head(state)


class OnEdges(nn.Module):
    """Two layers on edges that the model makes from the data's."""

    def __init__(self, layer: Layer, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.change = layer(WIDTH, WIDTH), layer(WIDTH, CLASSES), change

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        edge_index = self.change(x, edge_index)
        return self.second(self.first(x, edge_index).relu(), edge_index)


class WithHub(OnEdges):
    """The same with one further node, which is joined to all others."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        return super().forward(torch.cat([x, x.new_zeros(1, WIDTH)]), edge_index)[:-1]


class OfEachType(nn.Module):
    """One GATConv for each edge type, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleList(gat(WIDTH, out) for _ in range(2)) for out in (WIDTH, CLASSES))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """Logits of every node."""
        for convs in (self.first, self.second):
            x = sum(conv(x.relu(), edge_index[:, edge_type == number]) for number, conv in enumerate(convs))
        return x


def nearest(x: Tensor, edge_index: Tensor) -> Tensor:
    """The data's edges, and those from the three nearest nodes by features."""
    far = torch.cdist(x, x).fill_diagonal_(torch.inf)
    sources = far.topk(3, largest=False).indices
    return torch.cat([edge_index, torch.stack([sources.flatten(), torch.arange(x.shape[0]).repeat_interleave(3)])], 1)


def with_hub(x: Tensor, edge_index: Tensor) -> Tensor:
    """The data's edges, and those from and to the last node."""
    nodes = torch.arange(x.shape[0] - 1)
    hub = torch.full_like(nodes, x.shape[0] - 1)
    return torch.cat([edge_index, torch.stack([nodes, hub]), torch.stack([hub, nodes])], 1)


class LoRA(nn.Module):
    """A linear layer plus a product of two narrow matrices."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.down = base, nn.Parameter(torch.randn(2, base.weight.shape[1]))
        self.up = nn.Parameter(torch.randn(base.weight.shape[0], 2))

    def forward(self, x: Tensor) -> Tensor:
        """Both, added."""
        return self.base(x) + x @ self.down.t() @ self.up.t()


class OfTable(Stack):
    """A table with one row per node, added to the features."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(*layers)
        self.table = nn.Embedding(NODES, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        return super().forward(x + self.table.weight, edge_index)


class Recurrent(Stack):
    """A recurrent cell after the first layer, with a state of zeros."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(*layers)
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every node."""
        hidden = self.cell(self.convs[0](x, edge_index), torch.zeros(x.size(0), WIDTH))
        return self.convs[1](hidden, edge_index)


class Seeds(Stack):
    """The outputs of the first nodes, as for a mini-batch of a NeighborLoader."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of five nodes."""
        return super().forward(x, edge_index)[:5]


class OfEdges(Stack):
    """Both ends of every edge of the data."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(*layers)
        self.head = nn.Linear(2 * CLASSES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of every edge."""
        hidden = super().forward(x, edge_index)
        return self.head(torch.cat([hidden[edge_index[0]], hidden[edge_index[1]]], dim=-1))


class Distances(Stack):
    """Distances between the positions of two nodes as edge features."""

    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        """Logits of every node."""
        distance = (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=-1, keepdim=True)
        return super().forward(x, edge_index, distance)


def with_lora(width: int, out: int) -> MessagePassing:
    """A GATConv with LoRA."""
    conv = GATConv(width, out)
    conv.lin = LoRA(conv.lin)
    return conv


def mlp(width: int, out: int) -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out))


def gat(width: int, out: int) -> MessagePassing:
    """A GATConv."""
    return GATConv(width, out)


def pna(width: int, out: int) -> MessagePassing:
    """A PNAConv."""
    return PNAConv(width, out, ["mean", "max"], ["identity", "amplification"], torch.tensor([1, 4, 5, 4]))


def relations(of_type: Callable[[tuple[str, str, str], int], MessagePassing]) -> Callable[[int], nn.Module]:
    """A HeteroConv with one layer for each edge type."""
    return lambda out: HeteroConv({kind: of_type(kind, out) for kind in EDGE_TYPES})


def mixed(kind: tuple[str, str, str], out: int) -> MessagePassing:
    """A GATConv for one edge type, a SAGEConv for the others."""
    if kind[1] == "of":
        return GATConv((WIDTH, WIDTH), out, add_self_loops=False)
    return SAGEConv((WIDTH, WIDTH), out)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GATConv": lambda: Stack(gat, gat),
    "GATv2Conv": lambda: Stack(GATv2Conv, GATv2Conv),
    "SuperGATConv": lambda: Stack(SuperGATConv, SuperGATConv),
    "TransformerConv": lambda: Stack(TransformerConv, TransformerConv),
    "PyG's GAT with jumping knowledge": lambda: GAT(WIDTH, WIDTH, 2, CLASSES, jk="cat"),
    "AGNNConv": lambda: Light(AGNNConv()),
    "GATConv with edge_attr, loops filled with the mean": lambda: Stack(
        lambda width, out: GATConv(width, out, edge_dim=4)
    ),
    "GCNConv": lambda: Stack(GCNConv, GCNConv),
    "SGConv (K = 1)": lambda: Stack(SGConv),
    "LGConv (LightGCN)": lambda: Light(LGConv()),
    "SAGEConv (mean)": lambda: Stack(SAGEConv, SAGEConv),
    "SAGEConv (max)": lambda: Stack(*[lambda width, out: SAGEConv(width, out, aggr="max")] * 2),
    "GINConv": lambda: Stack(*[lambda width, out: GINConv(mlp(width, out))] * 2),
    "GINEConv": lambda: Stack(*[lambda width, out: GINEConv(mlp(width, out), edge_dim=4)] * 2),
    "GraphConv": lambda: Stack(GraphConv, GraphConv),
    "PNAConv": lambda: Stack(pna, pna),
    "EdgeConv": lambda: Stack(*[lambda width, out: EdgeConv(mlp(2 * width, out))] * 2),
    "NNConv": lambda: Stack(*[lambda width, out: NNConv(width, out, nn.Linear(4, width * out))] * 2),
    "ResGatedGraphConv": lambda: Stack(ResGatedGraphConv, ResGatedGraphConv),
    "MFConv (weights by degree)": lambda: Stack(MFConv, MFConv),
    "SGConv (K = 2)": lambda: Stack(lambda width, out: SGConv(width, out, K=2)),
    "TAGConv": lambda: Stack(TAGConv),
    "ChebConv": lambda: Stack(lambda width, out: ChebConv(width, out, 3)),
    "APPNP": lambda: Light(APPNP(2, 0.1)),
    "ARMAConv": lambda: Stack(lambda width, out: ARMAConv(width, out, num_stacks=2, num_layers=2)),
    "GatedGraphConv": lambda: Light(GatedGraphConv(WIDTH, 2)),
    "GCNConv, then GATConv": lambda: Stack(GCNConv, gat),
    "GATConv, then SAGEConv": lambda: Stack(gat, SAGEConv),
    "GATConv, GCNConv, GATConv": lambda: Stack(gat, GCNConv, gat),
    "GATConv with LoRA in place of its linear layer": lambda: Stack(with_lora, with_lora),
    "SAGEConv on `x + table.weight`, a table of nodes": lambda: OfTable(SAGEConv, SAGEConv),
    "GATConv, GRU on `torch.zeros(x.size(0), h)`, GATConv": lambda: Recurrent(gat, gat),
    "GINEConv, edge features made from `pos` at both ends": lambda: Distances(
        *[lambda width, out: GINEConv(mlp(width, out), edge_dim=1)] * 2
    ),
    "SAGEConv, outputs of some nodes (`out[:batch_size]`, `out[mask]`)": lambda: Seeds(SAGEConv, SAGEConv),
    "GCNConv, one output for every edge (`cat(h[src], h[dst])`)": lambda: OfEdges(GCNConv, GCNConv),
    "graphs: GINConv, then mean pooling": lambda: OfGraphs(*[lambda width, out: GINConv(mlp(width, out))] * 2),
    "links: GCNConv, then dot product": lambda: OfLinks(GCNConv, GCNConv),
    "types: HGTConv": lambda: Typed(lambda out: HGTConv(WIDTH, out, (["a", "b"], EDGE_TYPES))),
    "types: HeteroConv of SAGEConv": lambda: Typed(relations(lambda kind, out: SAGEConv((WIDTH, WIDTH), out))),
    "types: HeteroConv of GATConv and SAGEConv": lambda: Typed(relations(mixed)),
    "types: to_hetero of SAGEConv": lambda: Typed(
        lambda out: to_hetero(Stack(lambda width, _: SAGEConv(width, out)), (["a", "b"], EDGE_TYPES))
    ),
    "types: GCNConv within a relation": lambda: Typed(
        relations(lambda kind, out: GCNConv(WIDTH, out) if kind[1] == "cites" else SAGEConv((WIDTH, WIDTH), out))
    ),
    "RGCNConv": Relational,
    "graphs: GCNConv, TopKPooling, GCNConv": lambda: Pooled(TopKPooling(WIDTH), GCNConv),
    "graphs: GATConv, SAGPooling, GATConv": lambda: Pooled(SAGPooling(WIDTH), gat),
    "graphs: GCNConv, ASAPooling, GCNConv": lambda: Pooled(ASAPooling(WIDTH), GCNConv),
    "graphs: GCNConv, EdgePooling, GCNConv": lambda: Pooled(EdgePooling(WIDTH), GCNConv),
    "GraphUNet": Unet,
    "graphs: AttentiveFP with edge_attr": Fingerprint,
    "graphs: DenseSAGEConv, dense_diff_pool": lambda: Dense(DenseSAGEConv),
    "graphs: DenseGATConv, dense_diff_pool": lambda: Dense(DenseGATConv),
    "GATConv on snapshots, then GRU": lambda: OverTime(gat, nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "GATConv on snapshots, GRUCell": lambda: OverTime(gat, nn.GRUCell(WIDTH, WIDTH)),
    "links: TransformerConv on a TGNMemory": Temporal,
    "GCNConv on snapshots, GRUCell": lambda: OverTime(GCNConv, nn.GRUCell(WIDTH, WIDTH)),
    "edge types: one GATConv for each": OfEachType,
    "edges sorted in forward: GATConv": lambda: OnEdges(gat, lambda _, edges: sort_edge_index(edges)),
    "edges reversed in forward: GATConv": lambda: OnEdges(gat, lambda _, edges: edges.flip(0)),
    "edges made undirected in forward: GATConv": lambda: OnEdges(gat, lambda _, edges: to_undirected(edges)),
    "DirGNNConv of SAGEConv": lambda: Stack(*[lambda width, out: DirGNNConv(SAGEConv(width, out))] * 2),
    "virtual node in forward: GATConv": lambda: WithHub(gat, with_hub),
    "nearest neighbours beside the edges: GATConv": lambda: OnEdges(gat, nearest),
}
"""A maker of each model of the table."""


def data_for(name: str) -> Data | HeteroData:
    """Return a small random graph with what the model of this name reads."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, WIDTH, generator=generator)
    edges = torch.randint(0, NODES, (2, 40), generator=generator)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    if name.startswith("types:"):
        typed = HeteroData()
        typed["a"].x, typed["b"].x = x, x[:8]
        typed["a", "to", "b"].edge_index = torch.stack([edges[0], edges[1] % 8]).unique(dim=1)
        typed["b", "of", "a"].edge_index = torch.stack([edges[1] % 8, edges[0]]).unique(dim=1)
        typed["a", "cites", "a"].edge_index = edges
        return typed
    if name.startswith("graphs:"):
        features = torch.randn(edges.shape[1], 4, generator=generator) if "edge_attr" in name else None
        return Batch.from_data_list([Data(x + number, edges, edge_attr=features) for number in range(3)])
    data = Data(x, edges)
    if "snapshots" in name:
        data.x = torch.randn(NODES, 3, WIDTH, generator=generator)
    if "TGNMemory" in name:
        data = Data(edge_index=edges, n_id=torch.arange(NODES), num_nodes=NODES)
        data.edge_attr = torch.randn(edges.shape[1], 4, generator=generator)
    if name.startswith("links:"):
        data.edge_label_index = torch.randint(0, NODES, (2, 6), generator=generator)
    if name in ("GINEConv", "NNConv") or "edge_attr" in name:
        data.edge_attr = torch.randn(edges.shape[1], 4, generator=generator)
    if "`pos`" in name:
        data.pos = torch.randn(NODES, 3, generator=generator)
    if name == "RGCNConv" or name.startswith("edge types:"):
        data.edge_type = torch.arange(edges.shape[1]) % 2
    return data


def how(name: str) -> tuple[str, str, str]:
    """Return by which engine edges are deleted, by which weights are set to 0, and whether there is a tree to walk.

    If neither is possible, the first says why.
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            subject = Subject.of_data(MODELS[name]().eval(), data_for(name))
            layers = subject.layers
        except UnsupportedModelError as error:
            return f"refused: {' '.join(str(error).split())}", "", ""
        effects = Reducer(subject).record()
        pairs = subject_pairs(subject, torch.arange(min(3, subject.num_targets)))
        engines = []
        for protocol in (PROTOCOLS["removal"], PROTOCOLS["weight"]):
            if not (protocol.deletes or layers.runs_on_data):
                engines.append("not defined")
                continue
            effects.reduce(pairs, protocol)
            engines.append(WORDS[type(effects.engine_for(protocol))])
    return engines[0], engines[1], "no" if layers.untraced else "yes"


def row(name: str) -> str:
    """Return the line of the table for a model."""
    return f"| {name} | {' | '.join(how(name))} |"


def main() -> None:
    """Print the table."""
    print("| model | edge deleted by | weight set to 0 by | tree to walk |\n|---|---|---|---|")
    for name in MODELS:
        print(row(name))


if __name__ == "__main__":
    main()
