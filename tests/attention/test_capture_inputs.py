"""Compiled models, PyG's `EdgeIndex`, tables of node embeddings, nodes by name: the attention of the plain call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch_geometric import EdgeIndex
from torch_geometric.nn import GAE, GAT, VGAE, GATConv, TransformerConv

import attree.models
from attree.attention import Attention, capture_attention, measure_bypass
from attree.attention.stand_ins import eval_mode
from attree.attribution import GAtt
from attree.errors import AttreeError
from helpers.attention_models import CLEAN, MESSY, Stack, X, snapshot


def assert_same(one: Attention, other: Attention) -> None:
    assert one.num_layers == other.num_layers
    assert torch.equal(one.graph.edge_index, other.graph.edge_index)
    for left, right in zip(one.weights, other.weights, strict=True):
        assert torch.equal(left, right)
    assert torch.equal(one.output, other.output)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("used", [False, pytest.param(True, marks=pytest.mark.long)], ids=["fresh", "used"])
@pytest.mark.parametrize("name", ["pyg", "attree"])
@pytest.mark.parametrize("how", ["torch.compile", "in place", "inside"])
def test_compiled_models_run_eagerly(how: str, name: str, used: bool) -> None:
    torch.manual_seed(0)
    model = GAT(4, 6, 2, 2, heads=2) if name == "pyg" else attree.models.GAT(4, 2, hidden_channels=3, heads=2)
    expected = capture_attention(model, X, MESSY)
    compiled: nn.Module = model
    if how == "torch.compile":
        compiled = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.convs[0] = torch.compile(model.convs[0], backend="eager")
    if used:  # the compiler has its code by now
        compiled(X, MESSY)
    compiled.train()
    before = snapshot(model)
    assert_same(capture_attention(compiled, X, MESSY), expected)
    assert not measure_bypass(compiled, lambda x: compiled(x, MESSY), X, layers=[[0], [1]]).exists
    assert snapshot(model) == before
    assert compiled.training


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_again_after_evaluating() -> None:
    model, runs = Stack(GATConv(4, 4)), []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        runs.append(module)
        return module

    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend=backend)
    with eval_mode(compiled):
        compiled(X)
    assert runs == []
    with pytest.raises(KeyError), eval_mode(compiled):
        raise KeyError
    compiled(X)
    assert len(runs) == 1
    assert model.training


@pytest.mark.parametrize("order", [None, "row", "col"])
@pytest.mark.parametrize("conv_class", [GATConv, TransformerConv])
def test_edge_index_of_pyg_gives_the_attention_of_the_tensor(order: str | None, conv_class: type[nn.Module]) -> None:
    model = Stack(conv_class(4, 4), conv_class(4, 4))
    edges = CLEAN if order is None else EdgeIndex(CLEAN, sparse_size=(6, 6)).sort_by(order).values.as_tensor()
    edge_index = EdgeIndex(edges, sparse_size=(6, 6), sort_order=order)
    attention, expected = capture_attention(model, X, edge_index), capture_attention(model, X, edges)
    assert_same(attention, expected)
    assert torch.equal(GAtt().attribute(attention).scores, GAtt().attribute(expected).scores)
    assert type(attention.graph.original_edge_index) is Tensor


class Table(nn.Module):
    """Learned features, looked up by the ids of nodes or taken as a whole."""

    def __init__(self, look_up: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.look_up = look_up
        self.first, self.second = GATConv(4, 4), GATConv(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        features = self.table(x) if self.look_up else self.table.weight
        return self.second(self.first(features, edge_index).relu(), edge_index)


@pytest.mark.parametrize("look_up", [True, False])
def test_node_embeddings_instead_of_features(look_up: bool) -> None:
    model = Table(look_up)
    ids = torch.arange(6)
    attention = capture_attention(model, ids, MESSY)
    _, (_, alpha) = model.first(model.table.weight, MESSY, return_attention_weights=True)
    torch.testing.assert_close(attention.weights[0], alpha.detach())
    if not look_up:
        with pytest.raises(TypeError, match="features of all 5 nodes of the graph, but got 6 rows"):
            capture_attention(model, ids[:5], CLEAN)


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv(edge_index=edge_index, x=x)
        return self.conv(edge_index=edge_index, x=h)


def test_features_given_by_keyword_are_followed() -> None:
    assert capture_attention(ByKeyword(), X, MESSY).calls == (0, 1)


def test_wrappers_are_what_they_wrap() -> None:
    torch.manual_seed(0)
    model = GAT(4, 6, 2, 2, heads=2)
    wrapped = [nn.DataParallel(model), AveragedModel(model), nn.Sequential(model)[0]]
    expected = capture_attention(model, X, MESSY)
    for wrapper in wrapped:
        assert_same(capture_attention(wrapper, X, MESSY), expected)
    auto_encoder = GAE(model)  # makes new weights
    assert_same(capture_attention(auto_encoder, X, MESSY), capture_attention(model, X, MESSY))


class MeanAndDeviation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.mu, self.logstd = GATConv(4, 4), GATConv(4, 2), GATConv(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.shared(x, edge_index).relu()
        return self.mu(x, edge_index), self.logstd(x, edge_index)


def test_wrappers_that_hide_the_convolutions_are_refused_for_that() -> None:
    model = GAT(4, 6, 2, 2).eval()
    traced = torch.jit.trace(model, (X, MESSY), check_trace=False)
    exported = torch.export.export(model, (X, MESSY)).module()
    for hidden in (traced, nn.Sequential(traced), exported):
        with pytest.raises(AttreeError, match="is traced, scripted or exported"):
            capture_attention(hidden, X, MESSY)


def test_both_heads_of_a_variational_encoder_reach_what_it_returns() -> None:
    layout = capture_attention(VGAE(MeanAndDeviation()), X, MESSY).layout
    assert layout.feeds == (((1, 1.0), (2, 1.0)), (), ())
    assert layout.shares == (0.0, 1.0, 1.0)
