"""What is measured of outputs of every kind, against probabilities written out by hand."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

import attree
from attree.errors import AttreeError
from attree.subject import Head, Subject
from helpers.graphs import NODES, messy_graph, randomize

RAW = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, -3.0]], dtype=torch.float64)


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(z)))


@pytest.mark.parametrize(
    ("head", "output", "expected"),
    [
        (Head(), RAW, RAW.softmax(1).numpy()),
        (Head(), RAW.softmax(1), RAW.softmax(1).numpy()),
        (Head(return_type="log_probs"), RAW.log_softmax(1), RAW.softmax(1).numpy()),
        (Head(), RAW[:, 0], np.stack([sigmoid(-RAW[:, 0]), sigmoid(RAW[:, 0])], 1)),
        (Head(), RAW[:, :1], np.stack([sigmoid(-RAW[:, 0]), sigmoid(RAW[:, 0])], 1)),
        (
            Head(return_type="probs"),
            RAW[:, :1].sigmoid(),
            np.stack([sigmoid(-RAW[:, 0]), sigmoid(RAW[:, 0])], 1),
        ),
        (
            Head(return_type="log_probs"),
            torch.nn.functional.logsigmoid(RAW[:, 0]),
            np.stack([sigmoid(-RAW[:, 0]), sigmoid(RAW[:, 0])], 1),
        ),
        (
            Head("binary_classification", label=2),
            RAW,
            np.stack([sigmoid(-RAW[:, 2]), sigmoid(RAW[:, 2])], 1),
        ),
        (
            Head("binary_classification", "probs"),
            RAW.sigmoid(),
            np.stack([sigmoid([-2.0, -0.2]), sigmoid([2.0, 0.2])], 1),
        ),
    ],
)
def test_probabilities(head: Head, output: Tensor, expected: np.ndarray) -> None:
    settled = head.resolve(output)
    logits = settled.logits(output, settled.measured(output))
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("head", "output", "sentence"),
    [
        (Head(return_type="probs"), RAW, "they are no probabilities"),
        (Head(return_type="log_probs"), RAW, "some are above 0"),
        (Head("multiclass_classification"), RAW[:, 0], "`mode` to fit outputs of 1 column"),
        (Head("regression"), RAW, "`label` to be the number to measure"),
        (Head("binary_classification", label=3), RAW, "`label` to be a column in"),
        (Head(), (RAW, RAW), "one row of logits per node"),
        (Head(), torch.tensor([1, 2]), "one row of logits per node"),
    ],
)
def test_what_does_not_fit_is_refused(head: Head, output: Any, sentence: str) -> None:
    with pytest.raises(AttreeError, match=sentence):
        head.resolve(output)


def test_outputs_that_are_all_the_same_are_logits() -> None:
    """As those of a network that is not trained yet, or no longer."""
    assert Head().resolve(torch.zeros(4, 3)).return_type == "raw"
    assert Head().resolve(torch.full((4,), torch.nan)).return_type == "raw"


@pytest.mark.parametrize(
    ("head", "output", "sentence"),
    [
        (
            Head(return_type="raw"),
            RAW.softmax(1),
            "as `return_type` says, though each row adds up to 1",
        ),
        (Head(), RAW.sigmoid(), "taken for logits, though all lie between 0 and 1"),
        (Head(), RAW[:, 0].sigmoid(), "taken for logits, though all lie between 0 and 1"),
    ],
)
def test_what_is_assumed_is_said(head: Head, output: Tensor, sentence: str) -> None:
    with pytest.warns(UserWarning, match=sentence):
        assert head.resolve(output).return_type == "raw"


class Ends(nn.Module):
    """An attention layer with a last function."""

    def __init__(self, last: Any, width: int) -> None:
        super().__init__()
        self.conv, self.last = GATConv(4, width), last

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.last(self.conv(x, edge_index))
        return out


def graph() -> Data:
    return Data(torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0)).double(), messy_graph(0))


def test_softmax_outputs_measure_as_their_logits_do() -> None:
    logits, probabilities = (randomize(Ends(last, 3), 0).double() for last in (lambda z: z, lambda z: z.softmax(-1)))
    expected, found = (attree.evaluate(model, graph(), targets="all") for model in (logits, probabilities))
    assert found.metrics == pytest.approx(expected.metrics, abs=1e-9, nan_ok=True)


def test_one_logit_is_two_classes() -> None:
    def two(z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z), z], dim=1)

    one = {last: randomize(Ends(last, 1), 0).double() for last in (two, lambda z: z, lambda z: z.squeeze(1))}
    expected, *others = (attree.evaluate(model, graph(), targets="all") for model in one.values())
    for found in others:
        assert found.metrics == pytest.approx(expected.metrics, abs=1e-9, nan_ok=True)


def test_numbers_have_their_change_and_nothing_else() -> None:
    model = randomize(Ends(lambda z: z, 2), 0).double()
    result = attree.evaluate(model, graph(), targets=[0, 3], mode="regression", label=1, protocols=["removal"])
    reduction = result.reductions["removal"]
    assert float(reduction.delta_pc.abs().max()) > 1e-3
    assert reduction.delta_ne.isnan().all()
    metrics = result.metrics
    assert np.isfinite(metrics["explain/gatt/removal/pc_pearson"])
    for statistic in ("ne_pearson", "p_auroc", "faithfulness"):
        assert np.isnan(metrics[f"explain/gatt/removal/{statistic}"])


def test_labels_that_do_not_fit_the_outputs_are_noticed() -> None:
    model, data = randomize(Ends(lambda z: z, 3), 0).double(), graph()
    data.y = torch.arange(NODES)
    with pytest.raises(AttreeError, match="outputs fit labels up to 10"):
        attree.evaluate(model, data)
    data.y = torch.rand(NODES)
    with pytest.raises(AttreeError, match=r"labels `y` .* are real numbers"):
        attree.evaluate(model, data)


@pytest.mark.parametrize(
    ("last", "width", "head"),
    [
        (torch.sigmoid, 1, Head("binary_classification", "probs")),
        (lambda z: z.sigmoid().squeeze(-1), 1, Head("binary_classification", "probs")),
        (torch.sigmoid, 3, Head("binary_classification", "probs")),
        (lambda z: F.softmax(z, dim=-1), 3, Head("multiclass_classification", "probs")),
        (lambda z: F.log_softmax(z, dim=1), 3, Head("multiclass_classification", "log_probs")),
        (F.logsigmoid, 1, Head("binary_classification", "log_probs")),
        (lambda z: z.sigmoid_() * 4 - 2, 3, Head("multiclass_classification", "raw")),
        (lambda z: z, 1, Head("binary_classification", "raw")),
    ],
    ids=["sigmoid", "flat sigmoid", "labels", "softmax", "log-softmax", "logsigmoid", "scaled", "logit"],
)
def test_a_models_last_function_tells_what_its_outputs_are(last: Any, width: int, head: Head) -> None:
    """Whatever the seed."""
    for seed in range(5):
        subject = Subject.of(randomize(Ends(last, width), seed).double(), graph().x, graph().edge_index)
        output = subject.attention.output
        assert subject.head.resolve(output) == head


def test_whether_a_model_is_accepted_does_not_depend_on_its_seed() -> None:
    """One logit of 11 nodes: all between 0 and 1 for many seeds."""
    within = 0
    for seed in range(40):
        torch.manual_seed(seed)
        model = Ends(lambda z: z / 8 + 0.4, 1).double()
        output = model(graph().x, graph().edge_index)
        within += bool(((output >= 0) & (output <= 1)).all())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = attree.evaluate(model, graph(), [0, 1], ["gatt"], ["weight"])
        assert np.isfinite(result.metrics["explain/gatt/weight/pc_pearson"])
    assert within > 3
