"""Graph-level attribution: the readout as one more step, for batches of graphs at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attree.attention import Attention
from attree.attribution import GAtt, GAttAvg, GAttSim
from attree.subject import Subject
from attree.subject.readout import Readout, winners
from helpers.random_attention import Case, cases


def of_graphs(attention: Attention, batch: Tensor | None = None, readout: Readout = "sum") -> Subject:
    batch = torch.zeros(attention.graph.num_nodes, dtype=torch.int64) if batch is None else batch
    return Subject.of_attention(attention, batch, readout)


@pytest.mark.parametrize("readout", ["sum", "mean", "weights"])
@settings(max_examples=60, deadline=None)
@given(case=cases(partial=True), seed=st.integers(0, 1000))
def test_is_the_weighted_sum_over_nodes(readout: str, case: Case, seed: int) -> None:
    """GAtt is linear in the start of its walk, so a graph's scores are those of its nodes, weighted and added."""
    batch = torch.randint(3, (case.num_nodes,), generator=torch.Generator().manual_seed(seed))
    weights = {
        "sum": torch.ones(case.num_nodes).double(),
        "mean": 1.0 / (batch.unsqueeze(0) == batch.unsqueeze(1)).sum(dim=1).double(),
        "weights": torch.rand(case.num_nodes, dtype=torch.float64) + 0.1,
    }[readout]
    argument = weights if readout == "weights" else readout
    for method in (GAtt(), GAttSim()):
        nodes = method.attribute(case.attention)
        graphs = method.attribute(of_graphs(case.attention, batch, argument))
        assert graphs.targets.tolist() == sorted(set(batch.tolist()))
        for graph in graphs.targets.tolist():
            members = (batch == graph).nonzero().view(-1).tolist()
            expected = sum(weights[node] * nodes.dense(node) for node in members)
            torch.testing.assert_close(graphs.dense(graph), expected)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_average_divides_by_the_flows_of_all_nodes(case: Case) -> None:
    ones = [torch.ones_like(weight) for weight in case.attention.weights]
    flows = GAtt().attribute(of_graphs(Attention.from_weights(case.attention.graph, ones))).dense(0)
    gatt, average = (method.attribute(of_graphs(case.attention)).dense(0) for method in (GAtt(), GAttAvg()))
    torch.testing.assert_close(average, gatt / flows)


def test_max_follows_the_winning_nodes() -> None:
    embedding = torch.tensor([[1.0, 0.0, 4.0], [1.0, 2.0, 0.0], [-5.0, -5.0, -5.0], [0.0, 0.0, -9.0]])
    shares = winners(embedding, torch.tensor([0, 0, 0, 1])).mean(dim=1)
    torch.testing.assert_close(shares, torch.tensor([1.5, 1.5, 0.0, 3.0]).double() / 3)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_max_ignores_nodes_that_win_nothing(case: Case) -> None:
    embedding = torch.arange(case.num_nodes).double().unsqueeze(1)
    attention = Attention(case.attention.graph, case.attention.weights, case.attention.present, embedding=embedding)
    graph = GAtt().attribute(of_graphs(attention, readout="max"))
    winner = GAtt().attribute(attention, case.num_nodes - 1)
    assert torch.equal(graph.edges, winner.edges)
    assert torch.equal(graph.scores, winner.scores)


@settings(max_examples=1)
@given(cases())
def test_rejects_unusable_readouts(case: Case) -> None:
    with pytest.raises(ValueError, match="graph ids"):
        GAtt().attribute(of_graphs(case.attention, torch.zeros(case.num_nodes + 1, dtype=torch.int64)))
    with pytest.raises(ValueError, match="one per node"):
        GAtt().attribute(of_graphs(case.attention, readout=torch.ones(case.num_nodes + 1)))
    with pytest.raises(ValueError, match="'sum', 'mean', 'max'"):
        GAtt().attribute(of_graphs(case.attention, readout="median"))
    with pytest.raises(ValueError, match="no embedding"):
        GAtt().attribute(of_graphs(case.attention, readout="max"))
