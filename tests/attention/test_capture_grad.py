"""Attention captured with gradients, and GAtt of it, have the gradients that finite differences give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.nn import GATConv, GATv2Conv, SuperGATConv, TransformerConv

from attree.attention import Graph, capture_attention
from attree.attribution import GAtt, GAttAvg, subgraph_pairs
from attree.errors import ArgumentError

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5], [1, 2, 3, 4, 0, 2, 0, 3]])
"""Six nodes; edges into most of them come from two others."""


class Stack(nn.Module):
    """Two convolutions of one kind."""

    def __init__(self, conv: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.first, self.last = conv(3, 4, heads=2, **options), conv(8, 2, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).tanh(), edge_index)


class DoubledConv(GATConv):
    """A convolution of a stranger's: its messages are twice what the softmax says."""

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return 2 * super().message(x_j, alpha)


KINDS = {
    "GAT": (GATConv, {}),
    "GATv2": (GATv2Conv, {}),
    "SuperGAT": (SuperGATConv, {"attention_type": "SD"}),
    "no self-loops": (TransformerConv, {}),
    "a stranger's": (DoubledConv, {}),
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    conv, options = KINDS[request.param]
    return Stack(conv, **options).double()


def check_gradient(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> None:
    """Compare a number's gradient with central differences, along a random direction."""
    (found,) = torch.autograd.grad(function(at), at, allow_unused=True)
    direction = torch.randn_like(at)
    with torch.no_grad():
        up, down = function(at + step * direction), function(at - step * direction)
    along = torch.zeros_like(up) if found is None else (found * direction).sum()
    torch.testing.assert_close(along, (up - down) / (2 * step), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("method", [GAtt, GAttAvg])
def test_gatt_has_the_gradient_of_finite_differences(model: nn.Module, method: type[GAtt]) -> None:
    x = torch.randn(6, 3, dtype=torch.double)
    weight = torch.randn(200, dtype=torch.double)

    def score(parameters: dict[str, Tensor]) -> Tensor:
        class Bound(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                return functional_call(self.inner, parameters, (x, edge_index))

        scores = method().attribute(capture_attention(Bound(), x, EDGES, grad=True), [0, 3]).scores
        return (scores * weight[: scores.numel()]).sum()

    for name, value in model.named_parameters():
        check_gradient(lambda moved, name=name: score({name: moved}), value)  # type: ignore[misc]


def test_scores_of_pairs_and_inputs_are_differentiable_too(model: nn.Module) -> None:
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    pairs = subgraph_pairs(Graph(EDGES, 6), [1, 2], 2)

    def score(x: Tensor) -> Tensor:
        scores = GAtt().score_pairs(capture_attention(model, x, EDGES, grad=True), pairs)
        return (scores * torch.arange(scores.numel())).sum()

    check_gradient(score, x)


def test_the_numbers_are_those_without_gradients(model: nn.Module) -> None:
    x = torch.randn(6, 3, dtype=torch.double)
    plain, kept = capture_attention(model, x, EDGES), capture_attention(model, x, EDGES, grad=True)
    assert plain.calls == kept.calls
    for without, having in zip(plain.weights, kept.weights, strict=True):
        assert not without.requires_grad
        assert having.requires_grad
        assert torch.equal(without, having)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_inference_mode_has_no_gradients_to_keep(model: nn.Module) -> None:
    with torch.inference_mode(), pytest.raises(ArgumentError, match="`grad` to be False in inference mode"):
        capture_attention(model, torch.randn(6, 3).double(), EDGES, grad=True)
