"""A subject records one pass when it is made, and never changes: other weights are another subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GPSConv, global_mean_pool

from attree.attention import capture_attention
from attree.attribution import GAtt
from attree.errors import UnsupportedModelError
from attree.models import GAT
from attree.subject import Subject
from helpers.graphs import randomize

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).double()
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 1, 3], [1, 2, 3, 0, 5, 6, 7, 4, 3, 2]])
BATCH = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


class Pooled(nn.Module):
    """One row per graph, pooled by weights that depend on the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = GATConv(5, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        return global_mean_pool(torch.sigmoid(self.gate(h)) * h, batch)


class TwoBranches(nn.Module):
    """Branches that a computation tree cannot show."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = GATConv(5, 3), GATConv(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.left(x, edge_index) * self.right(x, edge_index)


def subjects() -> list[Subject]:
    stack = randomize(GAT(5, 3, 4), 1).double().eval()
    return [Subject.of(stack, X, EDGES), Subject.of(randomize(Pooled().double(), 1), X, EDGES, BATCH)]


@pytest.mark.parametrize("subject", subjects(), ids=["nodes", "graphs"])
def test_reading_changes_nothing(subject: Subject) -> None:
    before = dict(vars(subject))
    _ = subject.roots(), subject.head, subject.output, subject.attention, subject.num_targets, subject.batch
    GAtt().attribute(subject)
    assert {name: id(value) for name, value in vars(subject).items()} == {
        name: id(value) for name, value in before.items()
    }
    for field in fields(subject):
        with pytest.raises(FrozenInstanceError):
            setattr(subject, field.name, None)


@pytest.mark.parametrize("args", [(), (BATCH,)], ids=["nodes", "graphs"])
def test_other_weights_are_another_subject(args: tuple[Any, ...]) -> None:
    model = randomize(Pooled() if args else GAT(5, 3, 4), 1).double().eval()
    subject = Subject.of(model, X, EDGES, *args)
    before = model(X, EDGES, *args).detach()
    torch.testing.assert_close(subject.output, before)
    randomize(model, 2)
    torch.testing.assert_close(subject.output, before)
    after = capture_attention(model, X, EDGES, *args)
    for new in (subject.with_current_weights(), subject.with_attention(after), Subject.of(model, X, EDGES, *args)):
        torch.testing.assert_close(new.output, model(X, EDGES, *args).detach())
        assert all(torch.equal(*pair) for pair in zip(new.attention.weights, after.weights, strict=True))
        if args:
            assert new.node_weights is not None
            assert subject.node_weights is not None
            assert not torch.allclose(new.node_weights, subject.node_weights)
            torch.testing.assert_close(new.node_weights, Subject.of(model, X, EDGES, *args).node_weights)


def test_what_cannot_be_found_is_said_where_it_is_needed() -> None:
    model = randomize(TwoBranches().double(), 1)
    subject = Subject.of(model, X, EDGES)
    torch.testing.assert_close(subject.output, model(X, EDGES).detach())
    assert subject.num_targets == 8
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="combined by `product`"):
            _ = subject.attention


class Transformer(nn.Module):
    """Layers along edges and over all nodes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GPSConv(6, GATConv(6, 6), heads=2, attn_type=kind) for _ in range(2))
        self.lin, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.lin(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch)
        return self.head(h)


@pytest.mark.parametrize("make", [Pooled, partial(Transformer, "multihead"), partial(Transformer, "performer")])
def test_one_pass_says_everything(make: Callable[[], nn.Module]) -> None:
    """How nodes are pooled and what attends over all nodes is read in the pass that captures attention."""
    model, passes = randomize(make().double(), 1).eval(), 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    model.register_forward_hook(count)
    subject = Subject.of(model, X, EDGES, BATCH)
    passes = 0
    again = subject.with_current_weights()
    scores = GAtt().attribute(again).scores
    assert passes == 1
    torch.testing.assert_close(scores, GAtt().attribute(subject).scores)
