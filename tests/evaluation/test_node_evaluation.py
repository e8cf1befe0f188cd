"""An evaluation that is used epoch after epoch says what one made for that epoch says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn.models import GAT as PyGGAT

from attree.attention import LoopedGraph
from attree.attribution import METHODS
from attree.attribution.pair_walk import PairWalk
from attree.data import Infection
from attree.evaluation.evaluation import Settings
from attree.evaluation.node_evaluation import NodeEvaluation
from attree.faithfulness import ExactReducer, GenericReducer
from attree.models import GAT

SETTINGS = Settings(tuple(METHODS), ("coefficient", "weight", "removal"), random_draws=2, seed=1)
TARGETS = torch.tensor([7, 0, 41, 3, 88])


@pytest.fixture(scope="module")
def data() -> Infection:
    infection = Infection(num_nodes=120, edge_probability=0.02, num_layers=2, seed=3)
    infection.graph.x = infection.graph.x.double()
    return infection


def evaluation(model: nn.Module, data: Infection) -> NodeEvaluation:
    graph = LoopedGraph(data.graph.edge_index, data.graph.num_nodes)
    return NodeEvaluation(model, data.graph.x, graph, TARGETS, data.truth, SETTINGS)


def randomize(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)


def exact(data: Infection) -> nn.Module:
    return GAT(data.num_features, data.num_classes, hidden_channels=8, num_layers=2, heads=2).double()


def generic(data: Infection) -> nn.Module:
    return PyGGAT(data.num_features, 8, 2, data.num_classes, heads=2).double()


@pytest.mark.parametrize("keep", [True, False], ids=["walks kept", "walks too large"])
@pytest.mark.parametrize(("make", "reducer"), [(exact, ExactReducer), (generic, GenericReducer)])
def test_every_epoch_is_as_if_it_were_the_first(
    make: Any, reducer: type, keep: bool, data: Infection, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, epochs = make(data), []
    if not keep:
        monkeypatch.setattr(PairWalk, "of", lambda *_: None)
    again = evaluation(model, data)
    assert isinstance(again._walk, PairWalk) == keep
    for seed in range(2):
        randomize(model, seed)
        values = again.evaluate()
        assert isinstance(again._reducer, reducer)
        once = evaluation(model, data)
        assert_same(values, once.evaluate())
        for protocol, last in once.last.items():
            assert torch.equal(again.last[protocol].changed, last.changed)
            assert_same(again.last[protocol].scores, last.scores)
        epochs.append(values)
    first, second = epochs
    assert len(first) == len(METHODS) * (1 + 3 * 8)
    moved = {name for name in first if abs(first[name] - second[name]) > 1e-6}
    # All that depends on attention moves; random scores are the same, so their ground truth is too.
    assert {f"explain/{name}/truth_auroc" for name in METHODS} - moved == {"explain/random/truth_auroc"}
    assert {f"explain/{name}/removal/pc_kendall" for name in METHODS} <= moved


def assert_same(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(ours) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9, equal_nan=True, msg=name)
