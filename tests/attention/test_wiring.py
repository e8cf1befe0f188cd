"""Which calls are layers is found from what feeds what: chains with skips and branches are served, others refused."""

from __future__ import annotations

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
    SuperGATConv,
    global_mean_pool,
)

from attree.attention import capture_attention
from attree.attention.layer_records import record_layers
from attree.attention.marked_tensors import Provenance
from attree.attention.wiring import Wiring
from attree.attribution import GAtt
from helpers.attention_models import CLEAN, MESSY, Stack, X, snapshot
from helpers.wired_nets import Net, weights_of


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
