"""An evaluator that is used epoch after epoch says what one made for that epoch says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.nn.models import GAT as PyGGAT

from attree.attribution.pairs import PairWalk
from attree.data import Infection
from attree.evaluation import EvaluationConfig, Evaluator
from attree.models import GAT
from attree.subject import Subject
from helpers.graphs import randomize

METHODS = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "random")
TARGETS = torch.tensor([7, 0, 41, 3, 88])


@pytest.fixture(scope="module")
def data() -> Infection:
    infection = Infection(num_nodes=120, edge_probability=0.02, num_layers=2, seed=3)
    infection.graph.x = infection.graph.x.double()
    return infection


def evaluator(model: nn.Module, data: Infection) -> Evaluator:
    subject = Subject.of(model, data.graph.x, data.graph.edge_index)
    protocols = ("coefficient", "weight", "removal")
    return Evaluator(subject, TARGETS, EvaluationConfig(METHODS, protocols, random_draws=2, seed=1), data.truth)


def own(data: Infection) -> nn.Module:
    return GAT(data.num_features, data.num_classes, hidden_channels=8, num_layers=2, heads=2).double()


def pyg(data: Infection) -> nn.Module:
    return PyGGAT(data.num_features, 8, 2, data.num_classes, heads=2).double()


@pytest.mark.parametrize("keep", [True, False], ids=["walks kept", "walks too large"])
@pytest.mark.parametrize("make", [own, pyg])
def test_every_epoch_is_as_if_it_were_the_first(
    make: Any, keep: bool, data: Infection, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, epochs = make(data), []
    if not keep:
        monkeypatch.setattr(PairWalk, "of", lambda *_: None)
    again = evaluator(model, data)
    assert isinstance(again.pairs.walk, PairWalk) == keep
    for seed in range(2):
        randomize(model, seed, 0.7)
        result, once = again.evaluate(), evaluator(model, data).evaluate()
        assert list(result.metrics) == list(once.metrics)
        assert result.metrics == pytest.approx(once.metrics, abs=1e-9, nan_ok=True)
        for protocol, reduction in once.reductions.items():
            assert torch.equal(result.reductions[protocol].changed, reduction.changed)
        for name, scores in once.pair_scores.items():
            torch.testing.assert_close(result.pair_scores[name], scores, rtol=0, atol=1e-9)
        epochs.append(result.metrics)
    first, second = epochs
    assert len(first) == len(METHODS) * (1 + 3 * 9) + 3 * 3  # statistics of methods, and sizes of effects
    moved = {name for name in first if abs(first[name] - second[name]) > 1e-6}
    # All that depends on attention moves; random scores are the same, so their ground truth is too.
    assert {f"explain/{name}/truth_auroc" for name in METHODS} - moved == {"explain/random/truth_auroc"}
    assert {f"explain/{name}/removal/pc_kendall" for name in METHODS} <= moved


def test_what_is_drawn_afterwards_is_what_was_measured(data: Infection) -> None:
    """Scores of pairs and attributions made after the evaluation come from one pass."""
    model = own(data).float()
    data.graph.x, kept = data.graph.x.float(), data.graph.x
    try:
        again = evaluator(model, data)
        result = again.evaluate()
        scores = again.methods["gatt"].score_pairs(again.subject, again.pairs)
        assert torch.equal(scores, result.pair_scores["gatt"])
    finally:
        data.graph.x = kept
