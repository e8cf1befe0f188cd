from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINConv, SAGEConv

import attree
from attree.errors import ArgumentError
from attree.models import GCN, GIN, SAGE, ConvNet, NodeClassifier

KINDS: dict[str, tuple[type[ConvNet], type[nn.Module]]] = {
    "GCN": (GCN, GCNConv),
    "SAGE": (SAGE, SAGEConv),
    "GIN": (GIN, GINConv),
}


def graph(num_nodes: int = 12, width: int = 5) -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(num_nodes, (2, 40), generator=generator).unique(dim=1)
    return Data(torch.randn(num_nodes, width, generator=generator), edges)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_stack_equals_one_built_by_hand(kind: str, num_layers: int, bias: bool) -> None:
    net_class, conv_class = KINDS[kind]
    net, data = net_class(5, 3, 7, num_layers, bias=bias).eval(), graph()
    widths, expected = [5, *[7] * (num_layers - 1), 3], data.x
    for layer, ours in enumerate(net.convs):
        if kind == "GIN":
            first, last = (nn.Linear(width, widths[layer + 1], bias=bias) for width in widths[layer : layer + 2])
            theirs = conv_class(nn.Sequential(first, nn.ReLU(), last))
        else:
            theirs = conv_class(widths[layer], widths[layer + 1], bias=bias)
        theirs.load_state_dict(ours.state_dict())
        expected = theirs(expected if layer == 0 else expected.relu(), data.edge_index)
    assert torch.equal(net(data.x, data.edge_index), expected)


def test_dropout_acts_in_training_only() -> None:
    net, data = GCN(5, 3, dropout=0.5), graph()
    torch.manual_seed(0)
    assert not torch.equal(net(data.x, data.edge_index), net(data.x, data.edge_index))
    net.eval()
    assert torch.equal(net(data.x, data.edge_index), net(data.x, data.edge_index))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_names_the_network(kind: str) -> None:
    module = NodeClassifier(KINDS[kind][0](5, 3, 4, num_layers=2, dropout=0.1))
    saved = module.hparams["net"]
    assert saved == {
        "name": kind,
        "in_channels": 5,
        "out_channels": 3,
        "hidden_channels": 4,
        "num_layers": 2,
        "dropout": 0.1,
        "bias": True,
    }


@pytest.mark.parametrize(("name", "value"), [("num_layers", 0), ("dropout", 1.0), ("bias", "yes"), ("in_channels", -1)])
def test_bad_arguments_are_named(name: str, value: object) -> None:
    arguments = {"in_channels": 5, "out_channels": 3, name: value}
    with pytest.raises(ArgumentError, match=f"`{name}`"):
        GCN(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_effects_are_exact_updates(kind: str) -> None:
    """One number by hand: the largest effect of an edge, against the network without it."""
    torch.manual_seed(1)
    net, data = KINDS[kind][0](5, 3, 7).double().eval(), graph()
    data.x = data.x.double()
    result = attree.evaluate(net, data, targets=[3], protocols=["removal"])
    assert "message_gradient" in result.pair_scores
    assert "occlusion" in result.pair_scores
    effects, edges = result.reductions["removal"].delta_pc, result.pairs.edges
    is_data = edges < result.attention.graph.num_proper_edges
    strongest = int(effects.abs().masked_fill(~is_data, 0).argmax())
    source, destination = result.attention.graph.edge_index[:, edges[strongest]].tolist()
    keep = (data.edge_index[0] != source) | (data.edge_index[1] != destination)
    before, after = (net(data.x, used)[3].softmax(-1) for used in (data.edge_index, data.edge_index[:, keep]))
    assert float(effects[strongest]) == pytest.approx(float((before - after)[before.argmax()]), abs=1e-9)
