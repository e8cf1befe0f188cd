"""Evaluations and tests of attention at the edge of what is defined: right, or refused in a sentence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GAT, AGNNConv, GATConv, HeteroConv, global_mean_pool

import attree
from attree.data import GroundTruth
from attree.errors import ArgumentError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def small(nodes: int = 24, edges: int = 70, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(nodes, (2, edges), generator=generator)
    return Data(x=torch.randn(nodes, 6, generator=generator), edge_index=index[:, index[0] != index[1]].unique(dim=1))


def net(outputs: int = 3, layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return GAT(6, 8, layers, out_channels=outputs).eval()


class Scaled(nn.Module):
    """One convolution whose outputs are multiplied: by 0, a constant; by much, a saturated net."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.factor = GATConv(6, 3), factor

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv(x, edge_index) * self.factor
        return out


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = GATConv(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        out: Tensor = self.out(global_mean_pool(self.conv(x, edge_index), batch))
        return out


class Links(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = GATConv(6, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        out: Tensor = (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)
        return out


class Types(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        convs = {(a, "to", b): GATConv((6, 6), 3, add_self_loops=False) for a, b in (("a", "b"), ("b", "a"))}
        self.conv = HeteroConv(convs)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        out: Tensor = self.conv(x_dict, edge_index_dict)["a"]
        return out


class WithoutParameters(nn.Module):
    """A convolution that has nothing to shuffle, before one that has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = AGNNConv(requires_grad=False), GATConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index), edge_index)
        return out


def hetero() -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(10, 6, generator=generator), torch.randn(10, 6, generator=generator)
    for one, other in (("a", "b"), ("b", "a")):
        data[one, "to", other].edge_index = torch.randint(10, (2, 30), generator=generator)
    return data


def links() -> Data:
    data = small()
    data.edge_label_index = torch.randint(24, (2, 12), generator=torch.Generator().manual_seed(1))
    return data


@pytest.mark.parametrize(
    ("model", "data", "targets", "shuffled"),
    [
        (net(layers=1), small(), 24, 1),
        (Graphs(), Batch.from_data_list([small(8, 14, seed) for seed in range(6)]), 6, 1),
        (Links(), links(), 12, 1),
        (Types(), hetero(), 10, 2),
        (WithoutParameters(), small(), 24, 2),
        (net().half(), small().apply(Tensor.half, "x"), 24, 2),
    ],
    ids=["one layer", "graphs", "links", "types", "no parameters", "half"],
)
def test_attention_is_tested_on_any_kind_of_model(
    model: nn.Module, data: Data | HeteroData, targets: int, shuffled: int
) -> None:
    before = [parameter.clone() for parameter in model.parameters()]
    found = attree.attention_tests(model.eval(), data, steps=2, permutations=2)
    assert (found.num_targets, len(found.randomized)) == (targets, shuffled)
    assert 0 < found.uniform.distance < 1
    assert 0 < found.permuted.distance < 1
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    if isinstance(model, WithoutParameters):
        assert found.randomized[0] == found.randomized[1]  # the first convolution has nothing to shuffle


def test_a_constant_output_has_no_explanation() -> None:
    result = attree.evaluate(Scaled(0.0).eval(), small(), sets=True)
    assert all(math.isnan(value) for name, value in result.metrics.items() if name.endswith("pc_pearson"))
    assert "changes no prediction at all" in result.verdict.sentences[0]
    assert result.verdict.method == "occlusion"  # it says 0 of every edge, which is right
    found = attree.attention_tests(Scaled(0.0).eval(), small(), steps=2)
    assert found.uniform.distance == found.permuted.distance == 0
    assert "How much a node attends to each neighbour does not explain them" in found.sentences[0]


def test_a_prediction_of_exactly_1_is_called_saturated() -> None:
    model, data = Scaled(1e5).eval(), small()
    assert bool((model(data.x, data.edge_index).softmax(-1).amax(-1) == 1).all())
    assert "saturated" in attree.evaluate(model, data).verdict.rules
    found = attree.attention_tests(model, data, steps=20)  # gradients are 0: the search cannot go far
    assert any("The search found no other attention" in sentence for sentence in found.sentences)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_explained_like_wide_ones(dtype: torch.dtype) -> None:
    model, data = net().to(dtype), small()
    wide, narrow = Data(x=data.x.to(dtype).float(), edge_index=data.edge_index), data.apply(lambda x: x.to(dtype), "x")
    result = attree.evaluate(model, narrow, targets="all", methods=["gatt", "occlusion"])
    expected = attree.evaluate(net().to(dtype).float(), wide, targets="all", methods=["gatt", "occlusion"])
    torch.testing.assert_close(
        result.pair_scores["gatt"].double(), expected.pair_scores["gatt"].double(), atol=0.02, rtol=0.02
    )
    assert result.metrics["explain/gatt/weight/pc_pearson"] == pytest.approx(
        expected.metrics["explain/gatt/weight/pc_pearson"], abs=0.1
    )


@pytest.mark.parametrize("are_true", [True, False])
def test_truth_with_one_kind_of_edges_says_nothing(are_true: bool) -> None:
    data = small()
    loops = torch.arange(24).expand(2, 24)
    edges = torch.cat([data.edge_index, loops], dim=1) if are_true else data.edge_index[:, :0]
    result = attree.evaluate(net(), data, num_targets=20, truth=GroundTruth(torch.arange(4), edges), sets=True)
    assert math.isnan(result.metrics["explain/gatt/truth_auroc"])
    assert math.isnan(result.metrics["explain/gatt/precision_at_k"]) != are_true
    assert "truth" not in result.verdict.rules
    assert "undefined" in str(result)


def test_numbers_have_no_classes_that_change() -> None:
    result = attree.evaluate(net(4), small(), num_targets=20, mode="regression", label=2, methods=["gatt"])
    assert "changed predictions" not in str(result).splitlines()[0]
    with pytest.raises(ArgumentError, match="`label` to be the number to measure of several"):
        attree.evaluate(net(4), small(), mode="regression")
    with pytest.raises(ArgumentError, match="`label` to be the number to measure of several"):
        attree.attention_tests(net(4), small(), mode="regression")


def test_one_class_is_no_choice() -> None:
    with pytest.raises(ArgumentError, match="`mode` to fit outputs of 1 column"):
        attree.evaluate(net(1), small(), mode="multiclass_classification")


def test_equal_scores_are_no_difference() -> None:
    model = Scaled(1.0)
    nn.init.zeros_(model.conv.att_src)
    nn.init.zeros_(model.conv.att_dst)  # learned attention is uniform
    result = attree.evaluate(model.eval(), small(), methods=["gatt", "uniform"])
    text = " ".join(result.table("full").split())
    assert "GAtt minus Uniform is +0.000 [+0.000, +0.000]" in text
    assert "Uniform may be as good" in text or "no method predicts well" in text


def test_all_walks_where_fewer_exist_than_asked_for() -> None:
    data = small()
    result = attree.evaluate(net(), data, targets=[3], methods=["gatt"])
    adjacency = torch.eye(24)
    adjacency[data.edge_index[1], data.edge_index[0]] = 1
    assert len(result.paths(3, k=10**6)) == int((adjacency @ adjacency)[3].sum())
