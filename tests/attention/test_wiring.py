"""Which calls are layers is found from what feeds what: chains with skips and branches are served, others refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    GAT,
    GATConv,
    GATv2Conv,
    GPSConv,
    JumpingKnowledge,
    MessagePassing,
    SuperGATConv,
    global_mean_pool,
)
from torch_geometric.utils import softmax

from attree.attention import capture_attention
from attree.attention.capture import record_layers
from attree.attention.provenance import Provenance
from attree.attention.wiring import Wiring
from attree.attribution import GAtt
from helpers.attention_models import CLEAN, MESSY, OwnConv, Stack, X, snapshot


class Net(nn.Module):
    """Three convolutions of equal width, combined as a test says."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second, self.third = (GATConv(4, 4) for _ in range(3))
        self.run = run

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.run(self, x, edge_index)


def weights_of(conv: GATConv, x: Tensor) -> Tensor:
    return conv(x, MESSY, return_attention_weights=True)[1][1]


def residual(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = x + net.first(x, edges)
    return x + h + net.second(h.relu(), edges)


def in_place(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = net.first(x, edges)
    buffer = torch.zeros_like(h)
    buffer[:, :2] = F.relu_(h)[:, :2]
    buffer[:, 2:].copy_(h[:, 2:])
    return net.second(buffer, edges)


def detached(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.first(x, edges)
    return net.second(h.detach().clone(), edges)


def stacked_in_one_buffer(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    states = torch.empty(3, *x.shape)
    states[0] = x
    states[1] = net.first(states[0], edges)
    states[2] = net.second(states[1], edges)
    return states.sum(dim=0)


def jumping(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = net.first(x, edges)
    return JumpingKnowledge("max")([h, net.second(h, edges)])


def auxiliary(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = net.first(x, edges)
    net.third(h, edges).mean()
    return net.second(h, edges)


def second_pass(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    net.second(net.first(x.flip(0), edges), edges)
    return net.second(net.first(x, edges), edges)


def with_hidden(net: Net, x: Tensor, edges: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    h = net.first(x, edges)
    return net.second(h, edges), {"hidden": h, "input": x}


SERVED = {
    "residual": (residual, (0, 1), lambda net: (X + net.first(X, MESSY)).relu()),
    "in place": (
        in_place,
        (0, 1),
        lambda net: torch.cat([net.first(X, MESSY)[:, :2].relu(), net.first(X, MESSY).relu()[:, 2:]], 1),
    ),
    "one buffer": (stacked_in_one_buffer, (0, 1), lambda net: net.first(X, MESSY)),
    "detached": (detached, (0, 1), lambda net: net.first(X, MESSY)),
    "jumping": (jumping, (0, 1), lambda net: net.first(X, MESSY)),
    "auxiliary": (auxiliary, (0, 2), lambda net: net.first(X, MESSY)),
    "second pass": (second_pass, (2, 3), lambda net: net.first(X, MESSY)),
    "with hidden": (with_hidden, (0, 1), lambda net: net.first(X, MESSY)),
}


@pytest.mark.parametrize("name", SERVED)
def test_chains_with_skips_are_served(name: str) -> None:
    torch.manual_seed(0)
    run, calls, hidden = SERVED[name]
    net = Net(run).eval()
    before = snapshot(net)
    attention = capture_attention(net, X, MESSY)
    assert snapshot(net) == before
    assert attention.calls == calls
    assert attention.num_layers == 2
    torch.testing.assert_close(attention.weights[0], weights_of(net.first, X).detach())
    torch.testing.assert_close(attention.weights[1], weights_of(net.second, hidden(net)).detach())
    assert attention.layout.is_chain
    again = capture_attention(net, X, MESSY, wiring=attention.wiring)
    assert all(torch.equal(*pair) for pair in zip(again.weights, attention.weights, strict=True))
    assert again.calls == calls


@pytest.mark.parametrize("jk", [None, "cat", "max", "lstm"])
@pytest.mark.parametrize("v2", [False, True])
def test_pygs_own_networks_are_chains(jk: str | None, v2: bool) -> None:
    model = GAT(4, 6, 3, 2, v2=v2, heads=2, jk=jk, norm="batch", act="elu")
    assert capture_attention(model, X, MESSY).calls == (0, 1, 2)


def test_a_transformer_around_the_convolution_is_a_skip() -> None:
    model = Stack(GPSConv(4, GATConv(4, 4), heads=2), GPSConv(4, GATConv(4, 4), heads=2))
    assert capture_attention(model, X, MESSY).calls == (0, 1)


class WithLoss(nn.Module):
    """Returns its attention loss beside the scores, as examples of SuperGAT do."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SuperGATConv(4, 4), SuperGATConv(4, 4)])

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        for conv in self.convs:
            x = conv(x, edge_index)
        return x, sum(conv.get_attention_loss() for conv in self.convs)


def test_an_attention_loss_beside_the_scores_is_no_branch() -> None:
    assert capture_attention(WithLoss(), X, MESSY).calls == (0, 1)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATConv(4, 4), GATv2Conv(4, 4)])

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        first = self.convs[0](x, edge_index)
        return global_mean_pool(first, batch) + global_mean_pool(self.convs[1](first, edge_index), batch)


def test_graph_level_networks_are_chains() -> None:
    attention = capture_attention(Pooled(), X, MESSY, torch.zeros(6, dtype=torch.int64))
    assert attention.calls == (0, 1)


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
        (largest, r"`first` \(GATConv\) and `second` \(GATConv\) return is combined by `max`"),
        (gated, r"`first` \(GATConv\) and `second` \(GATConv\) return is combined by `product`"),
        (recurrent, r"`first` \(GATConv\) and `second` \(GATConv\) return is combined by `LSTM`"),
        (in_one_buffer, r"`second` \(GATConv\) does not read the output of `first`"),
        (through_numpy, "computed outside torch"),
        (outside_torch, "depends on none of those it called"),
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
        (Stack(Diffusing()), r"`convs.0` \(Diffusing\) to pass messages once a call, but it did so 2 times"),
    ],
    ids=["edge features", "nested", "diffusing"],
)
def test_convolutions_that_are_not_one_layer_each_are_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        capture_attention(model, X, CLEAN)


def test_edges_beyond_the_layers_of_the_output_score_nothing() -> None:
    """Stacked in the order of calls, a 1-hop network with an auxiliary head scored edges two hops away."""
    net = Net(lambda net, x, edges: (net.second(x, edges), net.first(x, edges))[1])
    scores = GAtt().attribute(capture_attention(net, X, CLEAN), 2).dense(2)
    assert set(CLEAN[1][scores[:6].nonzero().view(-1)].tolist()) == {2}


def test_known_calls_are_checked() -> None:
    net = Net(residual)
    with pytest.raises(ValueError, match="one of the 2 calls made, but got"):
        capture_attention(net, X, CLEAN, wiring=Wiring.chain((0, 2)))
    with record_layers(net, follow=False) as records:
        net(X, CLEAN)
    assert [dict(record.mix.factors) for record in records] == [{}, {}]


def test_provenance_follows_values_not_shapes() -> None:
    x, y = torch.rand(3, 2), torch.rand(3, 2)
    with Provenance() as provenance:
        provenance.mark(x, 0)
        provenance.mark(y, 1)
        shaped = torch.zeros_like(x) + x.new_ones(3, 2)
        mixed = torch.stack([x.detach()[:, 0], y[:, 1]])
        buffer = torch.zeros(3, 2)
        buffer[1:, :1].add_(y[1:, :1])
        into = torch.empty(3, 2)
        torch.mul(x, 2, out=into)
        sparse = x.to_sparse() * 2
        chosen = torch.arange(3)[x[:, 0].argsort()]
    assert provenance.marks(shaped) == frozenset()
    assert provenance.marks(mixed) == {0, 1}
    assert provenance.marks(buffer) == {1}
    assert provenance.marks(into) == {0}
    assert provenance.marks(sparse) == {0}
    assert provenance.marks({"chosen": [chosen]}) == {0}
