"""Edges that stand in for each other, and heads that differ, against graphs without the edges and single heads."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.evaluation import Evaluation
from attree.evaluation.verdict import heads_apart
from attree.planted import NAMES, make

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def evaluated(name: str) -> Evaluation:
    case = make(name, seed=0)
    return attree.evaluate(case.model, case.data, case.targets, truth=case.truth)


@pytest.fixture(scope="module")
def results() -> dict[str, Evaluation]:
    return {name: evaluated(name) for name in NAMES}


def test_two_redundant_edges_are_deleted_together(results: dict[str, Evaluation]) -> None:
    """Against the graph without both true edges of a target, which carry the same evidence."""
    case, result = make("redundant", seed=0), results["redundant"]
    effects = []
    for target in case.targets[:20].tolist():
        is_true = case.edge_mask(target).bool()
        assert int(is_true.sum()) == 2
        with torch.no_grad():
            before = case.model(case.data.x, case.data.edge_index)[target].softmax(-1)
            after = case.model(case.data.x, case.data.edge_index[:, ~is_true])[target].softmax(-1)
        effects.append(float((before - after)[before.argmax()]))
    together = result.metrics["explain/effects/removal/two_together"]
    assert together == pytest.approx(sorted(effects)[9] / 2 + sorted(effects)[10] / 2, abs=1e-6)
    assert together > 0.1 > 0.001 > result.metrics["explain/effects/removal/two_apart"] > 0


def test_only_redundant_edges_are_said_to_stand_in_for_each_other(results: dict[str, Evaluation]) -> None:
    said = {name for name, result in results.items() if "redundant" in result.verdict.rules}
    assert said == {"redundant"}
    (sentence,) = (finding.sentence for finding in results["redundant"].verdict if finding.rule == "redundant")
    assert sentence in results["redundant"].verdict.cautions
    measured = {name for name, result in results.items() if "explain/effects/removal/two_together" in result.metrics}
    assert {"redundant", "saturated", "skip"} <= measured
    assert "attention_decides" not in measured  # single edges have effects: nothing more is run


def test_heads_that_differ_are_said(results: dict[str, Evaluation]) -> None:
    assert {name for name, result in results.items() if "heads" in result.verdict.rules} == {"one_head"}


def test_heads_are_compared_with_their_mean() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 12, (2, 40), generator=generator)
    graph = Data(x=torch.randn(12, 8, generator=generator), edge_index=edges[:, edges[0] != edges[1]].unique(dim=1))
    model = GAT(8, 16, 2, out_channels=3, heads=2).eval()
    attention = attree.capture_attention(model, graph.x, graph.edge_index)
    destination = attention.graph.edge_index[1]
    expected = []
    for weights in attention.weights:
        apart = []
        for node in range(12):
            rows = weights[destination == node].double()
            if len(rows) > 1 and rows.shape[1] > 1:
                apart += [float((rows[:, head] - rows.mean(dim=1)).abs().sum() / 2) for head in range(rows.shape[1])]
        expected.append(sum(apart) / len(apart) if apart else 0.0)
    assert heads_apart(attention) == pytest.approx(max(expected))
    single = GAT(8, 16, 2, out_channels=3).eval()
    assert heads_apart(attree.capture_attention(single, graph.x, graph.edge_index)) == 0
