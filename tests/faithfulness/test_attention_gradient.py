"""The attention gradient against finite differences of reductions, by passes of the whole model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, Sequential, TransformerConv
from torch_geometric.utils import softmax

import attree
from attree.faithfulness import ReductionProtocol
from attree.models import GAT
from attree.subject import Subject
from helpers.attention_models import snapshot
from helpers.effect_nets import EDGES, NETS, X, made, probabilities
from helpers.graphs import NODES, randomize

STEP = 1e-5
PROTOCOLS = ("removal", "weight", "coefficient")


def slopes(model: nn.Module, protocol: str, **kwargs: Tensor) -> Tensor:
    """Derivatives of each row's drop at zero, by central differences: [edges, rows]."""
    there, back = (probabilities(model, protocol, amount, **kwargs) for amount in (STEP, -STEP))
    return (back - there) / (2 * STEP)


@pytest.mark.parametrize("name", NETS)
def test_equal_to_the_derivative_of_the_reduction_at_zero(name: str) -> None:
    model, kwargs = made(name)
    subject = Subject.of(model, X, EDGES, **kwargs)
    for protocol in PROTOCOLS:
        result = attree.AttentionGradient(protocol).attribute(subject)
        expected = slopes(model, protocol, **kwargs)
        for row, target in enumerate(result.targets.tolist()):
            assert torch.allclose(result.dense(target), expected[:, row], atol=1e-7), (protocol, target)
        assert float(result.scores.abs().max()) > 1e-3


def test_a_protocol_of_ones_own() -> None:
    model, _ = made("gatv2, heads averaged")
    subject = Subject.of(model, X, EDGES)
    half = ReductionProtocol("half", "its weight is halved", weight_factor=0.5)
    whole = attree.AttentionGradient("weight").attribute(subject)
    assert torch.allclose(attree.AttentionGradient(half).attribute(subject).scores, whole.scores / 2)
    # A score that moves by a constant moves as one that moves to 0 does, by another length.
    shifted = ReductionProtocol("lower", "its score falls by one", score_shift=-1.0)
    small = ReductionProtocol("hardly", "its score falls by a little", score_shift=-1e-4)
    effect = attree.Occlusion(small).attribute(subject)
    linear = attree.AttentionGradient(shifted).attribute(subject)
    for target in range(NODES):
        assert torch.allclose(effect.dense(target) * 1e4, linear.dense(target), atol=1e-4)


def test_more_nodes_than_edges() -> None:
    """Layers without self-loops, as TransformerConv, may have fewer edges than nodes."""
    made_of = [TransformerConv(5, 4), TransformerConv(4, 3)]
    model = (
        randomize(Sequential("x, edge_index", [(conv, "x, edge_index -> x") for conv in made_of]), 1).double().eval()
    )
    few = torch.tensor([[8, 9, 7, 1], [10, 10, 9, 0]])
    result = attree.AttentionGradient().attribute(Subject.of(model, X, few))
    exact = attree.Occlusion().attribute(Subject.of(model, X, few))
    assert result[0].edges.tolist() == exact[0].edges.tolist() == [3]
    assert result[0].scores.sign().tolist() == exact[0].scores.sign().tolist()
    assert float(result.dense(10)[:3].abs().min()) > 0
    assert attree.AttentionGradient().attribute(Subject.of(model, X, few[:, :0]), [3])[3].edges.numel() == 0


def test_integrated_over_one_layer_it_adds_up_to_what_attention_does() -> None:
    model = randomize(GAT(5, 3, num_layers=1), 1).double().eval()
    result = attree.AttentionGradient("weight", steps=20).attribute(Subject.of(model, X, EDGES))
    p, without = model(X, EDGES).detach().softmax(dim=1), model.convs[0].bias.detach().softmax(dim=0)
    for target in range(NODES):
        k = int(p[target].argmax())
        assert float(result[target].scores.sum()) == pytest.approx(float(p[target, k] - without[k]), abs=1e-9)
    assert attree.AttentionGradient("weight", steps=20).name == "integrated_attention_gradient_weight"


def test_integrated_it_sees_beyond_saturation() -> None:
    model, _ = made("gat, 3 layers, heads")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    subject = Subject.of(model, X, EDGES)
    exact = attree.Occlusion("weight").attribute(subject).scores

    def pearson(method: attree.AttentionGradient) -> float:
        scores = torch.cat([method.attribute(subject, target).dense(target) for target in range(NODES)])
        effects = torch.cat([attree.Occlusion("weight").attribute(subject, t).dense(t) for t in range(NODES)])
        return float(torch.corrcoef(torch.stack([scores, effects]))[0, 1])

    assert exact.abs().max() > 0.3
    plain = pearson(attree.AttentionGradient("weight"))
    assert pearson(attree.AttentionGradient("weight", steps=10)) > plain + 0.1


def test_a_saturated_softmax_still_has_a_gradient() -> None:
    model = randomize(GAT(5, 3, 4), 1)
    with torch.no_grad():
        model.convs[-1].bias.copy_(torch.tensor([30.0, 0.0, 0.0]))  # 1 - p is about 1e-13: float32 says 0
    result = attree.AttentionGradient().attribute(Subject.of(model.float().eval(), X.float(), EDGES))
    assert 0 < float(result.scores.abs().max()) < 1e-9


def test_the_model_is_left_as_it_was() -> None:
    model, _ = made("gat")
    before = snapshot(model)
    with torch.inference_mode():
        attree.AttentionGradient().attribute(Subject.of(model, X, EDGES), [3])
    assert snapshot(model) == before


class InOrder(MessagePassing):
    """Attention of a user; `flips` reverses the list of its edges."""

    def __init__(self, flips: bool) -> None:
        super().__init__()
        self.flips = flips

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index.flip(1) if self.flips else edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j * softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)


def test_edges_in_another_order_have_the_same_gradients() -> None:
    class Net(nn.Module):
        def __init__(self, flips: bool) -> None:
            super().__init__()
            self.conv = InOrder(flips)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    in_order, flipped = (
        attree.AttentionGradient().attribute(Subject.of(Net(flips).double(), X, EDGES), [3]).dense(3)
        for flips in (False, True)
    )
    assert bool(in_order.any())
    torch.testing.assert_close(flipped, in_order)
