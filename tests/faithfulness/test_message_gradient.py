"""The message gradient against derivatives along the straight line to the reduced weights, on dense matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv

import attree
from attree.defaults import RESOLUTION

NODES, CHANNELS, TARGETS = 10, 5, [1, 4, 8]
X = torch.randn(NODES, CHANNELS, generator=torch.Generator().manual_seed(0)).double()
EDGES = torch.randint(0, NODES, (2, 30), generator=torch.Generator().manual_seed(1))
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
STEP = 1e-6


def gin(width: int, out: int) -> MessagePassing:
    return GINConv(nn.Sequential(nn.Linear(width, out), nn.Tanh(), nn.Linear(out, out)))


LAYERS: dict[str, Callable[[int, int], MessagePassing]] = {"GCN": GCNConv, "SAGE": SAGEConv, "GIN": gin}


def matrix(name: str, edges: Tensor) -> Tensor:
    """The weights of messages, [destination, source], by the definitions of the layers."""
    adjacency = torch.zeros(NODES, NODES).double().index_put_((edges[1], edges[0]), torch.ones(()).double())
    if name == "GCN":
        adjacency = adjacency + torch.eye(NODES).double()
        scale = adjacency.sum(1).rsqrt()
        return scale.unsqueeze(1) * adjacency * scale
    return adjacency / adjacency.sum(1, keepdim=True).clamp(min=1) if name == "SAGE" else adjacency


def dense(name: str, conv: MessagePassing, weights: Tensor, x: Tensor) -> Tensor:
    """A layer with a dense matrix of weights."""
    if name == "GCN":
        return weights @ conv.lin(x) + conv.bias
    if name == "SAGE":
        return conv.lin_l(weights @ x) + conv.lin_r(x)
    return conv.nn(weights @ x + x)


class Net(nn.Module):
    """A stack of layers, with tanh in between."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        widths = [CHANNELS] * len(names) + [3]
        self.convs = nn.ModuleList(LAYERS[name](widths[k], widths[k + 1]) for k, name in enumerate(names))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for number, conv in enumerate(self.convs):
            x = conv(x.tanh() if number else x, edge_index)
        return x


@pytest.mark.parametrize("protocol", ["removal", "weight"])
@pytest.mark.parametrize(
    "names", [("GCN", "GCN"), ("SAGE", "GCN"), ("GIN", "SAGE"), ("SAGE", "GIN", "GCN")], ids="-".join
)
def test_derivative_towards_the_reduced_weights(names: tuple[str, ...], protocol: str) -> None:
    torch.manual_seed(2)
    model = Net(names).double().eval()
    result = attree.evaluate(
        model, Data(X, EDGES), targets=TARGETS, methods=[attree.MessageGradient(protocol)], protocols=[protocol]
    )
    (scores,) = result.pair_scores.values()
    graph, pairs = result.attention.graph, result.pairs
    before = [matrix(name, EDGES) for name in names]

    @torch.no_grad()
    def probabilities(change: list[Tensor], amount: float) -> Tensor:
        x = X
        for number, (name, conv) in enumerate(zip(names, model.convs, strict=True)):
            x = dense(name, conv, before[number] + amount * change[number], x.tanh() if number else x)
        return x.softmax(-1)

    predicted = probabilities(before, 0.0).argmax(-1)
    sizes = []
    for owner, edge, score in zip(pairs.owner.tolist(), pairs.edges.tolist(), scores.tolist(), strict=True):
        if edge >= graph.num_proper_edges:
            continue
        source, destination = graph.edge_index[:, edge].tolist()
        if protocol == "removal":
            is_other = (EDGES[0] != source) | (EDGES[1] != destination)
            after = [matrix(name, EDGES[:, is_other]) for name in names]
        else:
            after = [weights.clone() for weights in before]
            for weights in after:
                weights[destination, source] = 0
        change = [new - old for new, old in zip(after, before, strict=True)]
        target = int(pairs.targets[owner])
        there, back = (probabilities(change, amount)[target, predicted[target]] for amount in (STEP, -STEP))
        expected = float(back - there) / (2 * STEP)
        assert score == pytest.approx(expected, abs=1e-7), (target, edge)
        sizes.append(abs(expected))
    assert max(sizes) > 1e-3


@pytest.mark.parametrize("protocol", ["removal", "weight"])
@pytest.mark.parametrize("layer", [GCNConv, SAGEConv, GraphConv], ids=lambda layer: layer.__name__)
def test_exact_for_one_layer_that_is_linear(layer: type[MessagePassing], protocol: str) -> None:
    """Self-loops included: those of the data, and those that a GCN adds."""

    class OneNumber(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = layer(CHANNELS, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    torch.manual_seed(3)
    looped = torch.cat([EDGES, torch.tensor([[1, 4], [1, 4]])], dim=1)
    result = attree.evaluate(
        OneNumber().double().eval(),
        Data(X, looped),
        targets=TARGETS,
        mode="regression",
        protocols=[protocol],
        methods=[attree.MessageGradient(protocol)],
    )
    (scores,) = result.pair_scores.values()
    effects = result.reductions[protocol].delta_pc
    assert float(effects.abs().max()) > 1e-2
    torch.testing.assert_close(scores, effects, rtol=0, atol=2 * RESOLUTION)


def test_equal_to_the_attention_gradient_for_attention_layers() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GATConv(CHANNELS, 4, heads=2), GATConv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    torch.manual_seed(4)
    methods = ["message_gradient", "attention_gradient"]
    result = attree.evaluate(Attends().double(), Data(X, EDGES), targets=TARGETS, methods=methods)
    assert torch.equal(result.pair_scores["message_gradient"], result.pair_scores["attention_gradient"])
