"""Layers without attention, alone and mixed with attention layers: effects equal those of a changed graph.

`removal` is compared with deleting the edge from the data, `weight` with a pass in which PyG's own hook sets the edge's
messages to 0 (in attention layers: its weight), and `structure` with a plain walk by the factors of the definitions.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import (
    GCN,
    GIN,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    LEConv,
    LGConv,
    MessagePassing,
    MFConv,
    NNConv,
    PNAConv,
    ResGatedGraphConv,
    SAGEConv,
    SGConv,
    global_mean_pool,
    to_hetero,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import attree
from attree.attention import capture_attention
from attree.attribution import subject_pairs
from attree.defaults import RESOLUTION
from attree.errors import UnsupportedModelError
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reducer
from attree.subject import Subject
from reference import attribution_by_flows

NODES, CHANNELS = 14, 6
X = torch.randn(NODES, CHANNELS, generator=torch.Generator().manual_seed(0)).double()
EDGES = torch.randint(0, NODES, (2, 40), generator=torch.Generator().manual_seed(1))
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
ATTRIBUTES = torch.randn(EDGES.shape[1], CHANNELS, generator=torch.Generator().manual_seed(2)).double()
TARGETS = [2, 5, 11]


class UsersConv(MessagePassing):
    """A user's layer: messages that depend on both ends, added up and scaled by the degree."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(2 * width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.lin(torch.cat([x_i, x_j], dim=-1)).tanh()


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out))


LAYERS: dict[str, Callable[[int, int], MessagePassing]] = {
    "GCN": GCNConv,
    "SAGE": SAGEConv,
    "SAGE, max": lambda width, out: SAGEConv(width, out, aggr="max"),
    "SAGE, mean and max": lambda width, out: SAGEConv(width, out, aggr=["mean", "max"]),
    "GIN": lambda width, out: GINConv(mlp(width, out)),
    "GraphConv": GraphConv,
    "PNA": lambda width, out: PNAConv(
        width, out, ["mean", "max", "std"], ["identity", "amplification"], torch.tensor([1, 4, 5, 4, 2])
    ),
    "EdgeConv": lambda width, out: EdgeConv(mlp(2 * width, out)),
    "ResGatedGraphConv": ResGatedGraphConv,
    "a user's": UsersConv,
}
WITH_ATTRIBUTES: dict[str, Callable[[int, int], MessagePassing]] = {
    "GINE": lambda width, out: GINEConv(mlp(width, out), edge_dim=CHANNELS),
    "NNConv": lambda width, out: NNConv(width, out, nn.Linear(CHANNELS, width * out)),
    "GAT, mean-filled loops": lambda width, out: GATConv(width, out, edge_dim=CHANNELS),
}


MIXED = {"GCN": GCNConv, "GAT": GATConv, "SAGE": SAGEConv}
ORDERS = [order for size in (2, 3) for order in itertools.product(MIXED, repeat=size) if len(set(order)) > 1]


class Net(nn.Module):
    """A stack of layers, with ReLU in between."""

    def __init__(self, *convs: MessagePassing) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index, *(() if edge_attr is None else (edge_attr,)))
        return x


def net_of(makers: list[Callable[[int, int], MessagePassing]]) -> Net:
    torch.manual_seed(3)
    widths = [CHANNELS] * len(makers) + [3]
    convs = [make(width, out) for make, width, out in zip(makers, widths, widths[1:], strict=False)]
    return Net(*convs).double().eval()


def evaluated(model: nn.Module, data: Data, **options: Any) -> attree.Evaluation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attree.evaluate(model, data, targets=TARGETS, protocols=["removal", "weight"], **options)


@torch.no_grad()
def by_deletion(model: nn.Module, data: Data, edge: int) -> Tensor:
    keep = torch.arange(data.num_edges) != edge
    attributes = () if data.edge_attr is None else (data.edge_attr[keep],)
    return model(data.x, data.edge_index[:, keep], *attributes).softmax(-1)


@torch.no_grad()
def by_silence(model: nn.Module, data: Data, edge: int) -> Tensor:
    """With PyG's own hooks: the message of an edge is 0 in every layer."""
    source, destination = data.edge_index[:, edge].tolist()
    edges: dict[nn.Module, Tensor] = {}

    def see(conv: MessagePassing, inputs: Any) -> None:
        edges[conv] = inputs[0]

    def silence(conv: MessagePassing, inputs: Any, messages: Tensor) -> Tensor:
        is_edge = (edges[conv][0] == source) & (edges[conv][1] == destination)
        return messages.masked_fill(is_edge.view(-1, *[1] * (messages.dim() - 1)), 0.0)

    handles = []
    for conv in model.modules():
        if isinstance(conv, MessagePassing):
            handles += [conv.register_propagate_forward_pre_hook(see), conv.register_message_forward_hook(silence)]
    attributes = () if data.edge_attr is None else (data.edge_attr,)
    try:
        return model(data.x, data.edge_index, *attributes).softmax(-1)
    finally:
        for handle in handles:
            handle.remove()


def check_effects(model: nn.Module, data: Data, **options: Any) -> attree.Evaluation:
    """Compare all effects of proper edges; they are multiples of the resolution, so off by at most half of it."""
    result = evaluated(model, data, **options)
    attributes = () if data.edge_attr is None else (data.edge_attr,)
    with torch.no_grad():
        before = model(data.x, data.edge_index, *attributes).softmax(-1)
    predicted, pairs, sizes = before.argmax(-1), result.pairs, []
    graph = pairs.graph if hasattr(pairs, "graph") else result.attention.graph
    for protocol, changed in (("removal", by_deletion), ("weight", by_silence)):
        after = [changed(model, data, edge) for edge in range(data.num_edges)]
        for owner, edge, effect in zip(
            pairs.owner.tolist(), pairs.edges.tolist(), result.reductions[protocol].delta_pc.tolist(), strict=True
        ):
            if edge < graph.num_proper_edges:
                target = int(pairs.targets[owner])
                expected = float(before[target, predicted[target]] - after[edge][target, predicted[target]])
                assert effect == pytest.approx(expected, abs=RESOLUTION), (protocol, target, edge)
                sizes.append(abs(expected))
    assert max(sizes) > 1e-3
    return result


def exact_and_copied(model: nn.Module, data: Data | HeteroData, protocol: str, **options: Any) -> tuple[Tensor, Tensor]:
    """Effects on all pairs of all targets by exact updates, which must delete as the data would, and on copies."""
    subject = Subject.of_data(model, data, **options)
    pairs = subject_pairs(subject, torch.arange(subject.num_targets))
    exact = ExactReducer(subject).record()
    assert exact.deletes_data()
    copied = CopiesReducer(subject).record()
    reductions = [recorded.reduce(pairs, PROTOCOLS[protocol]) for recorded in (exact, copied)]
    torch.testing.assert_close(reductions[0].delta_ne, reductions[1].delta_ne, rtol=0, atol=2 * RESOLUTION)
    assert exact.reach_of(PROTOCOLS[protocol]) <= copied.reach
    effects = [reduction.delta_pc for reduction in reductions]
    torch.testing.assert_close(*effects, rtol=0, atol=2 * RESOLUTION)
    return effects[0], effects[1]


LOOPED = torch.cat([EDGES, torch.tensor([[3, 5], [3, 5]])], dim=1)


@pytest.mark.parametrize("protocol", ["removal", "weight"])
@pytest.mark.parametrize("name", [*LAYERS, *list(WITH_ATTRIBUTES)[:2]])
def test_exact_updates_of_layers_without_attention(name: str, protocol: str) -> None:
    """On a graph with self-loops of its own; those that layers add are reduced too."""
    if name in LAYERS:
        model, data = net_of([LAYERS[name]] * 2), Data(X, LOOPED)
    else:
        model, data = net_of([WITH_ATTRIBUTES[name]] * 2), Data(X, EDGES, ATTRIBUTES)
    exact, _ = exact_and_copied(model, data, protocol)
    assert float(exact.abs().max()) > 1e-3


WEIGHTED: dict[str, Callable[[int, int], MessagePassing]] = {
    "GCN": lambda width, out: GCNConv(width, out),
    "GCN, improved": lambda width, out: GCNConv(width, out, improved=True),
    "GCN without loops": lambda width, out: GCNConv(width, out, add_self_loops=False),
    "GCN, not normalised": lambda width, out: GCNConv(width, out, normalize=False),
    "GraphConv, mean": lambda width, out: GraphConv(width, out, aggr="mean"),
    "SG": lambda width, out: SGConv(width, out),
}


class WeightedNet(Net):
    """A stack of layers that take edge weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:  # type: ignore[override]
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index, edge_weight)
        return x


@pytest.mark.parametrize("has_loops", [False, True])
@pytest.mark.parametrize("name", list(WEIGHTED))
def test_exact_updates_with_edge_weights(name: str, has_loops: bool) -> None:
    torch.manual_seed(3)
    model = WeightedNet(WEIGHTED[name](CHANNELS, CHANNELS), WEIGHTED[name](CHANNELS, 3)).double().eval()
    edges = LOOPED if has_loops else EDGES
    weight = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(5)).double() + 0.5
    for protocol in ("removal", "weight"):
        exact, _ = exact_and_copied(model, Data(X, edges, edge_weight=weight), protocol)
        assert float(exact.abs().max()) > 1e-3


@pytest.mark.parametrize(
    "order", [pytest.param(order, marks=pytest.mark.long if len(order) > 2 else ()) for order in ORDERS], ids="-".join
)
def test_exact_updates_of_mixed_networks(order: tuple[str, ...]) -> None:
    model = net_of([MIXED[name] for name in order])
    for protocol in ("removal", "weight", "coefficient")[: 3 if "GAT" in order else 2]:
        exact_and_copied(model, Data(X, LOOPED), protocol)


class Initial(nn.Module):
    """GCN2: each layer also reads the first features, after its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.head = nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, 3)
        self.convs = nn.ModuleList([GCN2Conv(CHANNELS, alpha=0.2, theta=0.5, layer=number + 1) for number in range(3)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = h = self.lin(x).relu()
        for conv in self.convs:
            h = conv(h, first, edge_index).relu()
        return self.head(h)


class Keeping(SAGEConv):
    """A layer that keeps what it was given."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        self.kept = x
        return super().forward(x, edge_index)


class Kept(nn.Module):
    """Reads what a layer has kept, after it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Keeping(CHANNELS, CHANNELS), Keeping(CHANNELS, 3)
        self.head = nn.Linear(CHANNELS, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.second(self.first(x, edge_index).relu(), edge_index)
        return out + self.head(self.second.kept + self.first.kept)


JOINED: dict[str, Callable[[], nn.Module]] = {
    "GCN, concatenated": lambda: GCN(CHANNELS, 5, 3, 3, jk="cat"),
    "GCN, batch norm, maximum": lambda: GCN(CHANNELS, 5, 3, 3, jk="max", norm="batch"),
    "GraphSAGE, concatenated": lambda: GraphSAGE(CHANNELS, 5, 3, 3, jk="cat"),
    "GIN, last of 3": lambda: GIN(CHANNELS, 5, 3, 3),
    "SAGE, projected and normalised": lambda: net_of(
        [lambda width, out: SAGEConv(width, out, normalize=True, project=True)] * 2
    ),
    "GraphConv, mean, then GCN": lambda: net_of([lambda width, out: GraphConv(width, out, aggr="mean"), GCNConv]),
    "GCN, then SAGE, then GIN": lambda: net_of([GCNConv, SAGEConv, LAYERS["GIN"]]),
    "LEConv": lambda: net_of([LEConv] * 2),
    "GCN2": Initial,
}
"""Networks whose layers read their nodes' own features after the messages, or whose layers meet later."""


@pytest.mark.parametrize("protocol", ["removal", "weight"])
@pytest.mark.parametrize("name", list(JOINED))
def test_exact_updates_where_layers_read_their_own_nodes(name: str, protocol: str) -> None:
    torch.manual_seed(2)
    exact, _ = exact_and_copied(JOINED[name]().double().eval(), Data(X, LOOPED), protocol)
    assert float(exact.abs().max()) > 1e-3


def test_a_layer_that_keeps_its_features_is_never_wrong() -> None:
    torch.manual_seed(2)
    subject = Subject.of_data(Kept().double().eval(), Data(X, EDGES))
    pairs = subject_pairs(subject, torch.arange(NODES))
    effects = []
    for reducer in (Reducer(subject), Reducer(subject, engines=(CopiesReducer,))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            effects.append(reducer.record().reduce(pairs, PROTOCOLS["removal"]).delta_pc)
    torch.testing.assert_close(*effects, rtol=0, atol=2 * RESOLUTION)


@pytest.mark.parametrize("protocol", ["removal", "weight"])
def test_exact_updates_of_graphs_and_of_links(protocol: str) -> None:
    class OfGraphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GINConv(mlp(CHANNELS, CHANNELS)), GCNConv(CHANNELS, CHANNELS)
            self.head = nn.Linear(CHANNELS, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.head(global_mean_pool(self.second(self.first(x, edge_index).relu(), edge_index), batch))

    class OfLinks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(CHANNELS, CHANNELS), SAGEConv(CHANNELS, CHANNELS)

        def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
            z = self.second(self.first(x, edge_index).relu(), edge_index)
            return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)

    torch.manual_seed(0)
    graphs = Batch.from_data_list([Data(X + number, EDGES) for number in range(3)])
    exact_and_copied(OfGraphs().double().eval(), graphs, protocol)
    links = torch.randint(0, NODES, (2, 6), generator=torch.Generator().manual_seed(4))
    exact_and_copied(OfLinks().double().eval(), Data(X, LOOPED, edge_label_index=links), protocol)


@pytest.mark.parametrize("protocol", ["removal", "weight", "coefficient"])
@pytest.mark.parametrize("kind", ["SAGE", "SAGE, max", "mixed", "to_hetero"])
def test_exact_updates_of_several_types(kind: str, protocol: str) -> None:
    edge_types = [("a", "to", "b"), ("b", "of", "a"), ("a", "cites", "a")]

    def layer(edge_type: tuple[str, str, str], out: int) -> MessagePassing:
        if kind == "mixed" and edge_type[1] == "of":
            return GATConv((CHANNELS, CHANNELS), out, add_self_loops=False)
        return SAGEConv((CHANNELS, CHANNELS), out, aggr="max" if kind == "SAGE, max" else "mean")

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv(CHANNELS, CHANNELS), GATConv(CHANNELS, 3, add_self_loops=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = HeteroConv({edge_type: layer(edge_type, CHANNELS) for edge_type in edge_types})
            self.second = HeteroConv({edge_type: layer(edge_type, 3) for edge_type in edge_types})
            self.made = to_hetero(Stack(), (["a", "b"], edge_types))

        def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
            if kind == "to_hetero":
                return self.made(x_dict, edge_index_dict)["a"]
            hidden = {key: x.relu() for key, x in self.first(x_dict, edge_index_dict).items()}
            return self.second(hidden, edge_index_dict)["a"]

    torch.manual_seed(0)
    data, model = HeteroData(), Typed().double().eval()
    data["a"].x, data["b"].x = X, X[:8]
    data["a", "to", "b"].edge_index = torch.stack([EDGES[0], EDGES[1] % 8]).unique(dim=1)
    data["b", "of", "a"].edge_index = torch.stack([EDGES[1] % 8, EDGES[0]]).unique(dim=1)
    data["a", "cites", "a"].edge_index = LOOPED
    exact_and_copied(model, data, protocol)


class InPlace(nn.Module):
    """Sums of the model's input that are changed in place, a residual, and one layer that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lin = GINConv(nn.Identity()), nn.Linear(CHANNELS, CHANNELS)
        self.shared, self.last = GCNConv(CHANNELS, CHANNELS), SAGEConv(CHANNELS, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index)
        h.add_(1.0)
        h = self.lin(h).relu_()
        h += x
        for _ in range(3):
            h = self.shared(h, edge_index).tanh()
        return self.last(h, edge_index)


GRAPHS = {
    "in place": EDGES,
    "duplicate edges": torch.cat([EDGES, EDGES[:, :5]], dim=1),
    "one edge": EDGES[:, :1],
    "only self-loops": torch.arange(4).expand(2, -1),
}


@pytest.mark.parametrize("graph", list(GRAPHS))
def test_exact_updates_of_a_network_that_writes_in_place(graph: str) -> None:
    torch.manual_seed(6)
    model = InPlace().double().eval()
    for protocol in ("removal", "weight"):
        exact_and_copied(model, Data(X, GRAPHS[graph]), protocol)


class Divided(UsersConv):
    """A layer that divides by the number of edges: each edge changes all nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) / max(edge_index.shape[1], 1)


class DividedByDegree(MessagePassing):
    """A mean that the layer makes from weights of edges: each edge changes the weights of the others."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        degree = x.new_zeros(x.shape[0]).index_add_(0, edge_index[1], x.new_ones(edge_index.shape[1]))
        return self.propagate(edge_index, x=self.lin(x), weight=(1 / degree)[edge_index[1]])

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight.unsqueeze(1) * x_j


BY_OTHER_ENGINES: dict[str, Callable[[int, int], MessagePassing]] = {
    "divided by degrees": DividedByDegree,
    "divided by the number of edges": Divided,
    "MF": MFConv,
}


@pytest.mark.parametrize("name", list(BY_OTHER_ENGINES))
def test_exact_updates_give_up_where_they_would_not_delete_as_the_data(name: str) -> None:
    model = net_of([SAGEConv, BY_OTHER_ENGINES[name]])
    recorded = Reducer(Subject.of_data(model, Data(X, EDGES))).record()
    assert not isinstance(recorded.engine_for(PROTOCOLS["removal"]), ExactReducer)
    check_effects(model, Data(X, EDGES), methods=["structure"])


@pytest.mark.parametrize("name", list(LAYERS))
def test_networks_without_attention(name: str) -> None:
    result = check_effects(net_of([LAYERS[name]] * 2), Data(X, EDGES))
    assert set(result.pair_scores) == {"structure", "occlusion", "message_gradient", "saliency", "random"}
    removed = result.reductions["removal"].delta_pc
    torch.testing.assert_close(result.pair_scores["occlusion"], removed, check_dtype=False)


def test_a_layer_that_keeps_its_first_graph_sees_the_changed_one() -> None:
    cached = net_of([lambda width, out: GCNConv(width, out, cached=True)] * 2)
    cached(X, EDGES)
    expected, result = (evaluated(model, Data(X, EDGES)) for model in (net_of([GCNConv] * 2), cached))
    assert torch.equal(result.reductions["removal"].delta_pc, expected.reductions["removal"].delta_pc)
    assert cached.convs[0]._cached_edge_index is not None  # the user's own layer is as it was


@pytest.mark.parametrize("name", list(WITH_ATTRIBUTES))
def test_layers_with_edge_attributes(name: str) -> None:
    check_effects(net_of([WITH_ATTRIBUTES[name]] * 2), Data(X, EDGES, ATTRIBUTES), methods=["structure"])


@pytest.mark.parametrize("order", [order for order in ORDERS if "GAT" in order], ids="-".join)
def test_mixed_networks_in_every_order(order: tuple[str, ...]) -> None:
    model = net_of([MIXED[name] for name in order])
    result = check_effects(model, Data(X, EDGES), methods=["gatt", "avgatt", "uniform", "structure"])
    assert result.attention.attends == tuple(name == "GAT" for name in order)


def factors_of(name: str, attention: Tensor | None) -> Tensor:
    """Factors of all edges and loops by their definitions, in the order of the looped edge list."""
    edges = torch.cat([EDGES, torch.arange(NODES).expand(2, -1)], dim=1)
    if name == "GAT":
        assert attention is not None
        return attention.mean(dim=1)
    if name == "GCN":
        return gcn_norm(EDGES, None, NODES, dtype=torch.float64)[1]
    is_loop = edges[0] == edges[1]
    degree = torch.zeros(NODES).double().index_add_(0, EDGES[1], torch.ones(EDGES.shape[1]).double())
    return torch.where(is_loop, 0.0, 1 / degree.clamp(min=1)[edges[1]] if name == "SAGE" else 1.0)


WALKS = [("GCN", "GCN"), ("SAGE", "GIN"), ("GCN", "GAT"), ("GAT", "SAGE", "GCN")]


@pytest.mark.parametrize("order", WALKS, ids="-".join)
def test_walks_are_those_of_the_factors_of_the_definitions(order: tuple[str, ...]) -> None:
    model = net_of([LAYERS.get(name, GATConv) for name in order])
    attention = capture_attention(model, X, EDGES)
    factors = [factors_of(name, weights) for name, weights in zip(order, attention.weights, strict=True)]
    method = attree.GAtt() if "GAT" in order else attree.attribution.Structure()
    scores = method.attribute(attention, TARGETS)
    edges = torch.cat([EDGES, torch.arange(NODES).expand(2, -1)], dim=1)
    columns = [(source, destination) for source, destination in edges.t().tolist()]
    used = [[factor != 0 for factor in layer.tolist()] for layer in factors]
    for target in TARGETS:
        expected = attribution_by_flows(columns, [layer.tolist() for layer in factors], target, used)["gatt"]
        dense = torch.zeros(len(columns)).double()
        dense[list(expected)] = torch.tensor(list(expected.values())).double()
        torch.testing.assert_close(scores.dense(target), dense)


@pytest.mark.parametrize("method", ["gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform"])
def test_methods_of_attention_are_refused_by_name(method: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"none of its layers has attention\..*occlusion, structure"):
        attree.evaluate(net_of([GCNConv] * 2), Data(X, EDGES), targets=[0], methods=[method])


def test_the_protocol_of_scores_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`coefficient`, but Net has none: use `removal` or `weight`"):
        attree.evaluate(net_of([GCNConv] * 2), Data(X, EDGES), targets=[0], protocols=["coefficient"])


def test_a_prediction_of_any_network_is_explained() -> None:
    text = str(attree.explain(net_of([GCNConv, SAGEConv]), Data(X, EDGES), 5))
    assert "The network predicts class" in text
    assert "path" not in text


def test_nothing_is_said_of_attention_where_there_is_none() -> None:
    model = net_of([GCNConv, SAGEConv])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = attree.evaluate(model, Data(X, EDGES), targets=TARGETS)
        explanation = str(attree.explain(model, Data(X, EDGES), 5))
    texts = [str(result), str(result.table("full")), str(result.verdict), explanation]
    texts += [str(warning.message) for warning in caught]
    assert any("GCN" in text for text in texts)  # the warning about edges beyond the tree
    for text in texts:
        assert "attention" not in text.lower().replace("without attention", ""), text


def test_one_relation_with_attention_and_one_without() -> None:
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            convs = {
                ("a", "to", "b"): GATv2Conv((CHANNELS, CHANNELS), 3, add_self_loops=False),
                ("b", "to", "b"): SAGEConv((CHANNELS, CHANNELS), 3),
            }
            self.conv = HeteroConv(convs, aggr="sum")

        def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
            return self.conv(x_dict, edge_index_dict)["b"]

    torch.manual_seed(0)
    data, model = HeteroData(), Typed().double().eval()
    data["a"].x, data["b"].x = X[:8], X
    data["a", "to", "b"].edge_index = torch.stack([EDGES[0] % 8, EDGES[1]]).unique(dim=1)
    data["b", "to", "b"].edge_index = EDGES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(model, data, targets=TARGETS, protocols=["removal"], methods=["gatt"])
    types = result.attention.graph.types
    assert types is not None
    with torch.no_grad():
        before = model(data.x_dict, data.edge_index_dict).softmax(-1)
        for owner, edge, effect in zip(
            result.pairs.owner.tolist(),
            result.pairs.edges.tolist(),
            result.reductions["removal"].delta_pc.tolist(),
            strict=True,
        ):
            number = int(types.type_of_edges(torch.tensor([edge]))[0])
            kind = types.edge_types[number]
            keep = torch.arange(data[kind].num_edges) != edge - types.edges(kind).start
            edges = {**data.edge_index_dict, kind: data[kind].edge_index[:, keep]}
            target = int(result.pairs.targets[owner])
            predicted = int(before[target].argmax())
            after = model(data.x_dict, edges).softmax(-1)
            assert effect == pytest.approx(float(before[target, predicted] - after[target, predicted]), abs=RESOLUTION)


class Lights(nn.Module):
    """LightGCN's layer has no weights: all is in the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = LGConv(), nn.Linear(CHANNELS, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(self.conv(x, edge_index), edge_index))


def test_lightgcn() -> None:
    torch.manual_seed(0)
    check_effects(Lights().double().eval(), Data(X, EDGES))


class Scaled(nn.Module):
    """Layers without weights, whose outputs are all scaled by the same number, with and without the start."""

    def __init__(self, adds_start: bool) -> None:
        super().__init__()
        self.lin, self.adds_start = nn.Linear(CHANNELS, 3), adds_start
        self.convs = nn.ModuleList(LGConv() for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        start = h = self.lin(x)
        for conv in self.convs:
            h = conv(h, edge_index) * 0.9
            h = h + 0.1 * start if self.adds_start else h
        return h


@pytest.mark.parametrize("protocol", ["removal", "weight"])
@pytest.mark.parametrize("adds_start", [False, True])
def test_exact_updates_keep_the_same_map_of_several_layers_apart(adds_start: bool, protocol: str) -> None:
    torch.manual_seed(0)
    exact_and_copied(Scaled(adds_start).double().eval(), Data(X, EDGES), protocol)
