"""What is said of models that attention explains only in part, at every evaluation."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT, GATConv

import attree
import attree.models
from attree.attention import measure_bypass
from attree.attention.wiring import is_plain_stack
from attree.evaluation import EvaluationConfig, Evaluator
from attree.subject import Subject
from attree.subject.missed_by_attention import bypass_of, what_attention_misses
from helpers.attention_models import MESSY, X
from helpers.user_models import Noise


class Between(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.last = GATConv(4, 4), between, GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.between(self.first(x, edge_index)), edge_index)


class AlwaysDrops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)  # `training=self.training` forgotten


@pytest.mark.parametrize("between", [AlwaysDrops(), Noise()])
def test_random_models_are_called_random(between: nn.Module) -> None:
    subject = Subject.of(Between(between), X, MESSY)
    said = what_attention_misses(subject, bypass_of(subject))
    assert len(said) == 1
    assert said[0].startswith("The model is random")


def test_nan_outputs_are_called_so() -> None:
    model = Between(nn.Identity())
    nn.init.constant_(model.last.bias, torch.nan)
    subject = Subject.of(model, X, MESSY)
    said = what_attention_misses(subject, bypass_of(subject))
    assert said == ["The model's outputs are NaN or infinite in 6 of 6 rows: measurements of these rows are undefined."]


def test_what_training_opens_is_reported_from_then_on() -> None:
    """A sum readout sees the size of a graph by the bias of its nodes, which is 0 at first."""
    torch.manual_seed(0)
    graphs = [Data(X[:n], MESSY[:, (n > MESSY).all(dim=0)]) for n in (3, 4, 6)]
    module = attree.models.GraphClassifier(attree.models.GAT(4, 2, hidden_channels=4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = Evaluator(
            Subject.of_data(module, Batch.from_data_list(graphs)), "all", EvaluationConfig(["gatt"], ["weight"])
        )
    assert "explain/bypass" not in evaluator.evaluate().metrics
    with torch.no_grad():
        module.net.convs[-1].bias.copy_(torch.tensor([-0.5, 0.5]))
    found = evaluator.evaluate().metrics["explain/bypass"]
    sizes = torch.tensor([3.0, 4.0, 6.0])
    bare = sizes.unsqueeze(1) * module.net.convs[-1].bias + (0 if module.bias is None else module.bias)
    usual = module(*(lambda b: (b.x, b.edge_index, b.batch))(Batch.from_data_list(graphs)))
    assert found == pytest.approx((usual.argmax(1) == bare.argmax(1)).float().mean().item())


def test_networks_that_are_plain_whatever_their_weights_are_not_run_again() -> None:
    class Skips(attree.models.GAT):
        def conv_options(self) -> dict[str, bool]:
            return {"residual": True}

    for net, plain in ((attree.models.GAT(4, 3), True), (Skips(4, 3), False)):
        assert attree.models.NodeClassifier(net).is_plain_stack is plain
        assert bypass_of(Subject.of(net, X, MESSY)).exists is not plain


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, True),
        ({"v2": True, "norm": "batch_norm", "act": "elu"}, True),
        ({"act": nn.Softmax(dim=0)}, False),
        ({"norm": "layer_norm"}, False),
        ({"norm": "batch_norm", "norm_kwargs": {"track_running_stats": False}}, False),
        ({"jk": "cat"}, False),
        ({"residual": True}, False),
    ],
    ids=str,
)
def test_pygs_gat_is_known_as_a_plain_stack(options: dict[str, Any], plain: bool) -> None:
    torch.manual_seed(0)
    model = GAT(4, 6, 2, 3, **options).eval()
    assert is_plain_stack(model) is plain
    layers = [[0], [1]]
    assert not (plain and measure_bypass(model, lambda x: model(x, MESSY), X, layers=layers).exists)
    model.forward = lambda x, edge_index: model.convs[0](x, edge_index)  # type: ignore[method-assign]
    assert not is_plain_stack(model)
