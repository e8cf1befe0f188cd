"""Uniform attention: GAtt where every edge of a softmax weighs the same."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.nn import GATConv

from attree.attribution import GAtt, Uniform, subject_pairs
from attree.models import GAT
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize

X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0))
EDGES = messy_graph(0)


def without_scores(model: nn.Module) -> nn.Module:
    """The same net, whose attention scores are all 0, so that softmax gives each edge the same."""
    with torch.no_grad():
        for conv in model.modules():
            if isinstance(conv, GATConv):
                conv.att_src.zero_()
                conv.att_dst.zero_()
    return model


def test_it_is_gatt_of_a_net_without_attention_scores() -> None:
    net = randomize(GAT(5, 3, 4, num_layers=3, heads=2), 1)
    subject = Subject.of(net, X, EDGES)
    uniform = Uniform().attribute(subject)
    pairs = subject_pairs(subject)
    scores = Uniform().score_pairs(subject, pairs)
    plain = Subject.of(without_scores(net), X, EDGES)
    expected = GAtt().attribute(plain)
    assert torch.equal(uniform.edges, expected.edges)
    assert torch.allclose(uniform.scores, expected.scores)
    assert torch.allclose(scores, GAtt().score_pairs(plain, pairs))
    assert not torch.allclose(GAtt().attribute(Subject.of(randomize(net, 1), X, EDGES)).scores, uniform.scores)


def test_layers_without_self_loops_share_among_their_edges() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GATConv(5, 4, add_self_loops=False), GATConv(4, 3)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x, edge_index), edge_index)

    edges = EDGES[:, EDGES[0] != EDGES[1]]
    net = randomize(Net(), 1)
    uniform = Uniform().attribute(Subject.of(net, X, edges))
    expected = GAtt().attribute(Subject.of(without_scores(net), X, edges))
    assert torch.equal(uniform.edges, expected.edges)
    assert torch.allclose(uniform.scores, expected.scores)
