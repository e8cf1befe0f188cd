"""Messages weighed in place: the same numbers, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GATConv, GATv2Conv, TransformerConv

from attree.attention.stand_ins import inplace_messages
from helpers.graphs import NODES, messy_graph

CONVS: dict[str, Any] = {
    "GATConv": lambda: GATConv(5, 4, heads=3, edge_dim=None),
    "GATv2Conv": lambda: GATv2Conv(5, 4, heads=3, share_weights=True),
    "TransformerConv": lambda: TransformerConv(5, 4, heads=3),
}


def graph() -> tuple[Tensor, Tensor]:
    return torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0)), messy_graph(0)


@pytest.mark.parametrize("name", CONVS)
def test_outputs_are_the_same_to_the_bit(name: str) -> None:
    torch.manual_seed(0)
    conv, (x, edges) = CONVS[name]().eval(), graph()
    with torch.no_grad():
        expected = conv(x, edges)
        with inplace_messages(conv):
            assert torch.equal(conv(x, edges), expected)
    assert "message" not in conv.__dict__


def test_features_are_not_touched_and_the_product_is_in_place() -> None:
    net, (x, edges) = GAT(5, 8, 2, 3).eval(), graph()
    before, seen = x.clone(), []
    aggregate = GATConv.aggregate
    conv = net.convs[0]
    conv.aggregate = lambda inputs, *args, **kwargs: (seen.append(inputs), aggregate(conv, inputs, *args, **kwargs))[1]
    with torch.no_grad(), inplace_messages(net):
        net(x, edges)
    assert torch.equal(x, before)
    gathered = torch.ones(2, 1, 3)
    with torch.no_grad(), inplace_messages(net):
        assert conv.message(x_j=gathered, alpha=torch.full((2, 1), 0.5)) is gathered
    assert len(seen) == 1


def test_gradients_and_wider_types_are_as_ever() -> None:
    conv, (x, edges) = GATConv(5, 4).eval(), graph()
    with inplace_messages(conv):
        given = x.clone().requires_grad_()
        conv(given, edges).sum().backward()
    other = x.clone().requires_grad_()
    conv(other, edges).sum().backward()
    assert given.grad is not None
    assert torch.equal(given.grad, other.grad)
    half = torch.ones(2, 1, 3, dtype=torch.float16)
    with torch.no_grad(), inplace_messages(conv):
        assert conv.message(x_j=half, alpha=torch.ones(2, 1)).dtype == torch.float32


def test_messages_of_ones_own_and_those_looked_at_stay() -> None:
    class Own(GATConv):
        def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
            return 2 * super().message(x_j, alpha)

    own, watched = Own(5, 4), GATConv(5, 4)
    handle = watched.register_message_forward_hook(lambda module, inputs, output: None)
    with inplace_messages(nn.ModuleList([own, watched])):
        assert "message" not in own.__dict__
        assert "message" not in watched.__dict__
    handle.remove()


def test_an_exception_leaves_nothing_behind() -> None:
    conv = GATConv(5, 4)
    with pytest.raises(RuntimeError, match="stop"), inplace_messages(conv):
        raise RuntimeError("stop")
    assert "message" not in conv.__dict__
