"""However a convolution finds PyG's softmax, the tap meets it; what does without it is told so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric
import torch_geometric.utils
from torch import Tensor
from torch_geometric import utils
from torch_geometric.nn import GATConv, MessagePassing
from torch_geometric.utils import softmax
from torch_geometric.utils import softmax as normalise

from attree.attention import capture_attention, hook_softmax
from attree.attention.softmax_hook import attention_convs
from helpers.attention_models import CLEAN, MESSY, OwnConv, Stack, X, snapshot


class ByAlias(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * normalise((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


class ByModule(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * utils.softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


class ByPackage(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        weights = torch_geometric.utils.softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i)
        return x_j * weights.unsqueeze(-1)


class ByImport(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        from torch_geometric.utils import softmax as found

        return x_j * found((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


def helper(scores: Tensor, index: Tensor, size: int) -> Tensor:
    return inner_helper(scores, index, size).unsqueeze(-1)


def inner_helper(scores: Tensor, index: Tensor, size: int) -> Tensor:
    return softmax(scores, index, num_nodes=size)


class ByHelper(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * helper((x_i * x_j).sum(dim=-1), index, size_i)


class ByMethod(OwnConv):
    def weigh(self, scores: Tensor, index: Tensor, size: int) -> Tensor:
        return softmax(scores, index, num_nodes=size).unsqueeze(-1)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * self.weigh((x_i * x_j).sum(dim=-1), index, size_i)


class ByAttribute(OwnConv):
    def __init__(self) -> None:
        super().__init__()
        self.normalise = softmax

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * self.normalise((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


class ByClassAttribute(OwnConv):
    normalise = staticmethod(softmax)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * self.normalise((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


over_rows = functools.partial(softmax, dim=0)


class ByPartial(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * over_rows((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


def decorated(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        return method(*args, **kwargs)

    return wrapper


class ByDecorator(OwnConv):
    @decorated
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


class BySuper(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return super().message(x_i, x_j, index, size_i)


class BySuperTwice(BySuper):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        assert isinstance(self, BySuperTwice)
        return super(BySuper, self).message(x_i, x_j, index, size_i)


class ByBase(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        assert isinstance(self, OwnConv)
        return OwnConv.message(self, x_i, x_j, index, size_i)


class Mixed(BySuper):
    """Names its own classes, and calls `super()` for what has nothing to do with attention."""

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        assert type(self) is Mixed
        assert issubclass(Mixed, OwnConv)
        assert super(BySuper, self).extra_repr() == super().extra_repr() == OwnConv.extra_repr(self)
        return x_j * softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


WAYS = [
    *(ByAlias, ByModule, ByPackage, ByImport, ByHelper, ByMethod, ByAttribute, ByClassAttribute, ByPartial),
    *(ByDecorator, BySuper, BySuperTwice, ByBase, Mixed),
]


@pytest.mark.parametrize("conv_class", WAYS)
def test_every_way_to_softmax_is_found(conv_class: type[OwnConv]) -> None:
    model = Stack(conv_class(), conv_class())
    before = snapshot(model)
    attention = capture_attention(model, X, MESSY)
    expected = capture_attention(Stack(OwnConv(), OwnConv()), X, MESSY)
    for one, other in zip(attention.weights, expected.weights, strict=True):
        assert torch.equal(one, other)
    assert snapshot(model) == before


@pytest.mark.parametrize("conv_class", WAYS)
def test_every_way_to_softmax_can_be_nested_and_reduced(conv_class: type[OwnConv]) -> None:
    model, seen = Stack(conv_class()).eval(), []

    def outer(conv: MessagePassing, scores: Tensor, normalize: Callable[[Tensor], Tensor]) -> Tensor:
        seen.append("outer")
        return normalize(scores)

    def zero(conv: MessagePassing, scores: Tensor, normalize: Callable[[Tensor], Tensor]) -> Tensor:
        seen.append("inner")
        return torch.zeros_like(normalize(scores))

    before = model(X, CLEAN)
    with hook_softmax(model, outer):
        with hook_softmax(model, zero):
            assert not model(X, CLEAN).any()
        assert torch.equal(model(X, CLEAN), before)
    assert seen == ["inner", "outer"]
    assert before.any()
    assert torch.equal(model(X, CLEAN), before)


class ScaledGAT(GATConv):
    """A subclass of PyG's convolution that goes on from what its base does."""

    def edge_update(
        self, alpha_j: Tensor, alpha_i: Tensor | None, edge_attr: Tensor | None, index: Tensor, ptr: Any, dim_size: Any
    ) -> Tensor:
        return super().edge_update(alpha_j, alpha_i, edge_attr, index, ptr, dim_size)


def test_subclasses_of_pygs_convolutions_may_call_super() -> None:
    torch.manual_seed(0)
    plain = GATConv(4, 3, heads=2)
    scaled = ScaledGAT(4, 3, heads=2)
    scaled.load_state_dict(plain.state_dict())
    expected = capture_attention(Stack(plain), X, MESSY)
    assert torch.equal(capture_attention(Stack(scaled), X, MESSY).weights[0], expected.weights[0])


class Gated(GATConv):
    """Overrides the attention of its base by one without softmax."""

    def edge_update(
        self, alpha_j: Tensor, alpha_i: Tensor | None, edge_attr: Tensor | None, index: Tensor, ptr: Any, dim_size: Any
    ) -> Tensor:
        return torch.sigmoid(alpha_j)


class DenseSoftmax(OwnConv):
    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * torch.softmax(x_i, dim=-1)


@pytest.mark.parametrize("conv", [Gated(4, 4), DenseSoftmax()])
def test_convolutions_without_that_softmax_are_told_so(conv: MessagePassing) -> None:
    reason = rf"but got {type(conv).__name__}, whose methods do not call torch_geometric.utils.softmax"
    with pytest.raises(TypeError, match=reason):
        attention_convs(Stack(GATConv(4, 4), conv))


def test_other_models_are_not_touched() -> None:
    tapped, other = Stack(ByHelper()).eval(), Stack(ByHelper()).eval()
    expected = other(X, CLEAN)
    with hook_softmax(tapped, lambda conv, scores, normalize: torch.zeros_like(scores)):
        assert torch.equal(other(X, CLEAN), expected)
        assert helper(X[:, 0], torch.zeros(6, dtype=torch.int64), 1).sum().item() == pytest.approx(1.0)
