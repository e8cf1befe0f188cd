"""Temporal graph networks: a memory of each node, an embedding by attention along recent events, and links to predict.

The network is that of PyG's TGN example, in small. Explaining a link must neither write to the memory nor flush the
messages that wait for it.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator

import attree
from attree.attribution import GAtt
from attree.errors import UnsupportedModelError
from attree.subject import Subject

NODES, MESSAGE, WIDTH, EVENTS = 12, 4, 8, 40
GENERATOR = torch.Generator().manual_seed(0)
ENDS = torch.stack([torch.randint(low, low + 6, (EVENTS,), generator=GENERATOR) for low in (0, 6)])
TIMES, MESSAGES = torch.arange(EVENTS), torch.randn(EVENTS, MESSAGE, generator=GENERATOR)
LINKS = torch.tensor([[0, 2, 3], [7, 9, 11]])


class Temporal(nn.Module):
    """The memory of nodes, an embedding by `TransformerConv`, and a predictor of links."""

    def __init__(self) -> None:
        super().__init__()
        message = IdentityMessage(MESSAGE, WIDTH, WIDTH)
        self.memory = TGNMemory(NODES, MESSAGE, WIDTH, WIDTH, message, LastAggregator())
        self.conv = TransformerConv(WIDTH, WIDTH // 2, heads=2, dropout=0.1, edge_dim=MESSAGE + WIDTH)
        self.source, self.destination, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, n_id: Tensor, edge_index: Tensor, t: Tensor, msg: Tensor, edge_label_index: Tensor) -> Tensor:
        memory, last_update = self.memory(n_id)
        since = self.memory.time_enc((last_update[edge_index[0]] - t).to(memory.dtype))
        z = self.conv(memory, edge_index, torch.cat([since, msg], dim=-1))
        hidden = self.source(z[edge_label_index[0]]) + self.destination(z[edge_label_index[1]])
        return self.last(hidden.relu()).squeeze(-1)


class Remembering(Temporal):
    """Writes the links that it predicts into its memory."""

    def forward(self, n_id: Tensor, edge_index: Tensor, t: Tensor, msg: Tensor, edge_label_index: Tensor) -> Tensor:
        output = super().forward(n_id, edge_index, t, msg, edge_label_index)
        source, destination = edge_label_index
        self.memory.update_state(source, destination, t.max() + torch.arange(len(source)), msg[: len(source)])
        return output


def trained(kind: type[Temporal] = Temporal, is_training: bool = False) -> Temporal:
    """A network that has seen the events, with messages that wait for the memory."""
    torch.manual_seed(1)
    model = kind()
    model.train()
    for begin in range(0, EVENTS, 10):
        part = slice(begin, begin + 10)
        model.memory.update_state(*ENDS[:, part], TIMES[part], MESSAGES[part])
    model.memory.detach()
    return model if is_training else model.eval()


def data() -> Data:
    recent = slice(15, None)
    return Data(
        edge_index=ENDS[:, recent],
        t=TIMES[recent],
        msg=MESSAGES[recent],
        n_id=torch.arange(NODES),
        edge_label_index=LINKS,
        num_nodes=NODES,
    )


def run(model: nn.Module, graph: Data) -> Tensor:
    return model(graph.n_id, graph.edge_index, graph.t, graph.msg, graph.edge_label_index)


def state(model: Temporal) -> list[Tensor]:
    """Copies of all tensors of a model, and of the messages that wait."""
    stores = (model.memory.msg_s_store, model.memory.msg_d_store)
    waiting = [tensor for store in stores for number in range(NODES) for tensor in store[number]]
    return [tensor.clone() for tensor in (*model.state_dict().values(), *waiting)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_training", [False, True])
def test_a_link_is_explained_and_the_memory_stays(is_training: bool) -> None:
    model = trained(is_training=is_training)
    before = state(model)
    explanation = attree.explain(model, data(), 1)
    assert "gatt" in attree.evaluate(model, data()).pair_scores
    assert all(map(torch.equal, state(model), before))
    assert model.training is is_training
    assert model.memory.training is is_training
    assert explanation.edges


@pytest.mark.filterwarnings("ignore")
def test_effects_are_those_of_deleting_an_event() -> None:
    model = trained().double()
    graph = data()
    graph.msg = graph.msg.double()
    explanation = attree.explain(model, graph, 1)
    with torch.no_grad():
        before = run(model, graph).sigmoid()[1]
        sign = 1 if before > 0.5 else -1
        compared = 0
        for edge in explanation.edges:
            columns = ((graph.edge_index[0] == edge.source) & (graph.edge_index[1] == edge.destination)).nonzero()
            if len(columns) != 1 or edge.source == edge.destination:
                continue
            keep = torch.arange(graph.num_edges) != int(columns)
            without = graph.clone()
            without.edge_index, without.t, without.msg = graph.edge_index[:, keep], graph.t[keep], graph.msg[keep]
            after = run(model, without).sigmoid()[1]
            assert edge.effect == pytest.approx(float(sign * (before - after)), abs=1e-7)
            compared += 1
    assert compared > 1


@pytest.mark.filterwarnings("ignore")
def test_gatt_is_the_attention_of_the_embedding_at_both_ends() -> None:
    subject = Subject.of_data(trained(), data())
    (weights,) = subject.attention.weights
    graph, alpha = subject.graph, weights.mean(dim=1).double()
    scores = GAtt().attribute(subject, [2])
    found = torch.zeros(graph.num_edges).double().index_add_(0, scores.edges, scores.scores.double())
    enters = (graph.destination == LINKS[0, 2]).double() + (graph.destination == LINKS[1, 2]).double()
    torch.testing.assert_close(found, alpha * enters)


@pytest.mark.filterwarnings("ignore")
def test_a_forward_that_writes_to_its_memory_is_refused_and_the_memory_stays() -> None:
    model = trained(Remembering)
    before = state(model)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="it keeps a state"):
            attree.explain(model, data(), 1)
        assert all(map(torch.equal, state(model), before))


class Counting(nn.Module):
    """Counts its calls in place, in a buffer and in an attribute; the outputs do not depend on the counts."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.total = GATConv(4, 3), torch.zeros(1)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += 1
        self.total.add_(x.shape[0])
        return self.conv(x, edge_index)


def test_a_forward_that_counts_in_place_is_explained_and_the_user_s_counts_stay() -> None:
    torch.manual_seed(0)
    model = Counting()
    graph = Data(torch.randn(8, 4), torch.randint(0, 8, (2, 20)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attree.evaluate(model, graph, [0, 1])
    assert float(model.calls) == float(model.total) == 0
