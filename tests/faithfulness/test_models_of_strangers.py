"""Models with habits of their own are served by exact updates: modules in place of linear layers, tables of nodes,
hidden states made inside forward, outputs for a part of the nodes, edge features made from end nodes.

`removal` is compared with deleting the edge from the data, both protocols with one pass of the whole graph per edge.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINEConv,
    GPSConv,
    GraphConv,
    HeteroConv,
    LGConv,
    MessagePassing,
    SAGEConv,
    SuperGATConv,
    TransformerConv,
    global_mean_pool,
)
from torch_geometric.utils import softmax

import attree
from attree.attribution import subject_pairs
from attree.defaults import RESOLUTION
from attree.errors import ArgumentError, UnsupportedModelError
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reducer, WholeReducer
from attree.faithfulness.effect_measures import ReductionEngine
from attree.subject import Subject
from attree.subject.arguments_from_data import bind_data
from helpers.no_warnings import no_warnings

NODES, WIDTH, CLASSES = 24, 6, 3
Layer = Callable[[int, int], MessagePassing]
LAYERS: dict[str, Layer] = {"GAT": GATConv, "SAGE": SAGEConv, "GCN": GCNConv}


def graph(nodes: int = NODES, edges: int = 70, seed: int = 0) -> Data:
    """A random graph in float64, with everything that some model reads."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=generator)
    ends = ends[:, ends[0] != ends[1]].unique(dim=1)
    return Data(
        torch.randn(nodes, WIDTH, generator=generator).double(),
        ends,
        torch.randn(ends.shape[1], 4, generator=generator).double(),
        pos=torch.randn(nodes, 3, generator=generator).double(),
        mask=torch.rand(nodes, generator=generator) < 0.5,
        chosen=torch.randperm(nodes, generator=generator)[:7],
        n_id=torch.arange(nodes),
        edge_label_index=torch.randint(0, nodes, (2, 6), generator=generator),
    )


def graphs() -> Batch:
    """Three graphs of different sizes."""
    return Batch.from_data_list([graph(8 + number, 20, number) for number in range(3)])


def in_float32(data: Data) -> Data:
    return data.apply(lambda value: value.float() if value.is_floating_point() else value)


class Two(nn.Module):
    """Two layers with ReLU in between."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.first, self.second = layer(WIDTH, WIDTH), layer(WIDTH, CLASSES)

    def net(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)


def without_edge(data: Data, column: Tensor) -> Data:
    """The data without some edges, and without their rows of edge attributes."""
    stays = torch.ones(data.num_edges, dtype=torch.bool).index_fill(0, column, False)
    data = copy.copy(data)
    data.edge_index, data.edge_attr = data.edge_index[:, stays], data.edge_attr[stays]
    return data


def probabilities(output: Tensor) -> Tensor:
    """The class probabilities of one row of logits, or of one logit."""
    if output.dim() and output.numel() > 1:
        return output.softmax(-1)
    return torch.stack([1 - output.sigmoid().view(()), output.sigmoid().view(())])


def assert_served(
    model: nn.Module, data: Data, tolerance: float = 1e-9, engine: type = ExactReducer, targets: list[int] | None = None
) -> Subject:
    """Both protocols are served by exact updates, and their effects are those of other graphs."""
    model = model.eval()
    subject = Subject.of_data(model, data)
    every = subject.targets("all")
    pairs = subject_pairs(subject, every[:: max(1, every.numel() // 4)] if targets is None else torch.tensor(targets))
    rows = subject.rows(pairs.targets)[pairs.owner]

    def probability(engines: tuple[type[ReductionEngine], ...] | None, name: str) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if engines else "error")
            effects = (Reducer(subject, engines=engines) if engines else Reducer(subject)).record()
            reduction = effects.reduce(pairs, PROTOCOLS[name], with_probability=True)
        assert isinstance(effects.engine_for(PROTOCOLS[name]), engines or engine)
        assert reduction.probability is not None
        return reduction.probability

    for name in ("removal", "weight"):
        got = probability(None, name)
        torch.testing.assert_close(got, probability((WholeReducer,), name), rtol=0, atol=tolerance)
        if name == "removal":
            for place in range(0, len(pairs), 5):
                edge = int(pairs.edges[place])
                if edge < subject.graph.num_proper_edges:
                    changed = without_edge(data, (subject.graph.position == edge).nonzero().view(-1))
                    with torch.no_grad():
                        expected = probabilities(bind_data(model, changed).run()[rows[place]])
                    torch.testing.assert_close(got[place].to(expected), expected, rtol=0, atol=tolerance)
        assert float(got.std(dim=0).max()) > 1e-3
    return subject


class LoRA(nn.Module):
    """A linear layer plus a product of two narrow matrices."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        out, width = base.weight.shape
        self.base = base
        self.down, self.up = nn.Parameter(torch.randn(2, width) / 3), nn.Parameter(torch.randn(out, 2) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class LoRALinear(nn.Linear):
    """The same as a subclass: its weight is not all that it multiplies with."""

    def __init__(self, base: nn.Module) -> None:
        out, width = base.weight.shape
        super().__init__(width, out, bias=base.bias is not None)
        self.down, self.up = nn.Parameter(torch.randn(2, width) / 3), nn.Parameter(torch.randn(out, 2) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.t() @ self.up.t()


class Rounded(nn.Module):
    """Integer weights and a scale, which are multiplied when they are used, in float32."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.integers = nn.Buffer((base.weight.detach() * 32).round().to(torch.int8))
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.integers.to(x.dtype) / 32, self.bias)


def sequence(base: nn.Module) -> nn.Module:
    out, width = base.weight.shape
    return nn.Sequential(nn.Dropout(), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, out))


IN_PLACE_OF_LINEAR: dict[str, Callable[[nn.Module], nn.Module]] = {
    "LoRA": LoRA,
    "a subclass": LoRALinear,
    "integers": Rounded,
    "a sequence": sequence,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm by hooks": torch.nn.utils.spectral_norm,
}
WITH_LINEAR: dict[str, Layer] = {
    "GAT": GATConv,
    "GATv2": GATv2Conv,
    "Transformer": TransformerConv,
    "SuperGAT": SuperGATConv,
    "SAGE": SAGEConv,
}
LINEAR = ("lin", "lin_l", "lin_r", "lin_key", "lin_query", "lin_value", "lin_skip")


def with_others(layer: Layer, other: Callable[[nn.Module], nn.Module]) -> Layer:
    """Layers with other modules in place of their linear ones."""

    def make(width: int, out: int) -> MessagePassing:
        conv = layer(width, out)
        for name in LINEAR:
            if getattr(conv, name, None) is not None:
                setattr(conv, name, other(getattr(conv, name)))
        return conv

    return make


@pytest.mark.parametrize(
    ("layer", "other"),
    [*(("GAT", other) for other in IN_PLACE_OF_LINEAR), *((layer, "LoRA") for layer in WITH_LINEAR if layer != "GAT")],
)
def test_modules_in_place_of_linear_layers(layer: str, other: str) -> None:
    torch.manual_seed(1)
    assert_served(Two(with_others(WITH_LINEAR[layer], IN_PLACE_OF_LINEAR[other])).double(), graph())


def test_modules_in_place_of_linear_layers_of_graphs() -> None:
    class OfGraphs(Two):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return global_mean_pool(self.net(x, edge_index), batch)

    torch.manual_seed(1)
    assert_served(OfGraphs(with_others(GATConv, LoRA)).double(), graphs())


def test_a_module_in_place_of_a_linear_layer_reads_sparse_features() -> None:
    data = graph()
    data.x = (data.x > 2).double()
    data.x[:, 0] = 0
    assert int(data.x.sum()) > 0
    torch.manual_seed(1)
    assert_served(Two(with_others(GATConv, LoRA)).double(), data)


class WithTable(Two):
    """Two layers and a table with one row per node, used in one of many ways."""

    def __init__(self, layer: Layer, use: str) -> None:
        super().__init__(layer)
        self.use = use
        self.table = nn.Embedding(NODES, WIDTH)
        self.late = nn.Embedding(NODES, CLASSES)
        self.kinds = nn.Buffer(torch.arange(NODES) % 3)
        self.encoding, self.wide = torch.randn(NODES, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.cell, self.state = nn.GRUCell(WIDTH, WIDTH), nn.Buffer(torch.randn(NODES, WIDTH))

    def forward(self, x: Tensor, edge_index: Tensor, n_id: Tensor) -> Tensor:
        match self.use:
            case "added":
                return self.net(x + self.table.weight, edge_index)
            case "in place of features":
                return self.net(self.table.weight, edge_index)
            case "looked up by ids of the data":
                return self.net(self.table(n_id), edge_index)
            case "looked up by numbers":
                return self.net(self.table(torch.arange(x.size(0))), edge_index)
            case "looked up by a fixed number of numbers":
                return self.net(x + self.table(torch.arange(NODES)), edge_index)
            case "joined, after a linear layer":
                return self.net(self.wide(torch.cat([x, self.table.weight.relu()], dim=-1)), edge_index)
            case "added to the output":
                return self.net(x, edge_index) + self.late.weight
            case "used twice":
                hidden = self.first(x + self.table.weight, edge_index) + self.table(n_id)
                return self.second(hidden, edge_index)
            case "scores of all nodes":
                hidden = self.first(x, edge_index)
                return self.second(hidden, edge_index) + (hidden @ self.table.weight.t())[:, :CLASSES]
            case "kinds in a buffer":
                return self.net(x + self.table(self.kinds), edge_index)
            case "a plain tensor":
                return self.net(x + self.encoding.to(x.dtype), edge_index)
            case "a state in a buffer":
                return self.second(self.cell(self.first(x, edge_index), self.state), edge_index)
            case "zeros":
                state = torch.zeros(x.size(0), WIDTH)
                return self.second(self.cell(self.first(x, edge_index), state), edge_index)
            case "zeros of a fixed size":
                return self.second(self.cell(self.first(x, edge_index), torch.zeros(NODES, WIDTH)), edge_index)
            case "ones in place of features":
                return self.net(torch.ones((x.size(0), WIDTH)), edge_index)
            case "new_zeros after a layer":
                hidden = self.first(x, edge_index)
                return self.second(torch.maximum(hidden, x.new_zeros(x.size(0), WIDTH)), edge_index)
            case _:
                raise ValueError(self.use)


USES = [
    "added",
    "in place of features",
    "looked up by ids of the data",
    "looked up by numbers",
    "looked up by a fixed number of numbers",
    "joined, after a linear layer",
    "added to the output",
    "used twice",
    "scores of all nodes",
    "kinds in a buffer",
    "a plain tensor",
    "a state in a buffer",
    "zeros",
    "zeros of a fixed size",
    "ones in place of features",
    "new_zeros after a layer",
]


@pytest.mark.parametrize(
    ("layer", "use"),
    [
        pytest.param(layer, use, marks=() if layer == "SAGE" or use == "added" else pytest.mark.long)
        for layer in LAYERS
        for use in USES
    ],
)
def test_tables_of_nodes_and_tensors_made_for_each_node(layer: str, use: str) -> None:
    torch.manual_seed(1)
    assert_served(WithTable(LAYERS[layer], use), in_float32(graph()), 1e-6)


class LinksOfTable(nn.Module):
    """LightGCN as people write it: no features, dot products of a table's rows after two layers."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))
        self.first, self.second = layer(WIDTH, WIDTH), layer(WIDTH, WIDTH)

    def forward(self, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        hidden = self.first(self.table, edge_index)
        z = (self.table + hidden + self.second(hidden, edge_index)) / 3
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


@pytest.mark.parametrize("layer", ["LightGCN", "GAT"])
def test_tables_of_nodes_of_links(layer: str) -> None:
    torch.manual_seed(1)
    make: Layer = GATConv if layer == "GAT" else lambda width, out: LGConv()
    assert_served(LinksOfTable(make).double(), graph())


class TypedTables(nn.Module):
    """A table for each node type, in place of features."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({kind: nn.Embedding(size, WIDTH) for kind, size in sizes.items()})
        self.first, self.second = (
            HeteroConv({kind: SAGEConv((WIDTH, WIDTH), out) for kind in TYPED_EDGES}) for out in (WIDTH, CLASSES)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        rows = {kind: x + self.tables[kind].weight for kind, x in x_dict.items()}
        hidden = {kind: x.relu() for kind, x in self.first(rows, edge_index_dict).items()}
        return self.second(hidden, edge_index_dict)["user"]


TYPED_EDGES = [("user", "buys", "item"), ("item", "bought_by", "user"), ("user", "knows", "user")]


@pytest.mark.parametrize("items", [9, 12], ids=["sizes differ", "sizes are equal"])
def test_tables_of_node_types(items: int) -> None:
    sizes = {"user": 12, "item": items}
    torch.manual_seed(1)
    assert_as_whole(Subject.of_data(TypedTables(sizes).double().eval(), typed_graph(sizes)), [0, 5, 11])


def test_a_number_of_hours_that_equals_the_number_of_nodes_is_no_table() -> None:
    """A tensor of the size of the graph by chance must not be cut to rows, or the model must go to another engine."""

    class Hours(Two):
        def __init__(self) -> None:
            super().__init__(SAGEConv)
            self.hours = nn.Parameter(torch.randn(NODES, WIDTH))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            share = (x @ self.hours.t()).softmax(-1)
            shift = torch.arange(NODES).to(x) / NODES
            return self.net(x + (share * shift) @ self.hours, edge_index)

    torch.manual_seed(1)
    assert_served(Hours().double(), graph())


class EdgeFeatures(nn.Module):
    """Two layers with edge features that are made from the ends of edges."""

    def __init__(self, layer: str, made: str) -> None:
        super().__init__()
        width = {"distances": 1, "ends": 2 * WIDTH, "weights": 1}[made]
        make = WITH_EDGE_FEATURES[layer]
        self.first, self.second = make(WIDTH, WIDTH, width), make(WIDTH, CLASSES, width)
        self.made = made

    def features(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        source, destination = edge_index
        match self.made:
            case "distances":
                return (pos[source] - pos[destination]).norm(dim=-1, keepdim=True)
            case "ends":
                return torch.cat([x[source], x.index_select(0, destination)], dim=-1)
            case _:
                return (x[source] * x[destination]).sum(-1).sigmoid()

    def net(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        features = self.features(x, edge_index, pos)
        return self.second(self.first(x, edge_index, features).relu(), edge_index, features)

    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        return self.net(x, edge_index, pos)


WITH_EDGE_FEATURES: dict[str, Callable[[int, int, int], MessagePassing]] = {
    "GAT, filled loops": lambda width, out, features: GATConv(width, out, edge_dim=features),
    "GAT, largest loops": lambda width, out, features: GATConv(width, out, edge_dim=features, fill_value="max"),
    "GATv2, summed loops": lambda width, out, features: GATv2Conv(width, out, edge_dim=features, fill_value="add"),
    "GATv2, constant loops": lambda width, out, features: GATv2Conv(
        width, out, 2, False, edge_dim=features, fill_value=0.5
    ),
    "GAT": lambda width, out, features: GATConv(width, out, edge_dim=features, add_self_loops=False),
    "Transformer": lambda width, out, features: TransformerConv(width, out, edge_dim=features),
    "GINE": lambda width, out, features: GINEConv(nn.Linear(width, out), edge_dim=features),
    "GCN": lambda width, out, features: GCNConv(width, out),
    "GraphConv": lambda width, out, features: GraphConv(width, out),
}
MADE = [
    *((layer, made) for layer in ("GAT", "Transformer", "GINE", "GAT, filled loops") for made in ("distances", "ends")),
    ("GATv2, summed loops", "ends"),
    ("GATv2, constant loops", "distances"),
    ("GCN", "weights"),
    ("GraphConv", "weights"),
]


@pytest.mark.parametrize(("layer", "made"), MADE)
def test_edge_features_made_from_the_ends_of_edges(layer: str, made: str) -> None:
    torch.manual_seed(1)
    assert_served(EdgeFeatures(layer, made).double(), graph())


@pytest.mark.parametrize("layer", ["Transformer", "GINE"])
def test_edge_features_made_from_the_ends_of_edges_of_graphs_and_links(layer: str) -> None:
    class OfGraphs(EdgeFeatures):
        def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
            return global_mean_pool(self.net(x, edge_index, pos), batch)

    class OfLinks(EdgeFeatures):
        def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor, edge_label_index: Tensor) -> Tensor:
            z = self.net(x, edge_index, pos)
            return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)

    torch.manual_seed(1)
    assert_served(OfGraphs(layer, "distances").double(), graphs())
    assert_served(OfLinks(layer, "ends").double(), graph())


@pytest.mark.parametrize("read", ["hidden features", "other edges"])
def test_edge_features_that_change_with_an_edge_go_to_copies(read: str) -> None:
    """Exact updates would keep the recorded features of the other edges."""

    class Changing(EdgeFeatures):
        def net(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
            if read == "hidden features":
                hidden = self.first(x, edge_index, self.features(x, edge_index, pos)).relu()
                return self.second(hidden, edge_index, self.features(hidden, edge_index, pos))
            weights = softmax(self.features(x, edge_index, pos), edge_index[1], num_nodes=x.size(0))
            return self.second(self.first(x, edge_index, weights).relu(), edge_index, weights)

    torch.manual_seed(1)
    model, data = Changing("GraphConv", "weights").double().eval(), graph()
    subject = Subject.of_data(model, data)
    pairs = subject_pairs(subject, torch.tensor([2, 11]))
    reason = "outputs of layers at their ends" if read == "hidden features" else "edges outside its attention layers"
    effects = Reducer(subject).record()
    with pytest.warns(UserWarning, match=reason):
        got = effects.reduce(pairs, PROTOCOLS["removal"]).delta_pc
    assert isinstance(effects.engine_for(PROTOCOLS["removal"]), CopiesReducer)
    expected = WholeReducer(subject).record().reduce(pairs, PROTOCOLS["removal"]).delta_pc
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


class Selecting(Two):
    """The outputs of some nodes."""

    def __init__(self, layer: Layer, how: str) -> None:
        super().__init__(layer)
        self.how = how
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor, chosen: Tensor) -> Tensor:
        out = self.net(x, edge_index)
        match self.how:
            case "batch size":
                return out[:7]
            case "mask":
                return out[mask]
            case "index":
                return out[chosen]
            case "index_select":
                return out.index_select(0, chosen)
            case "narrow":
                return out.narrow(0, 3, 9)
            case "the last, then a linear layer":
                return self.head(out[-6:].relu()).log_softmax(-1)
            case "residual":
                return self.head(out[chosen]) + x[chosen, :CLASSES]
            case _:
                raise ValueError(self.how)


SELECTED = {
    "batch size": torch.arange(7),
    "mask": graph().mask.nonzero().view(-1),
    "index": graph().chosen,
    "index_select": graph().chosen,
    "narrow": torch.arange(3, 12),
    "the last, then a linear layer": torch.arange(NODES - 6, NODES),
    "residual": graph().chosen,
}


@pytest.mark.parametrize(
    ("layer", "how"),
    [
        pytest.param(layer, how, marks=() if layer == "GAT" or how == "batch size" else pytest.mark.long)
        for layer in LAYERS
        for how in SELECTED
    ],
)
def test_outputs_of_some_nodes_belong_to_ids_of_the_graph(layer: str, how: str) -> None:
    torch.manual_seed(1)
    model, data = Selecting(LAYERS[layer], how).double(), graph()
    subject = assert_served(model, data)
    assert subject.targets("all").tolist() == SELECTED[how].tolist()
    with pytest.raises(ArgumentError, match="ids of nodes that the model returns"):
        subject.targets([node for node in range(NODES) if node not in SELECTED[how].tolist()][:1])


def test_scores_of_some_nodes_are_those_of_the_same_nodes_among_all() -> None:
    torch.manual_seed(1)
    model, data = Selecting(GATConv, "mask").double().eval(), graph()
    del data.edge_label_index
    every = Two(GATConv).double().eval()
    every.load_state_dict(model.state_dict(), strict=False)
    targets = SELECTED["mask"][:3].tolist()
    part, whole = (
        attree.evaluate(net, data, targets=targets, methods=["gatt", "occlusion"], protocols="removal")
        for net in (model, every)
    )
    pd.testing.assert_frame_equal(part.to_pandas(), whole.to_pandas())


def test_many_selected_nodes_are_found_by_the_index() -> None:
    """More rows than can be examined one by one."""
    nodes = 6000
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.randn(nodes, WIDTH, generator=generator), torch.randint(0, nodes, (2, 9000), generator=generator))
    data.mask = torch.rand(nodes, generator=generator) < 0.9
    data.chosen = torch.arange(3)
    subject = Subject.of_data(Selecting(GATConv, "mask").eval(), data)
    assert torch.equal(subject.targets("all"), data.mask.nonzero().view(-1))


class SelectingTransformer(nn.Module):
    """Every row reads every node, through the attention of the first layer over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (GPSConv(WIDTH, SAGEConv(WIDTH, WIDTH), norm=None) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, nodes: Tensor) -> Tensor:
        return self.head(self.second(self.first(x, edge_index), edge_index))[nodes]


def test_selected_nodes_of_a_graph_transformer_are_found_if_the_level_is_said() -> None:
    torch.manual_seed(1)
    nodes, edges = torch.tensor([7, 2, 5]), torch.stack([torch.arange(9), torch.arange(1, 10)])
    data = Data(torch.randn(10, WIDTH).double(), edges, nodes=nodes)
    model = SelectingTransformer().double().eval()
    with pytest.raises(ArgumentError, match="argument `level` to say which"):
        Subject.of_data(model, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(model, data, methods=["occlusion"], protocols="removal", level="node")
    assert result.targets.tolist() == nodes.tolist()
    pairs, sizes = result.pairs, []
    with torch.no_grad():
        before = model(data.x, edges, nodes).softmax(-1)
        for owner, edge, effect in zip(
            pairs.owner.tolist(), pairs.edges.tolist(), result.reductions["removal"].delta_pc.tolist(), strict=True
        ):
            if edge < 9:
                after = model(data.x, edges[:, torch.arange(9) != edge], nodes).softmax(-1)
                expected = float((before - after)[owner, before[owner].argmax()])
                assert effect == pytest.approx(expected, abs=RESOLUTION)
                sizes.append(abs(expected))
    assert max(sizes) > 1e-3


class TypedSelecting(nn.Module):
    """The seeds of a mini-batch of a heterogeneous graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            HeteroConv({kind: SAGEConv((WIDTH, WIDTH), out) for kind in TYPED_EDGES}) for out in (WIDTH, CLASSES)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        hidden = {kind: x.relu() for kind, x in self.first(x_dict, edge_index_dict).items()}
        return self.second(hidden, edge_index_dict)["item"][:5]


def typed_graph(sizes: dict[str, int]) -> HeteroData:
    generator, data = torch.Generator().manual_seed(0), HeteroData()
    for kind, size in sizes.items():
        data[kind].x = torch.randn(size, WIDTH, generator=generator).double()
    for edge_type in TYPED_EDGES:
        ends = [torch.randint(0, sizes[end], (30,), generator=generator) for end in (edge_type[0], edge_type[2])]
        data[edge_type].edge_index = torch.stack(ends).unique(dim=1)
    return data


def assert_as_whole(subject: Subject, targets: list[int]) -> None:
    pairs = subject_pairs(subject, torch.tensor(targets))
    for name in ("removal", "weight"):
        engines = ExactReducer, WholeReducer
        exact, whole = (engine(subject).record().reduce(pairs, PROTOCOLS[name]).delta_pc for engine in engines)
        torch.testing.assert_close(exact, whole, rtol=0, atol=1e-9)
        assert float(exact.abs().max()) > 1e-3


def test_outputs_of_some_nodes_of_a_type() -> None:
    torch.manual_seed(1)
    data = typed_graph({"user": 12, "item": 9})
    subject = Subject.of_data(TypedSelecting().double().eval(), data, node_type="item")
    assert subject.targets("all").tolist() == list(range(5))
    assert_as_whole(subject, [0, 4])


class OfEdges(Two):
    """One row of outputs for every edge of the data."""

    def __init__(self, layer: Layer, reads_features: bool) -> None:
        super().__init__(layer)
        self.head = nn.Linear(2 * CLASSES + 4 * reads_features, 2)
        self.reads_features = reads_features

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        hidden = self.net(x, edge_index)
        ends = [hidden[edge_index[0]], hidden[edge_index[1]]]
        return self.head(torch.cat([*ends, edge_attr] if self.reads_features else ends, dim=-1))


@pytest.mark.parametrize("reads_features", [False, True])
@pytest.mark.parametrize("layer", list(LAYERS))
def test_one_row_for_every_edge(layer: str, reads_features: bool) -> None:
    """The other edges' rows are those of the data without the edge; its own row is that of a link without an edge."""
    torch.manual_seed(1)
    model, data = OfEdges(LAYERS[layer], reads_features).double().eval(), graph()
    subject = Subject.of_data(model, data)
    assert subject.level == "edge"
    links = torch.tensor([0, 17, 40])
    pairs = subject_pairs(subject, links)
    with no_warnings():
        effects = Reducer(subject).record()
        reductions = {
            name: effects.reduce(pairs, PROTOCOLS[name], with_probability=True) for name in ("removal", "weight")
        }
    assert isinstance(effects.engine, ExactReducer)
    whole = WholeReducer(subject).record().reduce(pairs, PROTOCOLS["weight"], with_probability=True)
    torch.testing.assert_close(reductions["weight"].probability, whole.probability, rtol=0, atol=1e-9)
    got = reductions["removal"].probability
    assert got is not None
    for place in range(len(pairs)):
        edge, link = int(pairs.edges[place]), int(links[pairs.owner[place]])
        if edge >= subject.graph.num_proper_edges:
            continue
        column = (subject.graph.position == edge).nonzero().view(-1)
        changed = without_edge(data, column)
        with torch.no_grad():
            hidden = model.net(changed.x, changed.edge_index)
            ends = [hidden[data.edge_index[0, link]], hidden[data.edge_index[1, link]]]
            row = torch.cat([*ends, data.edge_attr[link]] if reads_features else ends)
            expected = model.head(row).softmax(-1)
            others = model(changed.x, changed.edge_index, changed.edge_attr).softmax(-1)
        torch.testing.assert_close(got[place], expected, rtol=0, atol=1e-9)
        if int(column) != link:
            torch.testing.assert_close(got[place], others[link - int(int(column) < link)], rtol=0, atol=1e-9)
    assert float(got.std(dim=0).max()) > 1e-3


def test_the_own_row_of_a_deleted_edge_is_refused_where_one_pass_cannot_tell_it() -> None:
    torch.manual_seed(1)
    subject = Subject.of_data(OfEdges(GCNConv, False).double().eval(), graph())
    pairs = subject_pairs(subject, torch.tensor([17]))
    with pytest.raises(UnsupportedModelError, match="take the links that it predicts as an argument of their own"):
        WholeReducer(subject).record().reduce(pairs, PROTOCOLS["removal"])


class WithAttributes(nn.Module):
    """Layers with edge features of the data, by default three."""

    def __init__(self, layer: str, depth: int = 3) -> None:
        super().__init__()
        make = WITH_EDGE_FEATURES[layer]
        self.convs = nn.ModuleList(make(WIDTH, WIDTH if k + 1 < depth else CLASSES, 4) for k in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index, edge_attr)
        return x


def with_hubs(data: Data) -> Data:
    """The data with self-loops, an edge twice, a node with one entering edge, one with none, and one with many."""
    edges = data.edge_index[:, (data.edge_index[1] != 3) & (data.edge_index[1] != 4)]
    hub = torch.stack([torch.arange(NODES), torch.full((NODES,), 9)])
    further = torch.tensor([[5, 5, 8, 6], [5, 4, 5, 6]])
    data = copy.copy(data)
    data.edge_index = torch.cat([edges, edges[:, :1], further, hub], dim=1)
    data.edge_attr = torch.randn(data.num_edges, 4, generator=torch.Generator().manual_seed(5)).double()
    return data


@pytest.mark.parametrize("layer", ["GAT, filled loops", "GATv2, summed loops"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_self_loops_that_are_filled_from_the_other_edges_follow_a_deletion(layer: str, is_plain: bool) -> None:
    torch.manual_seed(1)
    subject = assert_served(
        WithAttributes(layer).double(), graph() if is_plain else with_hubs(graph()), targets=[2, 4, 5, 9]
    )
    pairs = subject_pairs(subject, torch.tensor([4, 5, 9]))
    loops = pairs.edges >= subject.graph.num_proper_edges
    assert bool(loops.any())


def test_a_filled_self_loop_that_takes_nearly_all_attention_is_recomputed() -> None:
    """The update formula would lose all digits: the loop's weight grows by many orders of magnitude."""
    torch.manual_seed(1)
    model, data = WithAttributes("GAT, filled loops", 2).double(), graph()
    with torch.no_grad():
        for conv in model.convs:
            conv.att_edge *= 200
    assert_served(model, data)


def test_self_loops_filled_with_the_maximum_go_to_copies() -> None:
    torch.manual_seed(1)
    model = WithAttributes("GAT, largest loops", 2).double().eval()
    subject = Subject.of_data(model, graph())
    pairs = subject_pairs(subject, torch.tensor([2, 11]))
    effects = Reducer(subject).record()
    with pytest.warns(UserWarning, match="reads edges outside its attention layers"):
        got = effects.reduce(pairs, PROTOCOLS["removal"]).delta_pc
    assert isinstance(effects.engine, CopiesReducer)
    expected = WholeReducer(subject).record().reduce(pairs, PROTOCOLS["removal"]).delta_pc
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("is_plain", [True, False])
def test_attention_by_cosines(is_plain: bool) -> None:
    class Cosines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([AGNNConv(), AGNNConv(add_self_loops=False), AGNNConv(requires_grad=False)])
            self.layers[0].beta.data.fill_(2.5)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, edge_index)
            return self.head(x)

    torch.manual_seed(1)
    assert_served(Cosines().double(), graph() if is_plain else with_hubs(graph()))
