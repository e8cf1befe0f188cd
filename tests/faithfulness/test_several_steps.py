"""Layers that pass messages several times a call: each time is a step of the computation tree.

`removal` is compared with deleting the edge from the data, `weight` with silencing its messages by PyG's own hook, and
`structure` with a plain walk along every flow by the factors of the definitions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    ARMAConv,
    ChebConv,
    FiLMConv,
    GATConv,
    GatedGraphConv,
    MessagePassing,
    MixHopConv,
    RGCNConv,
    SGConv,
    SSGConv,
    TAGConv,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import get_laplacian
from torch_geometric.utils import softmax as pyg_softmax

import attree
from attree.attention import capture_attention
from attree.attribution import Structure
from attree.defaults import RESOLUTION
from attree.subject import Subject
from reference import Call, gatt_by_calls

NODES, CHANNELS = 12, 4
X = torch.randn(NODES, CHANNELS, generator=torch.Generator().manual_seed(0)).double()
EDGES = torch.randint(0, NODES, (2, 30), generator=torch.Generator().manual_seed(1))
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
KINDS = torch.arange(EDGES.shape[1]) % 3
TARGETS = [2, 5, 11]


class Diffused(MessagePassing):
    """One attention of a user, along which states pass messages three times."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin, self.score = nn.Linear(width, out), nn.Linear(2 * out, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = start = self.lin(x)
        ends = torch.cat([h[edge_index[0]], h[edge_index[1]]], dim=1)
        alpha = pyg_softmax(self.score(ends).squeeze(1), edge_index[1], num_nodes=x.shape[0])
        for _ in range(3):
            h = 0.8 * self.propagate(edge_index, h=h, alpha=alpha) + 0.2 * start
        return h

    def message(self, h_j: Tensor, alpha: Tensor) -> Tensor:
        return alpha.unsqueeze(1) * h_j


Maker = Callable[[int, int], nn.Module]

CONVS: dict[str, Maker] = {
    "TAG": lambda width, out: TAGConv(width, out, K=2),
    "Cheb": lambda width, out: ChebConv(width, out, 3),
    "SG": lambda width, out: SGConv(width, out, K=2),
    "SSG": lambda width, out: SSGConv(width, out, alpha=0.3, K=2),
    "ARMA": lambda width, out: ARMAConv(width, out, num_stacks=2, num_layers=2),
    "GatedGraph": lambda width, out: GatedGraphConv(out, 2),
    "attention, diffused": Diffused,
}
OF_KINDS: dict[str, Maker] = {}


class Net(nn.Module):
    """Layers, each followed by tanh, and a linear map."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs, self.head = nn.ModuleList(convs), nn.Linear(CHANNELS, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor | None = None) -> Tensor:
        for conv in self.convs:
            takes = isinstance(conv, RGCNConv | FiLMConv)
            x = conv(x, edge_index, edge_type) if takes else conv(x, edge_index)
            x = x.tanh()
        return self.head(x)


class Propagated(nn.Module):
    """APPNP after a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.prop = nn.Linear(CHANNELS, 3), APPNP(3, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.prop(self.lin(x), edge_index)


class Hops(nn.Module):
    """MixHop: powers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = MixHopConv(CHANNELS, CHANNELS, [0, 1, 2]), nn.Linear(3 * CHANNELS, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index).tanh())


NETS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda make=make: Net(make(CHANNELS, CHANNELS)) for name, make in (CONVS | OF_KINDS).items()},
    "APPNP": Propagated,
    "MixHop": Hops,
    "TAG, then GAT": lambda: Net(TAGConv(CHANNELS, CHANNELS, K=2), GATConv(CHANNELS, CHANNELS)),
    "GAT, then SG": lambda: Net(GATConv(CHANNELS, CHANNELS), SGConv(CHANNELS, CHANNELS, K=2)),
}


def made(name: str) -> tuple[nn.Module, Data]:
    torch.manual_seed(3)
    model = NETS[name]().double().eval()
    return model, Data(X, EDGES, edge_type=KINDS)


def output(model: nn.Module, data: Data) -> Tensor:
    kinds = (data.edge_type,) if isinstance(model, Net) else ()
    return model(data.x, data.edge_index, *kinds).softmax(-1)


@torch.no_grad()
def by_deletion(model: nn.Module, data: Data, edge: int) -> Tensor:
    keep = torch.arange(data.num_edges) != edge
    return output(model, Data(data.x, data.edge_index[:, keep], edge_type=data.edge_type[keep]))


@torch.no_grad()
def by_silence(model: nn.Module, data: Data, edge: int) -> Tensor:
    """With PyG's own hooks: the messages of an edge are 0 in every step."""
    source, destination = data.edge_index[:, edge].tolist()
    edges: dict[nn.Module, Tensor] = {}

    def see(conv: MessagePassing, inputs: Any) -> None:
        edges[conv] = inputs[0]

    def silence(conv: MessagePassing, inputs: Any, messages: Tensor) -> Tensor:
        is_edge = (edges[conv][0] == source) & (edges[conv][1] == destination)
        shape = [1] * messages.dim()
        shape[conv.node_dim] = -1
        return messages.masked_fill(is_edge.view(shape), 0.0)

    handles = []
    for conv in model.modules():
        if isinstance(conv, MessagePassing):
            handles += [conv.register_propagate_forward_pre_hook(see), conv.register_message_forward_hook(silence)]
    try:
        return output(model, data)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", list(NETS))
def test_effects_are_those_of_the_changed_graph(name: str) -> None:
    model, data = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(model, data, targets=TARGETS, protocols=["removal", "weight"], methods=["structure"])
    with torch.no_grad():
        before = output(model, data)
    predicted, pairs, sizes = before.argmax(-1), result.pairs, []
    for protocol, changed in (("removal", by_deletion), ("weight", by_silence)):
        after = [changed(model, data, edge) for edge in range(data.num_edges)]
        effects = result.reductions[protocol].delta_pc.tolist()
        listed = set()
        for owner, edge, effect in zip(pairs.owner.tolist(), pairs.edges.tolist(), effects, strict=True):
            if edge < EDGES.shape[1]:
                target = int(pairs.targets[owner])
                expected = float(before[target, predicted[target]] - after[edge][target, predicted[target]])
                assert effect == pytest.approx(expected, abs=RESOLUTION), (protocol, target, edge)
                sizes.append(abs(expected))
                listed.add((target, edge))
        if protocol == "weight":  # no other edge has an effect
            for target in TARGETS:
                for edge in set(range(EDGES.shape[1])) - {edge for node, edge in listed if node == target}:
                    assert torch.allclose(after[edge][target], before[target], atol=RESOLUTION, rtol=0)
    assert max(sizes) > 1e-3


LOOPED = torch.cat([EDGES, torch.arange(NODES).expand(2, -1)], dim=1)


def call(factors: Tensor) -> Call:
    """A call along all edges, with these factors; edges of factor 0 are not used."""
    ends = zip(LOOPED.t().tolist(), factors.tolist(), strict=True)
    return [
        (("n", source), ("n", destination), ("e", number), factor)
        for number, ((source, destination), factor) in enumerate(ends)
        if factor != 0
    ]


def of_kind(kind: int) -> Tensor:
    """The factors of a mean over the edges of one kind that enter a node."""
    is_kind = kind == KINDS
    count = torch.zeros(NODES).double().index_add_(0, EDGES[1], is_kind.double())
    return torch.cat([is_kind / count.clamp(min=1)[EDGES[1]], torch.zeros(NODES)]).double()


def gcn(add_self_loops: bool = True) -> Tensor:
    """The normalisation of a GCN."""
    norm = gcn_norm(EDGES, None, NODES, add_self_loops=add_self_loops, dtype=torch.float64)[1]
    return norm if add_self_loops else torch.cat([norm, torch.zeros(NODES).double()])


def laplacian() -> Tensor:
    edges, weight = get_laplacian(EDGES, None, "sym", torch.float64, NODES)
    assert torch.equal(edges, LOOPED)
    return torch.where(edges[0] == edges[1], weight - 1, weight)


Walk = tuple[dict[str, Call], dict[str, list[tuple[str, float]]], list[tuple[str, float]]]


def chain(*factors: Tensor) -> Walk:
    calls = {str(number): call(weights) for number, weights in enumerate(factors)}
    return calls, {str(n): [(str(n - 1), 1.0)] for n in range(1, len(factors))}, [(str(len(factors) - 1), 1.0)]


def side_by_side(*layers: list[Tensor]) -> Walk:
    calls = {f"{layer}{n}": call(weights) for layer, parts in enumerate(layers) for n, weights in enumerate(parts)}
    fed = {
        f"{layer}{n}": [(f"{layer - 1}{before}", 1.0) for before in range(len(layers[layer - 1]))]
        for layer in range(1, len(layers))
        for n in range(len(layers[layer]))
    }
    return calls, fed, [(f"{len(layers) - 1}{n}", 1.0) for n in range(len(layers[-1]))]


WALKS: dict[str, Callable[[], Walk]] = {
    "TAG": lambda: chain(gcn(False), gcn(False)),
    "Cheb": lambda: chain(laplacian(), laplacian()),
    "SG": lambda: chain(gcn(), gcn()),
    "SSG": lambda: chain(gcn(), gcn()),
    "APPNP": lambda: chain(gcn(), gcn(), gcn()),
    "MixHop": lambda: chain(gcn(), gcn()),
    "ARMA": lambda: chain(gcn(False), gcn(False)),
}


@pytest.mark.parametrize("name", list(WALKS))
def test_structure_is_a_plain_walk(name: str) -> None:
    model, data = made(name)
    subject = Subject.of_data(model, data)
    scores = Structure().attribute(subject, TARGETS)
    calls, fed_by, outputs = WALKS[name]()
    for target in TARGETS:
        expected = gatt_by_calls(calls, fed_by, outputs, [(("n", target), 1.0)])
        dense = torch.zeros(LOOPED.shape[1]).double()
        dense[[number for _, number in expected]] = torch.tensor(list(expected.values())).double()
        torch.testing.assert_close(scores.dense(target).double(), dense)


def test_steps_of_one_attention_have_its_weights() -> None:
    model, _ = made("attention, diffused")
    attention = capture_attention(model, X, EDGES)
    conv = model.convs[0]
    with torch.no_grad():
        h = conv.lin(X)
        score = conv.score(torch.cat([h[EDGES[0]], h[EDGES[1]]], dim=1)).squeeze(1)
        alpha = pyg_softmax(score, EDGES[1], num_nodes=NODES)
    assert attention.num_layers == 3
    assert attention.has_attention
    for weights in attention.weights:
        torch.testing.assert_close(weights[: EDGES.shape[1], 0], alpha)
