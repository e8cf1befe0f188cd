"""Capturing attention from PyG's convolutions: right values, right edges, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch_geometric.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    MessagePassing,
    SuperGATConv,
    TransformerConv,
)

from attree.attention import Attention, Graph, capture_attention, hook_softmax
from attree.attention.stand_ins import eval_mode
from helpers.attention_models import CLEAN, MESSY, OwnConv, Stack, X, snapshot

GRAPHS = pytest.mark.parametrize("edge_index", [CLEAN, MESSY], ids=["clean", "messy"])


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    attr = {"edge_attr": torch.randn(8, 3)}
    models: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
        "gat": lambda: (Stack(GATConv(4, 5, heads=3, dropout=0.3), GATConv(15, 2)), {}),
        "gat_edges": lambda: (Stack(GATConv(4, 4, edge_dim=3), GATConv(4, 2, edge_dim=3)), attr),
        "gatv2": lambda: (Stack(GATv2Conv(4, 5, heads=2), GATv2Conv(10, 2)), {}),
        "gatv2_shared": lambda: (Stack(GATv2Conv(4, 5, heads=2, share_weights=True)), {}),
        "gatv2_edges": lambda: (Stack(GATv2Conv(4, 4, edge_dim=3), GATv2Conv(4, 2, heads=2, edge_dim=3)), attr),
    }
    return models[name]()


@pytest.mark.parametrize("name", ["gat", "gat_edges", "gatv2", "gatv2_shared", "gatv2_edges"])
def test_equals_what_pyg_returns(name: str) -> None:
    model, kwargs = build(name)
    attention = capture_attention(model, X, MESSY, **kwargs)
    model.eval()
    x = X
    for layer, conv in enumerate(model.convs):
        out, (edges, alpha) = conv(x, MESSY, return_attention_weights=True, **kwargs)
        assert torch.equal(edges, attention.graph.edge_index)
        torch.testing.assert_close(attention.weights[layer], alpha)
        assert attention.present[layer] is None
        x = torch.nn.functional.elu(out)
    torch.testing.assert_close(attention.output, x)
    torch.testing.assert_close(attention.embedding, out)


@GRAPHS
def test_transformer_adds_no_self_loops(edge_index: Tensor) -> None:
    conv = TransformerConv(4, 3, heads=2)
    attention = capture_attention(Stack(conv), X, edge_index)
    _, (edges, alpha) = conv(X, edge_index, return_attention_weights=True)
    expected = torch.zeros(attention.graph.num_edges, 2)
    used = torch.zeros(attention.graph.num_edges, dtype=torch.bool)
    for number in range(edges.shape[1]):
        position = attention.graph.position[number]
        expected[position] += alpha[number].detach()  # the loop of node 1 was given twice
        used[position] = True
    torch.testing.assert_close(attention.weights[0], expected)
    assert attention.present[0] is not None
    assert torch.equal(attention.present[0], used)


@pytest.mark.parametrize("conv_class", [GATConv, GATv2Conv])
@GRAPHS
def test_convolutions_without_added_self_loops(conv_class: type[MessagePassing], edge_index: Tensor) -> None:
    conv = conv_class(4, 3, heads=2, add_self_loops=False)
    attention = capture_attention(Stack(conv), X, edge_index)
    _, (_, alpha) = conv(X, edge_index, return_attention_weights=True)
    summed = torch.zeros(attention.graph.num_edges, 2).index_add_(0, attention.graph.position, alpha.detach())
    torch.testing.assert_close(attention.weights[0], summed)
    given = torch.zeros(attention.graph.num_edges, dtype=torch.bool)
    given[attention.graph.position] = True
    assert torch.equal(attention.present[0], given)


@pytest.mark.parametrize("kind", ["MX", "SD"])
@GRAPHS
def test_supergat_weighs_its_messages_by_what_is_captured(kind: str, edge_index: Tensor) -> None:
    conv = SuperGATConv(4, 3, heads=2, attention_type=kind, bias=False, concat=True)
    attention = capture_attention(Stack(conv), X, edge_index)
    graph = attention.graph
    features = conv.lin(X).view(-1, 2, 3)[graph.source]
    messages = features * attention.weights[0].unsqueeze(-1)
    out = torch.zeros(6, 2, 3).index_add_(0, graph.destination, messages).view(6, 6)
    torch.testing.assert_close(attention.embedding, out.detach())
    sums = torch.zeros(6, 2).index_add_(0, graph.destination, attention.weights[0])
    torch.testing.assert_close(sums, torch.ones(6, 2))


@GRAPHS
def test_agnn_weighs_its_messages_by_what_is_captured(edge_index: Tensor) -> None:
    attention = capture_attention(Stack(AGNNConv()), X, edge_index)
    graph = attention.graph
    out = torch.zeros(6, 4).index_add_(0, graph.destination, X[graph.source] * attention.weights[0])
    torch.testing.assert_close(attention.embedding, out)


@pytest.mark.parametrize("conv_class", [GATConv, GATv2Conv, SuperGATConv, TransformerConv])
def test_graphs_without_a_single_edge(conv_class: type[MessagePassing]) -> None:
    options = {} if conv_class is TransformerConv else {"add_self_loops": False}
    attention = capture_attention(Stack(conv_class(4, 2, heads=2, **options)), X, CLEAN[:, :0])
    assert torch.equal(attention.weights[0], torch.zeros(6, 2))
    assert attention.present[0] is not None
    assert not attention.present[0].any()


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.conv(x=x, edge_index=edge_index).relu(), edge_index)


def test_a_layer_called_twice_counts_twice() -> None:
    model = TiedWeights().eval()
    attention = capture_attention(model, X, MESSY)
    first, (_, alpha1) = model.conv(X, MESSY, return_attention_weights=True)
    _, (_, alpha2) = model.conv(first.relu(), MESSY, return_attention_weights=True)
    assert attention.num_layers == 2
    torch.testing.assert_close(attention.weights[0], alpha1)
    torch.testing.assert_close(attention.weights[1], alpha2)


def test_a_users_own_convolution() -> None:
    attention = capture_attention(Stack(OwnConv()), X, CLEAN)
    assert attention.weights[0].shape == (12, 1)
    entering_2 = attention.weights[0][:6, 0][CLEAN[1] == 2]
    torch.testing.assert_close(entering_2.sum(), torch.tensor(1.0))


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.conv(x, edge_index)
        raise RuntimeError("midway")


@pytest.mark.parametrize("conv_class", [GATConv, GATv2Conv, SuperGATConv, TransformerConv])
def test_leaves_nothing_behind(conv_class: type[MessagePassing]) -> None:
    model = Stack(conv_class(4, 4), conv_class(4, 4)).train()
    model.convs[0].eval()  # a frozen part must stay frozen
    model.convs[1].lin_frozen = None
    next(model.parameters()).requires_grad_(False)
    before = snapshot(model)
    attention = capture_attention(model, X, MESSY)
    assert snapshot(model) == before
    assert not any(weight.requires_grad for weight in attention.weights)


def test_leaves_nothing_behind_when_the_model_raises() -> None:
    model = Fails().train()
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="midway"):
        capture_attention(model, X, MESSY)
    assert snapshot(model) == before
    assert _get_current_dispatch_mode() is None
    with pytest.raises(KeyError, match="inside"), eval_mode(model):
        raise KeyError("inside")
    assert model.training


def test_taps_nest_and_unwind() -> None:
    model = Stack(GATConv(4, 4)).eval()
    seen: list[str] = []

    def tap(name: str) -> Callable[..., Tensor]:
        def record(conv: MessagePassing, scores: Tensor, normalize: Callable[[Tensor], Tensor]) -> Tensor:
            seen.append(name)
            return normalize(scores)

        return record

    with hook_softmax(model, tap("outer")):
        with hook_softmax(model, tap("inner")):
            model(X, CLEAN)
        model(X, CLEAN)
    model(X, CLEAN)
    assert seen == ["inner", "outer"]


def test_changes_neither_output_nor_random_state() -> None:
    model = build("gat")[0]
    expected = model.eval()(X, MESSY)
    state = torch.get_rng_state()
    assert torch.equal(capture_attention(model, X, MESSY).output, expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_same_under_inference_mode_and_usable_after_it() -> None:
    model = build("gat")[0]
    with torch.inference_mode():
        inside = capture_attention(model, X, MESSY)
    outside = capture_attention(model, X, MESSY)
    for one, other in zip(inside.weights, outside.weights, strict=True):
        assert torch.equal(one, other)
    from attree.attribution import GAttAvg

    assert torch.equal(GAttAvg().attribute(inside).scores, GAttAvg().attribute(outside).scores)


def test_a_graph_at_hand_is_used_and_checked() -> None:
    graph = Graph(CLEAN, 6)
    assert capture_attention(build("gat")[0], X, CLEAN, graph=graph).graph is graph
    with pytest.raises(ValueError, match="the graph of `edge_index`"):
        capture_attention(build("gat")[0], X, MESSY, graph=graph)


def test_attention_checks_its_parts() -> None:
    graph = Graph(CLEAN, 6)
    with pytest.raises(ValueError, match="at least one"):
        Attention.from_weights(graph, [])
    with pytest.raises(ValueError, match=r"of shape \[12, heads\]"):
        Attention.from_weights(graph, [torch.ones(11)])
    with pytest.raises(ValueError, match="heads >= 1"):
        Attention.from_weights(graph, [torch.ones(12, 0)])
    with pytest.raises(ValueError, match="1 entries"):
        Attention(graph, (torch.ones(12, 1),), ())
    two_heads = Attention.from_weights(graph, [torch.arange(24.0).view(12, 2)])
    assert two_heads.per_edge()[0].tolist() == [i * 2 + 0.5 for i in range(12)]
    assert two_heads.per_edge([1])[0].tolist() == [i * 2 + 1.0 for i in range(12)]
