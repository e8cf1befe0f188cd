"""The five tasks of docs/how_to/extending.md, done from outside the package by the page's own code."""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.attribution import GAtt
from attree.faithfulness import ExactReducer, reduce_attention
from attree.faithfulness.exact.convolution_algebra import ALGEBRAS
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize
from helpers.no_warnings import no_warnings
from helpers.reducers import any_pass

PAGE = Path(__file__).parents[1] / "docs" / "how_to" / "extending.md"


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """What the page's blocks define, run in their order as one module."""
    module = types.ModuleType("extending_page")
    sys.modules[module.__name__] = module
    known = dict(ALGEBRAS)
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S):
        exec(compile(block, str(PAGE), "exec"), module.__dict__)
    yield module.__dict__
    ALGEBRAS.clear()
    ALGEBRAS.update(known)
    del sys.modules[module.__name__]


@pytest.fixture
def graph() -> Data:
    x = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Data(x=x, edge_index=messy_graph(0))


@pytest.fixture
def model() -> nn.Module:
    return randomize(GAT(5, 8, 2, out_channels=3, heads=2), 1, 0.7).double().eval()


def test_a_flow_method(page: dict[str, Any], model: nn.Module, graph: Data) -> None:
    method = page["LastLayer"]()
    subject = Subject.of_data(model, graph)
    scores = method.attribute(subject, 0).dense(0)
    expected = subject.attention.weights[-1].mean(dim=1) * (subject.graph.destination == 0)
    torch.testing.assert_close(scores, expected)
    result = attree.evaluate(model, graph, targets=[0, 4], methods=["gatt", method])
    assert "Last layer" in str(result)


def test_a_method_that_needs_the_model(page: dict[str, Any], model: nn.Module, graph: Data) -> None:
    subject = Subject.of_data(model, graph)
    scores = page["LogitGradient"]().attribute(subject, [0, 3])
    assert scores[3].scores.shape == (subject.graph.num_edges,)
    assert all(parameter.grad is None for parameter in model.parameters())
    # To first order, a weight that vanishes takes its gradient times the weight from the logit: check one by hand.
    result = attree.evaluate(model, graph, targets=[0, 3], methods=[page["LogitGradient"]()])
    assert math.isfinite(result.metrics["explain/logit_gradient/removal/pc_pearson"])
    gradient = scores.dense(0)
    assert float(gradient[subject.graph.destination == NODES - 1].abs().max()) == 0.0  # an isolated node


def test_a_protocol(page: dict[str, Any], model: nn.Module, graph: Data) -> None:
    result = attree.evaluate(model, graph, targets=[0], protocols=["weight", page["halved"]])
    whole, half = (result.reductions[name].delta_pc.abs().max() for name in ("weight", "halved"))
    assert 0 < float(half) < float(whole)


def test_a_dataset(page: dict[str, Any]) -> None:
    assert page["mine"].num_classes == 3
    ring = page["Ring"]()
    assert ring.graph.y.sum() == 14
    assert ring.truth.edges_of(1).tolist() == [[0], [1]]


def test_a_convolution_for_the_exact_engine(page: dict[str, Any], graph: Data) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = page["DotConv"](5, 4), page["DotConv"](4, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
            return out

    model = randomize(Net(), 0, 0.5).double().eval()
    with no_warnings():
        assert isinstance(any_pass(model, graph.x, graph.edge_index).engine, ExactReducer)
    subject = Subject.of_data(model, graph)
    pairs = attree.evaluate(model, graph, targets="all", methods=[GAtt()]).pairs
    exact = reduce_attention(model, graph.x, graph.edge_index, pairs, "removal")
    for pair in range(0, len(pairs), 5):
        edge = int(pairs.edges[pair])
        if edge < subject.graph.num_proper_edges:
            kept = subject.graph.position != edge
            before, after = (
                model(graph.x, edges).softmax(-1) for edges in (graph.edge_index, graph.edge_index[:, kept])
            )
            target = int(pairs.targets[pairs.owner[pair]])
            predicted = int(before[target].argmax())
            drop = float(before[target, predicted] - after[target, predicted])
            assert float(exact.delta_pc[pair]) == pytest.approx(drop, abs=1e-9)


def test_the_page_imports_public_names_alone() -> None:
    """Those that a folder of attree lists in its `__all__`."""
    found = re.findall(r"^from (attree[.\w]*) import (.*)$", PAGE.read_text(), flags=re.M)
    assert found
    for module, names in found:
        public = import_module(module)
        assert hasattr(public, "__path__"), f"{module} is a file, not a folder"
        assert set(names.split(", ")) <= set(public.__all__), module
