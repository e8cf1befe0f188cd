from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GATv2Conv, SuperGATConv

from attree.errors import ArgumentError
from attree.models import GAT, AttentionNet, GATv2, SuperGAT

KINDS: dict[str, tuple[type[AttentionNet], type[nn.Module], dict[str, Any]]] = {
    "GAT": (GAT, GATConv, {}),
    "GATv2": (GATv2, GATv2Conv, {}),
    "SuperGAT-MX": (SuperGAT, SuperGATConv, {"attention_type": "MX"}),
    "SuperGAT-SD": (SuperGAT, SuperGATConv, {"attention_type": "SD"}),
}


def graph(num_nodes: int = 12, width: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, 40), generator=generator).unique(dim=1)
    return torch.randn(num_nodes, width, generator=generator), edges


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_stack_equals_one_built_by_hand(kind: str, num_layers: int, heads: int, concat: bool, bias: bool) -> None:
    net_class, conv_class, options = KINDS[kind]
    net = net_class(5, 3, 7, num_layers, heads, concat, bias=bias, **options).eval()
    width = 7 * heads if concat else 7
    convs: list[nn.Module] = []
    for layer in range(num_layers - 1):
        inputs = 5 if layer == 0 else width
        convs.append(conv_class(inputs, 7, heads=heads, concat=concat, bias=bias, **options))
    inputs = 5 if num_layers == 1 else width
    convs.append(conv_class(inputs, 3, heads=heads, concat=False, bias=bias, **options))
    for ours, theirs in zip(net.convs, convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
        theirs.eval()

    x, edge_index = graph()
    expected = x
    for conv in convs[:-1]:
        expected = F.elu(conv(expected, edge_index))
    expected = convs[-1](expected, edge_index)
    assert expected.shape == (12, 3)
    assert torch.equal(net(x, edge_index), expected)
    assert net.conv == kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "last_heads"), [(3, 1), (1, 4)])
def test_the_last_layer_may_have_heads_of_its_own(kind: str, heads: int, last_heads: int) -> None:
    net_class, conv_class, options = KINDS[kind]
    net = net_class(5, 3, 7, 2, heads, last_heads=last_heads, **options).eval()
    convs = [
        conv_class(5, 7, heads=heads, concat=True, **options),
        conv_class(7 * heads, 3, heads=last_heads, concat=False, **options),
    ]
    for ours, theirs in zip(net.convs, convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
        theirs.eval()
    x, edge_index = graph()
    assert torch.equal(net(x, edge_index), convs[1](F.elu(convs[0](x, edge_index)), edge_index))
    assert (net.heads, net.last_heads) == (heads, last_heads)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_dropout_of_the_first_layer_alone(kind: str) -> None:
    net_class, conv_class, options = KINDS[kind]
    net = net_class(5, 3, 7, 2, attention_dropout=[0.6, 0.0], **options)
    convs = [conv_class(5, 7, dropout=0.6, **options), conv_class(7, 3, concat=False, **options)]
    for ours, theirs in zip(net.convs, convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
    x, edge_index = graph()
    outputs = []
    for run in (lambda: net(x, edge_index), lambda: convs[1](F.elu(convs[0](x, edge_index)), edge_index)):
        torch.manual_seed(3)
        outputs.append(run())
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], net.eval()(x, edge_index))
    assert net.attention_dropout == [0.6, 0.0]
    assert net_class(5, 3, attention_dropout=0.6, **options).attention_dropout == 0.6


def test_both_dropouts_act_in_training_only() -> None:
    x, edge_index = graph()
    for rates in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        net = GAT(5, 3, **rates)
        torch.manual_seed(0)
        assert not torch.equal(net(x, edge_index), net(x, edge_index))
        net.eval()
        assert torch.equal(net(x, edge_index), net(x, edge_index))


def test_supergat_loss_is_the_weighted_sum_over_layers() -> None:
    x, edge_index = graph()
    net = SuperGAT(5, 3, num_layers=3, attention_loss_weight=2.5)
    net(x, edge_index)
    expected = sum(F.binary_cross_entropy_with_logits(conv.att_x.mean(dim=-1), conv.att_y) for conv in net.convs)
    torch.testing.assert_close(net.attention_loss(), 2.5 * expected)
    net.attention_loss().backward()
    assert net.convs[0].lin.weight.grad.abs().sum() > 0
    assert float(net.eval().attention_loss()) == 0
    assert GAT(5, 3).attention_loss() is None


def test_supergat_draws_non_edges_within_each_graph() -> None:
    graphs = [Data(*graph(num_nodes, seed=num_nodes)) for num_nodes in (9, 12, 10)]
    # A graph without edges and one where every pair is an edge have no non-edges to give.
    graphs.insert(1, Data(torch.ones(1, 5), torch.empty(2, 0, dtype=torch.long)))
    batch = Batch.from_data_list(graphs)
    net = SuperGAT(5, 3, neg_sample_ratio=0.5)
    negative = net.pass_options(batch.edge_index, batch.batch)["neg_edge_index"]
    assert torch.equal(batch.batch[negative[0]], batch.batch[negative[1]])
    edges = set(map(tuple, batch.edge_index.t().tolist()))
    edges |= {(j, i) for i, j in edges}
    drawn = list(map(tuple, negative.t().tolist()))
    assert not edges & set(drawn)
    assert all(i != j for i, j in drawn)
    pairs = sum(i != j for i, j in edges)
    assert 0.3 * pairs < len(drawn) < 0.7 * pairs
    net(batch.x, batch.edge_index, batch.batch)
    for conv in net.convs:
        assert int((conv.att_y == 0).sum()) > 0
    assert net.eval().pass_options(batch.edge_index, batch.batch) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 0}, r"`num_layers` to be an integer in \[1, 1000\], but got 0"),
        ({"heads": -1}, "`heads`"),
        ({"hidden_channels": 0}, "`hidden_channels`"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"attention_dropout": -0.1}, "`attention_dropout`"),
        ({"attention_dropout": [0.5, 1.0]}, r"`attention_dropout` to be a number in \[0, 1\), but got 1.0"),
        ({"attention_dropout": [0.5]}, r"`attention_dropout` to be one rate, or 2, one a layer, but got \[0.5\]"),
        ({"last_heads": 0}, r"`last_heads` to be an integer in \[1, 2147483647\], but got 0"),
        ({"attention_type": "XX"}, "`attention_type`"),
        ({"attention_loss_weight": -1}, "`attention_loss_weight`"),
        ({"edge_sample_ratio": 0}, "`edge_sample_ratio`"),
        ({"neg_sample_ratio": 0}, "`neg_sample_ratio`"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SuperGAT(5, 3, **arguments)
