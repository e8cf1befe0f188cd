from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SuperGATConv
from torch_geometric.utils import coalesce

from attree.attention import Graph, capture_attention
from attree.data import GraphDataModule, NodeDataModule
from attree.errors import ArgumentError
from attree.models import GraphClassifier
from attree.paper.networks import AuthorsSuperGAT, Net, build, make_data, reported_attention, reproducible, train
from helpers.graphs import NODES, messy_graph


@pytest.mark.needs("webkb/cornell")
def test_training_is_the_recipe_and_nothing_else(data_root: str) -> None:
    """Against a plain loop over PyG's own convolutions."""
    net = Net("Cornell", "GAT", 2, seed=3, epochs=4, weight_decay=0.01)
    data = make_data("Cornell", 2, 3, data_root)
    assert isinstance(data, NodeDataModule)
    model, accuracy = train(net, data)
    graph = data.graph
    with reproducible(3):
        first, last = GATConv(1703, 64), GATConv(64, 5, concat=False)
        optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.005, weight_decay=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            logits = last(F.elu(first(graph.x, graph.edge_index)), graph.edge_index)
            F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = last(F.elu(first(graph.x, graph.edge_index)), graph.edge_index)
            torch.testing.assert_close(model(graph.x, graph.edge_index), logits)
    right = (logits.argmax(dim=1) == graph.y)[graph.test_mask]
    assert accuracy == pytest.approx(float(right.float().mean()))
    assert not model.training


@pytest.mark.needs("tu/MUTAG/raw")
def test_graphs_are_read_out_without_a_bias(data_root: str) -> None:
    data = make_data("MUTAG", 3, 0, data_root)
    assert isinstance(data, GraphDataModule)
    model, accuracy = train(Net("MUTAG", "GAT", 3, epochs=2), data)
    assert isinstance(model, GraphClassifier)
    assert model.bias is None
    assert 0 <= accuracy <= 1
    again, _ = train(Net("MUTAG", "GAT", 3, epochs=2), data)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_callers_threads_and_random_state_are_given_back() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), reproducible(7):
        torch.rand(3) / (1 // (torch.get_num_threads() - 1))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_heads_and_dropout_are_where_the_authors_have_them() -> None:
    net = build(Net("Cora", "GAT", 3, heads=4, attention_dropout=0.6), 10, 7)
    assert [conv.heads for conv in net.convs] == [4, 4, 1]
    assert [conv.dropout for conv in net.convs] == [0.6, 0.0, 0.0]
    assert [conv.out_channels for conv in net.convs] == [64, 64, 7]


@pytest.mark.parametrize("setting", [{"dataset": "Reddit"}, {"dataset": "Cora", "model": "GCN"}])
def test_unknown_networks_are_refused(setting: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match=r"to be one of .* but got"):
        Net(**setting)


def test_the_authors_supergat_weighs_messages_by_dot_products_and_reports_mx() -> None:
    graph = Data(x=torch.randn(NODES, 6), edge_index=coalesce(messy_graph(1)))
    net = AuthorsSuperGAT(6, 3, 5, num_layers=2).eval()
    looped = Graph(graph.edge_index, graph.num_nodes)
    used = capture_attention(net, graph.x, graph.edge_index, graph=looped)
    reported = reported_attention(net, graph.x, looped)

    hidden = net.convs[0].lin(graph.x)
    source, destination = looped.edge_index
    dots = F.leaky_relu((hidden[source] * hidden[destination]).sum(dim=1), 0.2).exp()
    expected = dots / torch.zeros(graph.num_nodes).index_add_(0, destination, dots)[destination]
    torch.testing.assert_close(used.weights[0].squeeze(1), expected)

    official = SuperGATConv(6, 5, attention_type="MX")
    official.load_state_dict(net.convs[0].state_dict())
    weights = official.get_attention(
        destination, hidden[destination].unsqueeze(1), hidden[source].unsqueeze(1), graph.num_nodes
    )
    torch.testing.assert_close(reported.weights[0], weights)
    assert not torch.allclose(reported.weights[0], used.weights[0])
