"""Capturing attention from PyG's convolutions: right values, right edges, nothing left behind, clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    MessagePassing,
    RGATConv,
    SuperGATConv,
    TransformerConv,
)
from torch_geometric.utils import softmax, to_torch_coo_tensor

from attree.attention import Attention, LoopedGraph, capture_attention
from attree.attention.capture import evaluating
from attree.attention.softmax_tap import tap_softmax

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
CLEAN = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
MESSY = torch.tensor([[0, 1, 1, 2, 3, 0, 4, 1], [1, 1, 2, 3, 4, 1, 0, 1]])  # loops, duplicates, node 5 isolated
GRAPHS = pytest.mark.parametrize("edge_index", [CLEAN, MESSY], ids=["clean", "messy"])


class Stack(nn.Module):
    """Convolutions one after the other, with dropout in between."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor, **kwargs: Any) -> Tensor:
        for conv in self.convs:
            x = F.elu(self.dropout(conv(x, edge_index, **kwargs)))
        return x


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
        x = F.elu(out)
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


class OwnConv(MessagePassing):
    """A user's own attention convolution."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


def test_a_users_own_convolution() -> None:
    attention = capture_attention(Stack(OwnConv()), X, CLEAN)
    assert attention.weights[0].shape == (12, 1)
    entering_2 = attention.weights[0][:6, 0][CLEAN[1] == 2]
    torch.testing.assert_close(entering_2.sum(), torch.tensor(1.0))


def snapshot(model: nn.Module) -> list[Any]:
    """Everything a capture could leave behind."""
    state: list[Any] = []
    for module in model.modules():
        hooks = {name: len(value) for name, value in vars(module).items() if name.endswith("_hooks")}
        state.append((module.training, sorted(vars(module)), hooks, vars(type(module)).get("message")))
    for parameter in model.parameters():
        state.append((parameter.requires_grad, parameter.grad, parameter.detach().clone().tolist()))
    return state


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
    with pytest.raises(KeyError, match="inside"), evaluating(model):
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

    with tap_softmax(model, tap("outer")):
        with tap_softmax(model, tap("inner")):
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
    graph = LoopedGraph(CLEAN, 6)
    assert capture_attention(build("gat")[0], X, CLEAN, graph=graph).graph is graph
    with pytest.raises(ValueError, match="the looped graph of `edge_index`"):
        capture_attention(build("gat")[0], X, MESSY, graph=graph)


class Bipartite(nn.Module):
    def __init__(self, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.conv = GATConv((4, 4), 3, add_self_loops=False)
        self.sizes = sizes

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv((x[: self.sizes[0]], x[: self.sizes[1]]), edge_index)


class Rewires(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index.flip(1))


class MakesSparse(Rewires):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, to_torch_coo_tensor(edge_index, size=6).t())


class CallsNone(Rewires):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class Relational(nn.Module):
    """Edges of two relations, or all of the second."""

    def __init__(self, both: bool, mechanism: str = "within-relation") -> None:
        super().__init__()
        self.conv = RGATConv(4, 3, num_relations=2, attention_mechanism=mechanism)
        self.both = both

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        relation = torch.ones(edge_index.shape[1], dtype=torch.int64)
        if self.both:
            relation[:2] = 0
        return self.conv(x, edge_index, relation)


class PerGroup(OwnConv):
    """One softmax, but with a score for every second edge only."""

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        softmax((x_i * x_j)[::2], index[::2], num_nodes=size_i)
        return x_j


def test_attention_across_relations_is_one_softmax() -> None:
    attention = capture_attention(Relational(both=True, mechanism="across-relation"), X, CLEAN)
    sums = torch.zeros(6).index_add_(0, CLEAN[1], attention.weights[0][:6, 0])
    torch.testing.assert_close(sums, torch.tensor([1.0] * 5 + [0.0]))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Stack(GATConv(4, 4), GCNConv(4, 4)), "GCNConv, which does not call"),
        (nn.Linear(4, 4), "Linear, which has none"),
        (Bipartite((6, 5)), "two node sets"),
        (Rewires(), "ran on others"),
        (MakesSparse(), r"edge_index as a \[2, E\] tensor"),
        (CallsNone(), "it called none"),
        (Stack(GATConv(4, 4, flow="target_to_source")), "target_to_source"),
        (Relational(both=True), r"layer 1 \(RGATConv\) .* its 6 edges, but the last of 2 calls had 4 scores"),
        (Relational(both=False), r"the last of 2 calls had 6 scores"),
        (Stack(PerGroup()), r"layer 1 \(PerGroup\) .* its 6 edges, but the last of 1 calls had 3 scores"),
    ],
    ids=[
        *("gcn", "no convolution", "bipartite", "rewired", "sparse inside", "not called", "reversed"),
        *("relations", "one relation", "some edges"),
    ],
)
def test_refuses_what_it_cannot_follow(model: nn.Module, reason: str) -> None:
    before = snapshot(model)
    with pytest.raises(TypeError, match=reason):
        capture_attention(model, X, CLEAN)
    assert snapshot(model) == before


def test_both_sides_of_one_node_set_are_no_bipartite_graph() -> None:
    assert capture_attention(Bipartite((6, 6)), X, CLEAN).weights[0].shape == (12, 1)


def test_refuses_unusable_edges() -> None:
    model = Stack(GATConv(4, 4))
    for edge_index, reason in (
        (to_torch_coo_tensor(CLEAN, size=6), "not a sparse matrix"),
        (CLEAN.T, r"of shape \[2, num_edges\]"),
        (CLEAN.int(), "torch.int64"),
        (CLEAN + 2, r"node ids in \[0, 6\)"),
    ):
        with pytest.raises(ValueError, match=reason):
            capture_attention(model, X, edge_index)


def test_attention_checks_its_parts() -> None:
    graph = LoopedGraph(CLEAN, 6)
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
