"""Tests of attention on nets whose answers are known, against the same changes made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATConv

import attree
from attree.errors import ArgumentError
from attree.evaluation import AttentionTests
from attree.evaluation.attention_tests import permuted, run_with
from attree.subject import Subject
from helpers.built_attention import KINDS, Built, loud_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def graph() -> Data:
    graph = loud_graph()
    graph.y = torch.randint(KINDS, (graph.num_nodes,), generator=torch.Generator().manual_seed(1))
    return graph


@pytest.fixture(scope="module")
def sharp(graph: Data) -> AttentionTests:
    return attree.attention_tests(Built(sharpness=4.0, scale=3.0).eval(), graph, num_targets=60)


def test_uniform_attention_is_a_mean_over_neighbours(graph: Data, sharp: AttentionTests) -> None:
    model = Built(sharpness=4.0, scale=3.0).eval()
    flat = Built(sharpness=0.0, scale=3.0).eval()
    found = attree.attention_tests(model, graph, targets="all", steps=0)
    with torch.no_grad():
        usual, other = (net(graph.x, graph.edge_index).softmax(-1) for net in (model, flat))
    assert found.uniform.distance == pytest.approx(float((usual - other).abs().sum(-1).mean() / 2), abs=1e-6)
    assert found.uniform.changed == pytest.approx(float((usual.argmax(-1) != other.argmax(-1)).float().mean()))
    assert found.uniform.accuracy == pytest.approx(float((other.argmax(-1) == graph.y).float().mean()))
    assert found.accuracy == pytest.approx(float((usual.argmax(-1) == graph.y).float().mean()))
    assert "Predictions depend on the network's attention" in str(sharp)


def test_attention_that_is_uniform_does_not_matter(graph: Data) -> None:
    found = attree.attention_tests(Built(sharpness=0.0).eval(), graph, num_targets=30, steps=0)
    assert found.uniform.distance == pytest.approx(0.0, abs=1e-6)
    assert found.permuted.distance == pytest.approx(0.0, abs=1e-6)
    assert "hardly depend on the network's attention" in found.sentences[0]


def test_permuted_weights_stay_within_their_neighbourhood(graph: Data) -> None:
    conv = GATConv(KINDS + 1, 3, heads=2)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def change(number: int, destination: Tensor, scores: Tensor, softmax: object) -> Tensor:
        weights = permuted(7)(number, destination, scores, softmax)  # type: ignore[arg-type]
        seen.append((destination, softmax(scores), weights))  # type: ignore[operator]
        return weights

    with torch.no_grad():
        run_with(Subject.of(conv, graph.x, graph.edge_index), change)
    ((destination, usual, other),) = seen
    assert not torch.equal(usual, other)
    for node in range(0, int(graph.num_nodes or 0), 7):
        here = destination == node
        rows = [sorted(map(tuple, weights[here].tolist())) for weights in (usual, other)]
        assert rows[0] == rows[1]


def test_other_attention_leaves_predictions_as_they_are(sharp: AttentionTests) -> None:
    assert sharp.adversarial.distance <= 0.01
    assert 0.0 < sharp.adversarial.attention <= 1.0
    assert sharp.adversarial.changed < 0.2


def test_shuffled_parameters_change_scores_and_are_put_back(graph: Data) -> None:
    torch.manual_seed(0)
    model = GAT(KINDS + 1, 8, 2, KINDS).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = attree.attention_tests(model, graph, num_targets=20, steps=3, permutations=2)
    assert len(found.randomized) == 2
    assert all(-1 <= value < 1 for value in found.randomized)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_model_as_another_seed_agrees(graph: Data) -> None:
    torch.manual_seed(0)
    one, two = (GAT(KINDS + 1, 8, 2, KINDS).eval() for _ in range(2))
    same = attree.attention_tests(one, graph, num_targets=20, models=[one], steps=0, permutations=1)
    assert same.seeds == [pytest.approx(1.0)]
    both = attree.attention_tests(one, graph, num_targets=20, models=[one, two], steps=0, permutations=1)
    assert len(both.seeds) == 3
    assert both.seeds[1] == both.seeds[2] < 1
    assert "Models of other seeds" in str(both)


def test_numbers_have_a_distance_but_no_classes(graph: Data) -> None:
    class Number(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(KINDS + 1, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    data = Data(x=graph.x, edge_index=graph.edge_index)
    found = attree.attention_tests(Number(), data, num_targets=20, mode="regression", steps=2, permutations=2)
    assert math.isnan(found.uniform.changed)
    assert found.uniform.distance > 0
    assert all(not math.isnan(value) for value in found.to_dict().values())
    assert "<table" in found._repr_html_()


def test_what_cannot_be_tested_is_refused(graph: Data) -> None:
    with pytest.raises(ArgumentError, match="`permutations`"):
        attree.attention_tests(Built(1.0), graph, permutations=0)
    with pytest.raises(ArgumentError, match="`models`"):
        attree.attention_tests(Built(1.0), graph, models=["a"])  # type: ignore[list-item]
