"""One layer on several snapshots of the features, or at several times: recurrent networks over a static graph.

Effects are compared with deleting the edge from the data, and with silencing its messages by PyG's own hook.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

import attree
from attree.attribution import GAtt
from attree.errors import UnsupportedModelError
from attree.subject import Subject

NODES, WIDTH, STATE, CLASSES, TIMES = 12, 5, 6, 3, 3
EDGES = torch.randint(0, NODES, (2, 34), generator=torch.Generator().manual_seed(4))
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
X = torch.randn(NODES, TIMES, WIDTH, generator=torch.Generator().manual_seed(5)).double()
DATA = Data(X, EDGES)
TARGETS = [1, 7]


class Snapshots(nn.Module):
    """A layer on each snapshot; a recurrent network reads its outputs, as a whole or step by step."""

    def __init__(self, conv: type[nn.Module], recurrent: nn.Module) -> None:
        super().__init__()
        self.conv, self.recurrent, self.head = conv(WIDTH, STATE), recurrent, nn.Linear(STATE, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        outputs = [self.conv(x[:, time], edge_index).relu() for time in range(x.shape[1])]
        if isinstance(self.recurrent, nn.GRU | nn.LSTM):
            return self.head(self.recurrent(torch.stack(outputs, dim=1))[0][:, -1])
        state = x.new_zeros(x.shape[0], STATE)
        for output in outputs:
            state = self.recurrent(output, state)
        return self.head(state)


class TGCN(nn.Module):
    """T-GCN: layers inside the gates of a recurrent cell. With `attends`, A3T-GCN: attention over times."""

    def __init__(self, conv: type[nn.Module], attends: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(conv(WIDTH, STATE) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(2 * STATE, STATE) for _ in range(3))
        self.attention, self.head = nn.Parameter(torch.randn(TIMES)) if attends else None, nn.Linear(STATE, CLASSES)

    def cell(self, x: Tensor, edge_index: Tensor, state: Tensor) -> Tensor:
        update, reset, candidate = (conv(x, edge_index) for conv in self.convs)
        z = self.gates[0](torch.cat([update, state], dim=1)).sigmoid()
        r = self.gates[1](torch.cat([reset, state], dim=1)).sigmoid()
        return z * state + (1 - z) * self.gates[2](torch.cat([candidate, r * state], dim=1)).tanh()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], STATE)
        if self.attention is None:
            for time in range(x.shape[1]):
                state = self.cell(x[:, time], edge_index, state)
            return self.head(state)
        shares = self.attention.softmax(0)
        cells = (self.cell(x[:, time], edge_index, state) for time in range(x.shape[1]))
        return self.head(sum(share * cell for share, cell in zip(shares, cells, strict=True)))


class OfState(nn.Module):
    """A layer reads the snapshot and the state before, so that later times read farther nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.cell = GATConv(WIDTH + STATE, STATE), nn.GRUCell(STATE, STATE)
        self.head = nn.Linear(STATE, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], STATE)
        for time in range(x.shape[1]):
            state = self.cell(self.conv(torch.cat([x[:, time], state], dim=1), edge_index).relu(), state)
        return self.head(state)


NETS: dict[str, Callable[[], nn.Module]] = {
    "GAT, GRU": lambda: Snapshots(GATConv, nn.GRU(STATE, STATE, batch_first=True)),
    "GAT, GRUCell": lambda: Snapshots(GATConv, nn.GRUCell(STATE, STATE)),
    "GCN, LSTM": lambda: Snapshots(GCNConv, nn.LSTM(STATE, STATE, batch_first=True)),
    "T-GCN": lambda: TGCN(GCNConv, attends=False),
    "A3T-GCN": lambda: TGCN(GCNConv, attends=True),
    "A3T-GCN of GAT": lambda: TGCN(GATConv, attends=True),
    "GAT of the state": OfState,
}


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    return NETS[name]().double().eval()


@torch.no_grad()
def changed(model: nn.Module, column: int, protocol: str) -> Tensor:
    if protocol == "removal":
        return model(X, EDGES[:, torch.arange(EDGES.shape[1]) != column]).softmax(-1)
    convs = [module for module in model.modules() if isinstance(module, GATConv | GCNConv)]

    def silence(conv: nn.Module, inputs: object, messages: Tensor) -> Tensor:
        # PyG puts the self-loops that it adds behind the edges.
        return messages.index_fill(0, torch.tensor([column]), 0.0)

    handles = [conv.register_message_forward_hook(silence) for conv in convs]
    output = model(X, EDGES).softmax(-1)
    for handle in handles:
        handle.remove()
    return output


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETS)
def test_effects_are_those_of_the_model_itself(name: str) -> None:
    model = made(name)
    with torch.no_grad():
        before = model(X, EDGES).softmax(-1)
    result = attree.evaluate(model, DATA, TARGETS)
    pairs, ends = result.pairs, result.pairs.graph.edge_index
    for protocol, reduction in result.reductions.items():
        for edge, owner, effect in zip(
            pairs.edges.tolist(), pairs.owner.tolist(), reduction.delta_pc.tolist(), strict=True
        ):
            if edge >= pairs.graph.num_proper_edges:
                continue
            column = int((ends[:, edge : edge + 1] == EDGES).all(dim=0).nonzero())
            row = before[TARGETS[owner]]
            after = changed(model, column, protocol)[TARGETS[owner]]
            assert effect == pytest.approx(float((row - after)[row.argmax()]), abs=1e-7)
        assert float(reduction.delta_pc.abs().max()) > 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in NETS if name != "GAT of the state"])
def test_gates_are_no_computation_tree_and_all_other_methods_work(name: str) -> None:
    model = made(name)
    result = attree.evaluate(model, DATA, TARGETS)
    assert list(result.pair_scores) == ["occlusion", "message_gradient", "saliency", "random"]
    assert list(result.reductions) == ["removal", "weight"]
    with pytest.raises(UnsupportedModelError, match=r"are combined by `(GRU|GRUCell|LSTM|product)`.*`occlusion`"):
        attree.evaluate(model, DATA, TARGETS, ["gatt"])
    subject = Subject.of_data(model, DATA)
    assert subject.layers.has_attention is any(isinstance(module, GATConv) for module in model.modules())
    assert subject.num_layers == 1


@pytest.mark.filterwarnings("ignore")
def test_effects_beyond_the_hops_of_the_layers_are_found_for_one_prediction() -> None:
    """In a GCN, an edge changes the degree of its end, and so all messages that this end sends."""
    model = made("T-GCN")
    with torch.no_grad():
        before = model(X, EDGES).softmax(-1)[1]
    shown = {(edge.source, edge.destination): edge.effect for edge in attree.explain(model, DATA, 1).edges}
    for column, pair in enumerate(map(tuple, EDGES.T.tolist())):
        after = changed(model, column, "removal")[1]
        expected = float((before - after)[before.argmax()])
        assert shown.get(pair, 0.0) == pytest.approx(expected, abs=1e-7)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_reads_the_state_is_one_layer_each_time() -> None:
    model = made("GAT of the state")
    subject = Subject.of_data(model, DATA)
    attention, graph = subject.attention, subject.graph
    assert len(attention.weights) == TIMES
    assert attention.layout.is_chain
    scores = GAtt().attribute(subject, [7])
    found = torch.zeros(graph.num_edges).double().index_add_(0, scores.edges, scores.scores.double())
    matrices = [
        torch.zeros(NODES, NODES).double().index_put((graph.destination, graph.source), weights.mean(dim=1))
        for weights in attention.weights
    ]
    r, expected = torch.eye(NODES).double()[7], torch.zeros(graph.num_edges).double()
    for matrix in reversed(matrices):
        expected += r[graph.destination] * matrix[graph.destination, graph.source]
        r = r @ matrix
    torch.testing.assert_close(found, expected)
