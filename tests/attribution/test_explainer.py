"""GAtt inside `torch_geometric.explain`: models that know nothing of attree, levels, metrics, refusals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.explain import Explainer
from torch_geometric.explain.metric import fidelity, unfaithfulness
from torch_geometric.nn import (
    GCN,
    GATConv,
    GATv2Conv,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.models import GAT

import attree
from attree import AvgAttExplainer, GAttAvgExplainer, GAttExplainer, GAttSimExplainer
from attree.attention import capture_attention
from attree.attribution import METHODS, GAtt, TreeExplainer
from attree.subject import Subject
from helpers import strangers

ALGORITHMS = (GAttExplainer, GAttSimExplainer, GAttAvgExplainer, AvgAttExplainer)
NODE = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
GRAPH = {**NODE, "task_level": "graph"}


class UserModel(nn.Module):
    """What a PyG user writes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GATConv(4, 8, heads=2)
        self.conv2 = GATv2Conv(16, 3, heads=2, concat=False, share_weights=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(F.elu(self.conv1(x, edge_index)), edge_index)


class EdgeFeatureModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GATv2Conv(4, 8, edge_dim=2)
        self.conv2 = TransformerConv(8, 3, heads=2, concat=False, edge_dim=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


class GraphModel(nn.Module):
    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = GATConv(4, 8), GATConv(8, 5), pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.pool(self.conv2(F.elu(self.conv1(x, edge_index)), edge_index), batch)


@pytest.fixture
def graph() -> tuple[Tensor, Tensor]:
    """12 nodes, 40 edges with two self-loops and two duplicates among them."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(12, (2, 36), generator=generator)
    edge_index = torch.cat([torch.tensor([[3, 0], [3, 1]]), edge_index[:, :20], edge_index], dim=1)[:, :40]
    edge_index = torch.cat([edge_index[:, :38], torch.tensor([[7, 0], [7, 1]])], dim=1)
    return torch.randn(12, 4, generator=generator), edge_index


def make(model: nn.Module, algorithm: TreeExplainer, config: dict[str, str] = NODE, **options: Any) -> Explainer:
    return Explainer(
        model,
        algorithm=algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config=config,
        **options,
    )


def test_a_plain_pyg_model_is_explained_in_a_few_lines(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    model = UserModel()
    explainer = Explainer(
        model,
        algorithm=GAttExplainer(),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explanation = explainer(x, edge_index, index=1)
    assert explanation.edge_mask.shape == (40,)
    expected = GAtt().attribute(capture_attention(model, x, edge_index), 1).edge_mask(1)
    torch.testing.assert_close(explanation.edge_mask, expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("v2", [False, True])
def test_pygs_own_gat(graph: tuple[Tensor, Tensor], algorithm: type[TreeExplainer], v2: bool) -> None:
    x, edge_index = graph
    model = GAT(4, 8, num_layers=3, out_channels=3, heads=2, v2=v2, dropout=0.5)
    explanation = make(model, algorithm())(x, edge_index, index=5)
    method = METHODS[algorithm.method_class.name]()
    expected = method.attribute(capture_attention(model, x, edge_index), 5).edge_mask(5)
    torch.testing.assert_close(explanation.edge_mask, expected)
    assert explanation.edge_mask.max() > 0
    assert model.training


def test_several_indices_sum_in_the_mask_and_stand_alone_in_the_batch_method(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    explainer = make(UserModel(), GAttAvgExplainer())
    index = torch.tensor([1, 7, 4])
    each = explainer.algorithm.attribute(explainer.model, x, edge_index, index=index)
    assert each.targets.tolist() == [1, 7, 4]
    masks = []
    for node in index.tolist():
        masks.append(explainer(x, edge_index, index=node).edge_mask)
        torch.testing.assert_close(each.edge_mask(node), masks[-1])
    torch.testing.assert_close(explainer(x, edge_index, index=index).edge_mask, sum(masks))
    everything = sum(explainer(x, edge_index, index=node).edge_mask for node in range(12))
    torch.testing.assert_close(explainer(x, edge_index).edge_mask, everything)


def test_edge_features_reach_the_model(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    model, edge_attr = EdgeFeatureModel(), torch.randn(40, 2)
    explainer = make(model, GAttExplainer())
    mask = explainer(x, edge_index, index=1, edge_attr=edge_attr).edge_mask
    other = explainer(x, edge_index, index=1, edge_attr=edge_attr.flip(0)).edge_mask
    assert mask.shape == (40,)
    assert not torch.allclose(mask, other)


def test_duplicate_edges_share_and_given_self_loops_read_their_nodes_loop(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    explainer = make(UserModel(), GAttExplainer())
    result = explainer.algorithm.attribute(explainer.model, x, edge_index, index=3)
    mask = explainer(x, edge_index, index=3).edge_mask
    looped = result.graph.edge_index
    assert mask[0] == result.dense(3)[(looped[0] == 3) & (looped[1] == 3)]
    mask = explainer(x, edge_index, index=1).edge_mask
    assert mask[1] == mask[39] > 0


@pytest.mark.parametrize(
    ("readout", "pool"), [("sum", global_add_pool), ("mean", global_mean_pool), ("max", global_max_pool)]
)
def test_graph_level(graph: tuple[Tensor, Tensor], readout: str, pool: Any) -> None:
    x, edge_index = graph
    model = GraphModel(pool)
    x2, edges2 = torch.cat([x, x.flip(0)]), torch.cat([edge_index, edge_index + 12], dim=1)
    batch = torch.arange(2).repeat_interleave(12)
    explainer = make(model, GAttExplainer(readout=readout), GRAPH)
    both = explainer(x2, edges2, batch=batch).edge_mask
    first = explainer(x2, edges2, batch=batch, index=0).edge_mask
    second = explainer(x2, edges2, batch=batch, index=torch.tensor([1])).edge_mask
    assert first[:40].max() > 0
    assert first[40:].abs().max() == 0
    assert second[:40].abs().max() == 0
    torch.testing.assert_close(both, first + second)
    alone = explainer(x, edge_index, batch=torch.zeros(12, dtype=torch.int64)).edge_mask
    torch.testing.assert_close(alone, first[:40])
    each = explainer.algorithm.attribute(model, x2, edges2, batch=batch)
    torch.testing.assert_close(each.edge_mask(1), second)
    with pytest.raises(ValueError, match="graph ids in"):
        explainer(x2, edges2, batch=batch, index=2)


def test_normalized_masks_lie_in_the_unit_interval(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    model = UserModel()
    raw = make(model, GAttExplainer())(x, edge_index).edge_mask
    assert raw.max() > 1  # the case that needs it
    scaled = make(model, GAttExplainer(normalize=True))(x, edge_index).edge_mask
    torch.testing.assert_close(scaled, raw / raw.max())
    lonely = make(model, GAttExplainer(normalize=True))(x, torch.tensor([[0], [1]]), index=5).edge_mask
    assert lonely.tolist() == [0.0]


@pytest.mark.parametrize(("kind", "value"), [("hard", 0.3), ("topk", 5), ("topk_hard", 5)])
def test_thresholds(graph: tuple[Tensor, Tensor], kind: str, value: float) -> None:
    x, edge_index = graph
    model = UserModel()
    soft = make(model, GAttExplainer(normalize=True))(x, edge_index, index=1).edge_mask
    mask = make(model, GAttExplainer(normalize=True), threshold_config={"threshold_type": kind, "value": value})(
        x, edge_index, index=1
    ).edge_mask
    kept = mask.nonzero().view(-1)
    if kind == "hard":
        assert torch.equal(mask, (soft > 0.3).float())
    else:
        assert kept.numel() == 5
        assert soft[kept].min() >= soft.topk(5).values.min()
        assert torch.equal(mask[kept], soft[kept] if kind == "topk" else torch.ones(5))


def test_pygs_metrics_and_drawing(
    graph: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "agg")
    x, edge_index = graph
    explainer = make(UserModel().eval(), GAttExplainer(normalize=True))
    explanation = explainer(x, edge_index, index=torch.tensor([1, 2]))
    positive, negative = fidelity(explainer, explanation)
    assert 0.0 <= positive <= 1.0
    assert 0.0 <= negative <= 1.0
    assert 0.0 <= unfaithfulness(explainer, explanation) <= 1.0
    explanation.visualize_graph(str(tmp_path / "graph.png"), backend="networkx")
    assert (tmp_path / "graph.png").stat().st_size > 0


def test_a_full_mask_is_perfectly_faithful(graph: tuple[Tensor, Tensor]) -> None:
    """Ties PyG's alignment of masks to ours: keeping all flow edges of a target keeps its prediction."""
    x, edge_index = graph
    explainer = make(UserModel().eval(), GAttExplainer(), threshold_config={"threshold_type": "hard", "value": 0.0})
    for node in range(12):
        explanation = explainer(x, edge_index, index=node)
        assert unfaithfulness(explainer, explanation) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"explanation_type": "phenomenon"}, "explanation_type=phenomenon"),
        ({"node_mask_type": "attributes"}, "node_mask_type=attributes"),
    ],
)
def test_refuses_what_it_cannot_support(
    settings: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"explanation_type": "model", "edge_mask_type": "object", "model_config": NODE, **settings}
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="does not support the given explanation"):
        Explainer(UserModel(), algorithm=GAttExplainer(), **arguments)
    assert reason in caplog.text


def test_refuses_models_and_graphs_it_cannot_follow(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph

    with pytest.raises(TypeError, match="none of its layers has attention"):
        make(GCN(4, 16, 2, 3), GAttExplainer())(x, edge_index, index=0)
    with pytest.raises(RuntimeError, match=r"UserModel\.forward to run on these arguments, but it raised"):
        make(UserModel(), GAttExplainer()).algorithm(
            UserModel(), {"a": x}, {("a", "to", "a"): edge_index}, target=torch.zeros(1)
        )


def test_importing_attree_offers_the_explainers_and_nothing_unknown() -> None:
    assert attree.GAttExplainer is GAttExplainer
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        getattr(attree, "Mis" + "sing")


@pytest.mark.parametrize(
    ("last", "width", "mode", "return_type"),
    [
        (torch.sigmoid, 1, "binary_classification", "probs"),
        (lambda z: z, 1, "binary_classification", "raw"),
        (lambda z: z.log_softmax(-1), 3, "multiclass_classification", "log_probs"),
        (lambda z: z.softmax(-1), 3, "multiclass_classification", "probs"),
        (lambda z: z.sigmoid(), 3, "multiclass_classification", "raw"),
        (lambda z: z, 1, "regression", "raw"),
    ],
)
@pytest.mark.filterwarnings("ignore:With all:UserWarning", "ignore:The model's outputs:UserWarning")
def test_the_models_config_says_what_its_outputs_are(
    graph: tuple[Tensor, Tensor], last: Any, width: int, mode: str, return_type: str
) -> None:
    """GAtt is the same whatever is put behind the layers."""

    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = TransformerConv(4, width)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return last(self.conv(x, edge_index))

    x, edge_index = graph
    for seed in range(4):
        torch.manual_seed(seed)
        model = Ends()
        config = {"mode": mode, "task_level": "node", "return_type": return_type}
        mask = make(model, GAttExplainer(), config)(x, edge_index, index=1).edge_mask
        expected = GAtt().attribute(capture_attention(model, x, edge_index), 1).edge_mask(1)
        torch.testing.assert_close(mask, expected)


def test_links_are_explained_by_both_ends() -> None:
    model, data = strangers.Links().double().eval(), strangers.with_pairs(4)
    config = {**NODE, "task_level": "edge"}
    explainer = Explainer(model, GAttExplainer(), "model", config, edge_mask_type="object")
    nodes = GAtt().attribute(Subject.of(model.encoder, data.x, data.edge_index))
    for pair, (u, v) in enumerate(data.edge_label_index.t().tolist()):
        found = explainer(data.x, data.edge_index, index=pair, edge_label_index=data.edge_label_index)
        torch.testing.assert_close(found.edge_mask, nodes.edge_mask(u) + nodes.edge_mask(v))
