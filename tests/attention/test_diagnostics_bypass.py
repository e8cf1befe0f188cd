"""How much bypasses attention, against hand-made passes with zero weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GAT, GATConv, GATv2Conv, SuperGATConv, TransformerConv, global_add_pool, global_mean_pool

import attree.models
from attree.attention import Bypass, capture_attention
from attree.attention import measure_bypass as measure
from helpers.attention_models import MESSY, Stack, X, snapshot


def measure_bypass(model: nn.Module, x: Tensor, edge_index: Tensor, *args: Any, **kwargs: Any) -> Bypass:
    """The bypass of a call, with its layers found."""
    options = {name: kwargs.pop(name) for name in ("targets", "predict") if name in kwargs}
    layers = capture_attention(model, x, edge_index, *args, **kwargs).layout.layers
    return measure(model, lambda features: model(features, edge_index, *args, **kwargs), x, layers=layers, **options)


@pytest.mark.parametrize(
    "model",
    [
        GAT(4, 6, 2, 3, heads=2),
        GAT(4, 6, 3, 3, v2=True, norm="batch", act="elu"),
        GAT(4, 6, 3, 3, add_self_loops=False),  # nodes without edges differ from the others, whatever the features
        attree.models.SuperGAT(4, 3, hidden_channels=2, heads=2),
        Stack(TransformerConv(4, 4, root_weight=False), TransformerConv(4, 3, root_weight=False)),
    ],
    ids=["gat", "gatv2 with norm", "no self-loops", "supergat", "transformer without root"],
)
def test_nothing_goes_around_a_plain_stack(model: nn.Module) -> None:
    bypass = measure_bypass(model, X, MESSY)
    assert not bypass.exists
    assert bypass.share == 0.0
    assert "Nothing bypasses attention" in str(bypass)


def only_skips(conv: GATConv, x: Tensor) -> Tensor:
    return conv.res(x) + conv.bias


def test_residuals_by_hand() -> None:
    torch.manual_seed(1)
    model = Stack(GATConv(4, 4, residual=True), GATConv(4, 3, residual=True)).train()
    before = snapshot(model)
    targets = torch.tensor([0, 2, 3, 5])
    bypass = measure_bypass(model, X, MESSY, targets=targets)
    assert snapshot(model) == before
    model.eval()
    usual = model(X, MESSY).argmax(-1)
    h = F.elu(only_skips(model.convs[0], X))
    none = F.elu(only_skips(model.convs[1], h))
    first = F.elu(model.convs[1](h, MESSY))
    second = F.elu(only_skips(model.convs[1], F.elu(model.convs[0](X, MESSY))))
    shares = [(usual == cut.argmax(-1))[targets].float().mean().item() for cut in (none, first, second)]
    assert bypass.exists
    assert bypass.bypassed_layers == {0, 1}
    assert bypass.share == pytest.approx(max(shares))
    assert f"{bypass.share:.0%} of the targets keep their class" in str(bypass)


def test_the_root_weight_of_transformers_by_hand() -> None:
    torch.manual_seed(0)
    model = Stack(TransformerConv(4, 3)).eval()
    expected = (model(X, MESSY).argmax(-1) == F.elu(model.convs[0].lin_skip(X)).argmax(-1)).float().mean()
    bypass = measure_bypass(model, X, MESSY)
    assert bypass.exists
    assert bypass.share == pytest.approx(expected.item())


def test_all_of_it_goes_around_attention_that_is_ignored() -> None:
    class Ignores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = GATConv(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(x) + 0 * self.conv(x, edge_index)

    bypass = measure_bypass(Ignores(), X, MESSY)
    assert bypass.share == 1.0
    assert bypass.spread == pytest.approx(1.0)


class Pooled(nn.Module):
    def __init__(self, pool: object, residual: bool) -> None:
        super().__init__()
        self.conv, self.pool = SuperGATConv(4, 3), pool
        self.lin = nn.Linear(4, 3) if residual else None

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        return self.pool(h if self.lin is None else h + self.lin(x), batch)


@pytest.mark.parametrize("batch", [[0, 0, 0, 1, 1, 2], [0] * 6], ids=["three graphs", "one graph"])
def test_graph_level(batch: list[int]) -> None:
    torch.manual_seed(0)
    graph_of = torch.tensor(batch)
    assert not measure_bypass(Pooled(global_mean_pool, False), X, MESSY, graph_of).exists
    assert measure_bypass(Pooled(global_mean_pool, True), X, MESSY, batch=graph_of).exists


def test_a_sum_tells_graphs_of_different_sizes_apart() -> None:
    model = Pooled(global_add_pool, False)
    nn.init.normal_(model.conv.bias)
    assert measure_bypass(model, X, MESSY, torch.tensor([0, 0, 0, 1, 1, 2])).exists


@pytest.mark.parametrize("flat", [True, False])
def test_one_logit(flat: bool) -> None:
    class OneLogit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(4, 1, residual=True)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out = self.conv(x, edge_index)
            return out.squeeze(-1) if flat else out

    torch.manual_seed(0)
    model = OneLogit()
    expected = ((model(X, MESSY) > 0) == (model.conv.res(X) > 0).view_as(model(X, MESSY))).float().mean().item()
    assert measure_bypass(model, X, MESSY).share == pytest.approx(expected)


def test_diverged_and_odd_models() -> None:
    model = Stack(GATConv(4, 3))
    nn.init.constant_(model.convs[0].bias, math.nan)
    bypass = measure_bypass(model, X, MESSY)
    assert math.isnan(bypass.share)
    assert not bypass.exists
    assert "outputs are NaN" in str(bypass)

    class Several(Stack):
        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, ...]:
            return super().forward(x, edge_index), x

    several = Several(GATConv(4, 3))
    with pytest.raises(TypeError, match="to return a tensor of scores, but got tuple"):
        measure(several, lambda features: several(features, MESSY), X, layers=[[0]])


def test_own_classes() -> None:
    torch.manual_seed(0)
    model = Stack(TransformerConv(4, 3))
    multi_label = measure_bypass(model, X, MESSY, predict=lambda scores: scores > 0)
    model.eval()
    expected = ((model(X, MESSY) > 0) == (F.elu(model.convs[0].lin_skip(X)) > 0)).all(-1).float().mean()
    assert multi_label.share == pytest.approx(expected.item())


def zeroed_by_hand(model: nn.Module, conv: nn.Module) -> Tensor:
    """What a model returns with the messages of one convolution 0."""
    handle = conv.register_message_forward_hook(lambda _, inputs, messages: 0 * messages)
    try:
        return model.eval()(X, MESSY)
    finally:
        handle.remove()


class Late(nn.Module):
    """A skip around the second of three layers alone: with all weights 0, nothing is left of it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATConv(4, 4), GATConv(4, 4), GATConv(4, 3)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first, second, third = self.convs
        h = F.elu(first(x, edge_index))
        return third(h + F.elu(second(h, edge_index)), edge_index)


@pytest.mark.parametrize(
    ("model", "around"),
    [
        (Late(), {1}),
        (GAT(4, 6, 2, 3, jk="cat"), {1}),
        (GAT(4, 6, 3, 3, jk="max"), {1, 2}),
        (Stack(GATConv(4, 4, residual=True), GATConv(4, 3)), {0}),
        (Stack(GATConv(4, 4), GATv2Conv(4, 3, residual=True)), {1}),
    ],
    ids=["late skip", "jumping", "deep jumping", "skip in the first layer", "skip in the last layer"],
)
def test_what_goes_around_one_layer(model: nn.Module, around: set[int]) -> None:
    bypass = measure_bypass(model, X, MESSY)
    assert bypass.exists
    assert bypass.spread <= 1e-3
    assert bypass.bypassed_layers == around
    usual = model.eval()(X, MESSY).argmax(-1)
    shares = {
        layer: (zeroed_by_hand(model, model.convs[layer]).argmax(-1) == usual).float().mean().item() for layer in around
    }
    assert bypass.share == pytest.approx(max(shares.values()))
    assert bypass.layer in around
    assert f"all attention weights of layer {bypass.layer + 1} 0" in str(bypass)


def test_where_no_target_keeps_its_class_nothing_is_concluded() -> None:
    assert str(Bypass(0.0, None, 0.5)).endswith("but with all attention weights 0 no target keeps its class.")
    assert "explains only a part" in str(Bypass(0.25, 1, 0.5))
