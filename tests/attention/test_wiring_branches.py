"""Branches have the factors of their combination, and wiring of other shapes is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    JumpingKnowledge,
    MessagePassing,
)
from torch_geometric.utils import softmax

from attree.attention import capture_attention
from helpers.attention_models import CLEAN, MESSY, OwnConv, Stack, X, snapshot
from helpers.wired_nets import Net


def parallel(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.first(x, edges) + net.second(x, edges)


def two_stacks(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.second(net.first(x, edges), edges) + net.third(x, edges)


def branching(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = net.first(x, edges)
    return net.second(h, edges) + net.third(h, edges)


def variational(net: Net, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    h = net.first(x, edges)
    return net.second(h, edges), net.third(h, edges)


def contrastive(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.first(x, edges) - net.first(x.flip(0), edges)


def through_numpy(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.second(torch.from_numpy(net.first(x, edges).numpy() * 2.0), edges)


def in_one_buffer(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    """Side by side, though all states live in one tensor."""
    states = torch.empty(3, *x.shape)
    states[0] = x
    states[1] = net.first(states[0], edges)
    states[2] = net.second(states[0], edges)
    return states.sum(dim=0)


def outside_torch(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return torch.from_numpy(net.first(x, edges).numpy() * 2.0)


def nothing_returned(net: Net, x: Tensor, edges: Tensor) -> None:
    net.first(x, edges)


def not_as_a_module(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.first.forward(x, edges)


def averaged(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return torch.stack([net.first(x, edges).relu(), net.second(x, edges), net.third(x, edges)]).mean(dim=0)


def weighted(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    mixed = torch.tensor([0.25, 0.75]).view(-1, 1, 1) * torch.stack([net.first(x, edges), net.second(x, edges)])
    return net.third(mixed.sum(0).relu(), edges)


def concatenated(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return torch.cat([net.first(x, edges), 0.5 * net.second(x, edges)], dim=-1)


def largest(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return torch.stack([net.first(x, edges), net.second(x, edges)]).max(dim=0).values


def gated(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.first(x, edges) * net.second(x, edges).sigmoid()


def recurrent(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return JumpingKnowledge("lstm", 4, 2)([net.first(x, edges), net.second(x, edges)])


BRANCHES = {
    "parallel": (parallel, ((), ()), (1.0, 1.0)),
    "two stacks": (two_stacks, (((1, 1.0),), (), ()), (0.0, 1.0, 1.0)),
    "branching": (branching, (((1, 1.0), (2, 1.0)), (), ()), (0.0, 1.0, 1.0)),
    "variational": (variational, (((1, 1.0), (2, 1.0)), (), ()), (0.0, 1.0, 1.0)),
    "contrastive": (contrastive, ((), ()), (1.0, 1.0)),
    "averaged": (averaged, ((), (), ()), (1 / 3, 1 / 3, 1 / 3)),
    "weighted": (weighted, (((2, 0.25),), ((2, 0.75),), ()), (0.0, 0.0, 1.0)),
    "concatenated": (concatenated, ((), ()), (1.0, 0.5)),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_have_the_factors_of_their_combination(name: str) -> None:
    run, feeds, shares = BRANCHES[name]
    net = Net(run)
    before = snapshot(net)
    attention = capture_attention(net, X, MESSY)
    assert snapshot(net) == before
    assert attention.layout.feeds == feeds
    assert attention.layout.shares == pytest.approx(shares)
    assert attention.layout.is_fixed == (name != "weighted")
    again = capture_attention(net, X, MESSY, wiring=attention.wiring)
    assert again.wiring == attention.wiring
    assert all(torch.equal(*pair) for pair in zip(again.weights, attention.weights, strict=True))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (largest, r"`first` \(GATConv\) and `second` \(GATConv\) are combined by `max`"),
        (gated, r"`first` \(GATConv\) and `second` \(GATConv\) are combined by `product`"),
        (recurrent, r"`first` \(GATConv\) and `second` \(GATConv\) are combined by `LSTM`"),
        (in_one_buffer, r"`second` \(GATConv\) does not read the output of `first`"),
        (through_numpy, "computed outside torch"),
        (outside_torch, "depends on none of the convolutions that it called"),
        (nothing_returned, "it returned no tensor"),
        (not_as_a_module, "called as a module"),
    ],
)
def test_other_shapes_are_refused_by_name(run: Callable[..., Any], reason: str) -> None:
    net = Net(run).train()
    before = snapshot(net)
    with pytest.raises(TypeError, match=reason):
        capture_attention(net, X, CLEAN)
    assert snapshot(net) == before


class EdgeUpdating(nn.Module):
    """The second layer's edge features, but not its node features, come from the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(4, 4), GATConv(4, 4, edge_dim=4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(x, edge_index, self.first(x, edge_index)[edge_index[0]])


class Nested(OwnConv):
    """A convolution that calls another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = GATConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.inner(x, edge_index))


class Diffusing(MessagePassing):
    """Attention computed once, applied twice."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        alpha = self.edge_updater(edge_index, x=x)
        return self.propagate(edge_index, x=self.propagate(edge_index, x=x, alpha=alpha), alpha=alpha)

    def edge_update(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return x_j * alpha.unsqueeze(-1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (EdgeUpdating(), r"`second` \(GATConv\) reads the output of `first` \(GATConv\) in another way"),
        (Stack(Nested()), r"`convs.0` \(Nested\) reads the output of `convs.0.inner` \(GATConv\) in another way"),
    ],
    ids=["edge features", "nested"],
)
def test_convolutions_that_are_not_one_layer_each_are_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        capture_attention(model, X, CLEAN)


def test_one_attention_that_is_applied_twice_is_two_layers() -> None:
    attention = capture_attention(Stack(Diffusing()), X, CLEAN)
    assert attention.num_layers == 2
    assert torch.equal(*attention.weights)
    assert attention.layout.is_chain
