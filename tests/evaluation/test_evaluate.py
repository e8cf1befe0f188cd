"""One call on anyone's model and graph, against the statistics of SciPy and scikit-learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT, GATConv, TransformerConv, global_add_pool

import attree
from attree.attribution import Attribution, AttributionMethod, GAtt, subject_pairs
from attree.data import GroundTruth
from attree.errors import ArgumentError, AttreeError
from attree.evaluation import Evaluation
from attree.faithfulness import ReductionProtocol, reduce_attention
from attree.subject import Subject
from attree.subject.target_roots import Targets
from helpers.damage import DAMAGES
from helpers.graphs import NODES, messy_graph, randomize

DEFAULTS = ["GAtt", "AvgAtt", "Uniform", "Occlusion", "Random"]
"""What methods are called that are compared where none is named and edges are reduced by exact updates."""


@pytest.fixture
def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, 5, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=messy_graph(0), y=torch.arange(NODES) % 3)


@pytest.fixture
def model() -> nn.Module:
    return randomize(GAT(5, 8, 2, out_channels=3, heads=2), 1, 0.7).double()


def test_metrics_are_those_of_scipy_and_scikit_learn(model: nn.Module, graph: Data) -> None:
    truth = GroundTruth(torch.tensor([0, 3]), graph.edge_index[:, :4], torch.tensor([0, 2, 4]))
    result = attree.evaluate(model, graph, targets=[0, 3, 5], methods=["gatt"], protocols=["weight"], truth=truth)
    subject = Subject.of(model, graph.x, graph.edge_index)
    pairs = subject_pairs(subject, [0, 3, 5])
    scores = GAtt().score_pairs(subject, pairs).numpy()
    reduction = reduce_attention(model, graph.x, graph.edge_index, pairs, "weight")
    expected = {}
    for key, delta in (("pc", reduction.delta_pc.numpy()), ("ne", reduction.delta_ne.numpy())):
        expected[f"{key}_pearson"] = stats.pearsonr(scores, delta).statistic
        expected[f"{key}_kendall"] = stats.kendalltau(scores, delta).statistic
        expected[f"{key}_spearman"] = stats.spearmanr(scores, delta).statistic
    expected["p_auroc"] = roc_auc_score(reduction.changed.numpy(), scores)
    expected["faithfulness"] = float(np.mean(list(expected.values())))
    for statistic, value in expected.items():
        assert result.metrics[f"explain/gatt/weight/{statistic}"] == pytest.approx(value, abs=1e-9), statistic

    pairs = subject_pairs(subject, [0, 3])
    ends = graph.edge_index[:, :4].t().tolist()
    true = {0: ends[:2], 3: ends[2:]}
    edges = subject.graph.edge_index[:, pairs.edges].t().tolist()
    labels = [edge in true[target] for target, edge in zip(pairs.targets[pairs.owner].tolist(), edges, strict=True)]
    auroc = roc_auc_score(labels, GAtt().score_pairs(subject, pairs).numpy())
    assert result.metrics["explain/gatt/truth_auroc"] == pytest.approx(auroc)


def test_scores_and_reductions_are_there(model: nn.Module, graph: Data) -> None:
    result = attree.evaluate(model, graph, targets="all", protocols=["removal", "weight"])
    assert isinstance(result.scores["gatt"], Attribution)
    direct = GAtt().attribute(Subject.of_data(model, graph))
    for target in range(NODES):
        torch.testing.assert_close(result.scores["gatt"].dense(target), direct.dense(target))
    assert set(result.reductions) == {"removal", "weight"}
    assert result.num_changed("weight") == int(result.reductions["weight"].changed.sum())


def test_same_seed_same_numbers_and_drawn_targets(model: nn.Module, graph: Data) -> None:
    first, second, other = (attree.evaluate(model, graph, num_targets=4, seed=seed) for seed in (0, 0, 1))
    assert first.metrics == pytest.approx(second.metrics, nan_ok=True)
    assert first.targets.numel() == 4
    assert first.targets.tolist() != other.targets.tolist()


def test_prints_as_a_table_and_survives_a_file(model: nn.Module, graph: Data, tmp_path: Path) -> None:
    result = attree.evaluate(model, graph, targets=[1, 2], protocols=["removal"])
    assert "GAtt" in str(result)
    assert f"2 of {result.population} nodes" in str(result)
    assert "<table" in result._repr_html_()
    table = result.to_pandas()
    assert table.loc[("removal", "pc_pearson"), "GAtt"] == result.metrics["explain/gatt/removal/pc_pearson"]
    result.save(tmp_path / "saved")
    again = Evaluation.load(tmp_path / "saved")
    assert again.metrics == pytest.approx(result.metrics, nan_ok=True)
    assert torch.equal(again.scores["random"].scores, result.scores["random"].scores)
    assert torch.equal(again.reductions["removal"].delta_ne, result.reductions["removal"].delta_ne)
    assert str(again) == str(result)
    text = (tmp_path / "saved" / "metrics.json").read_text()
    assert "NaN" not in text


def test_damaged_files_are_whole_or_refused_in_a_sentence(model: nn.Module, graph: Data, tmp_path: Path) -> None:
    attree.evaluate(model, graph, targets=[1, 4], methods=["gatt"]).save(tmp_path)
    path, rng = tmp_path / "evaluation.npz", np.random.default_rng(0)
    content, refused = path.read_bytes(), 0
    for number in range(120):
        path.write_bytes(content)
        DAMAGES[number % len(DAMAGES)](path, rng)
        try:
            result = Evaluation.load(tmp_path)
        except AttreeError:
            refused += 1
        else:
            assert len(result.scores["gatt"].scores) == len(result.pairs)
            assert result.targets.numel() == 2
    assert refused > 60
    path.unlink()
    with pytest.raises(AttreeError, match="does not exist"):
        Evaluation.load(tmp_path)


def test_plot_draws_every_method_and_protocol(model: nn.Module, graph: Data) -> None:
    figure = attree.evaluate(model, graph, targets=[1, 2, 3], protocols=["removal", "weight"]).plot()
    assert [axes.get_title().partition(":")[0] for axes in figure.axes] == ["removal", "weight"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == DEFAULTS
    assert len(figure.axes[0].patches) == len(DEFAULTS) * 9


class InDegree(AttributionMethod):
    """A user's own method: an edge is the more important, the fewer edges enter where it ends."""

    name = "in_degree"

    def attribute(self, subject: Any, targets: Targets = "all") -> Attribution:
        graph, nodes = subject.graph, subject.targets(targets)
        degree = graph.entering.sizes[graph.destination].double()
        edges = torch.arange(graph.num_edges).repeat(nodes.numel())
        ptr = torch.arange(nodes.numel() + 1) * graph.num_edges
        return Attribution(self.name, graph, nodes, ptr, edges, 1 / degree[edges])


def test_a_method_and_a_protocol_of_ones_own(model: nn.Module, graph: Data) -> None:
    halved = ReductionProtocol("halved", "its weight is halved", weight_factor=0.5)
    result = attree.evaluate(model, graph, targets=[0, 2], methods=["gatt", InDegree()], protocols=[halved])
    assert math.isfinite(result.metrics["explain/in_degree/halved/pc_pearson"])
    assert "in_degree" in str(result)
    subject = Subject.of_data(model, graph)
    pairs = subject_pairs(subject, [0, 2])
    degree = torch.bincount(subject.graph.destination)[subject.graph.destination[pairs.edges]]
    torch.testing.assert_close(result.pair_scores["in_degree"], 1 / degree.double())


class Graphs(nn.Module):
    """A graph-level net whose argument has a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, membership: Tensor) -> Tensor:
        return global_add_pool(self.conv(x, edge_index), membership)


class TakesData(nn.Module):
    """A net whose forward takes the whole graph."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.conv, self.pooled = GATConv(4, 3, edge_dim=2), pooled

    def forward(self, data: Data) -> Tensor:
        out = self.conv(data.x, data.edge_index, data.edge_attr)
        return global_add_pool(out, data.batch) if self.pooled else out


def batch_of_graphs() -> Batch:
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for size in (4, 5, 3):
        nodes = torch.arange(size)
        edge_index = torch.cat([torch.stack([nodes, nodes.roll(1)]), torch.tensor([[0], [2]])], dim=1)
        attributes = torch.randn(size + 1, 2, generator=generator, dtype=torch.float64)
        graphs.append(Data(torch.randn(size, 4, generator=generator).double(), edge_index, attributes))
    return Batch.from_data_list(graphs)


def test_a_batch_of_graphs_whatever_its_argument_is_called() -> None:
    model, batch = randomize(Graphs(), 0).double(), batch_of_graphs()
    batch.membership = batch.batch
    result = attree.evaluate(model, batch, targets="all", protocols=["removal"])
    assert result.targets.tolist() == [0, 1, 2]
    assert len(result.pairs) == batch.num_edges + batch.num_nodes
    subject = Subject.of(model, batch.x, batch.edge_index, batch.batch)
    owner = result.pairs.targets[result.pairs.owner]
    assert torch.equal(batch.batch[subject.graph.destination[result.pairs.edges]], owner)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_model_that_takes_the_whole_graph(pooled: bool) -> None:
    model, batch = randomize(TakesData(pooled), 0).double(), batch_of_graphs()
    result = attree.evaluate(model, batch, targets="all", methods=["gatt"], protocols=["removal"])
    assert result.targets.numel() == (3 if pooled else 12)
    attention = attree.capture_attention(model.conv, batch.x, batch.edge_index, batch.edge_attr)
    if not pooled:
        torch.testing.assert_close(result.scores["gatt"].dense(2), GAtt().attribute(attention, 2).dense(2))


def test_arguments_are_found_by_name(graph: Data) -> None:
    model = randomize(GAT(5, 8, 2, out_channels=3, edge_dim=2), 0).double()
    graph.edge_attr = torch.randn(graph.num_edges, 2, dtype=torch.float64)
    result = attree.evaluate(model, graph, targets=[0], methods=["gatt"])
    attention = attree.capture_attention(model, graph.x, graph.edge_index, edge_attr=graph.edge_attr)
    torch.testing.assert_close(result.scores["gatt"].dense(0), GAtt().attribute(attention, 0).dense(0))


def test_self_loops_that_no_layer_has_are_no_pairs(graph: Data) -> None:
    model = randomize(TransformerConv(5, 3), 0).double()
    result = attree.evaluate(model, graph, targets="all", methods=["gatt", "avgatt"])
    looped = result.pairs.graph
    ends = looped.edge_index[:, result.pairs.edges]
    loops = ends[0] == ends[1]
    given = {int(node) for node in graph.edge_index[0, graph.edge_index[0] == graph.edge_index[1]]}
    assert given  # the graph has some of its own, which the layer uses
    assert {int(node) for node in ends[0, loops]} == given


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"targets": [NODES]}, "`targets` to be node ids in"),
        ({"num_targets": 0}, "`num_targets` to be an integer >= 1"),
        ({"num_targets": 3, "targets": [1]}, "`num_targets` to be None if `targets`"),
        ({"methods": ["gat"]}, "`methods` to be names among gatt"),
        ({"methods": ["gatt", "gatt"]}, "`methods` to be methods of different names"),
        ({"methods": []}, "`methods` to be at least one"),
        ({"protocols": ["remove"]}, "`protocols` to be names among coefficient"),
        ({"readout": "median"}, "`readout` to be 'sum', 'mean'"),
        ({"random_draws": 0}, "`random_draws` to be an integer >= 1"),
        ({"label": 1}, "`label` to be None where classes are predicted"),
        (
            {"protocols": [ReductionProtocol("weight", "mine", weight_factor=0.5), "weight"]},
            "protocols of different names",
        ),
        ({"truth": GroundTruth(torch.tensor([0]), torch.tensor([[0], [NODES - 1]]))}, "`truth.edges` to be edges of"),
        ({"truth": GroundTruth(torch.tensor([NODES]), torch.tensor([[0], [0]]))}, "`truth.targets` to be node ids"),
    ],
)
def test_bad_arguments_are_named(model: nn.Module, graph: Data, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AttreeError, match=sentence):
        attree.evaluate(model, graph, **change)


def test_targets_are_ids_and_num_targets_a_number(model: nn.Module, graph: Data) -> None:
    assert attree.evaluate(model, graph, targets=7).targets.tolist() == [7]
    assert attree.evaluate(model, graph, 7).targets.tolist() == [7]
    mask = torch.arange(NODES) == 5
    assert attree.evaluate(model, graph, targets=mask).targets.tolist() == [5]
    assert attree.evaluate(model, graph, num_targets=7).targets.numel() == 7
    assert attree.evaluate(model, graph).targets.numel() == NODES  # fewer than 100


def test_one_name_is_a_list_of_one(model: nn.Module, graph: Data) -> None:
    one = attree.evaluate(model, graph, 3, methods="gatt", protocols="removal")
    assert one.metrics == attree.evaluate(model, graph, 3, methods=["gatt"], protocols=["removal"]).metrics
    assert set(attree.evaluate(model, graph, 3, methods=GAtt()).reductions) == {"weight", "removal"}  # the defaults


def test_weights_alone_are_no_model(model: nn.Module, graph: Data) -> None:
    with pytest.raises(AttreeError, match=r"`model` to be a torch.nn.Module \(weights alone: build the model"):
        attree.evaluate(model.state_dict(), graph)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a/b", "", "../../../x", "two words", ".hidden", None])
def test_names_that_are_no_names(name: Any, model: nn.Module, graph: Data) -> None:
    with pytest.raises(AttreeError, match="`name` to be a name of letters"):
        ReductionProtocol(name, "something")
    method = type("Named", (InDegree,), {"name": name})()
    with pytest.raises(AttreeError, match="name` to be a name of letters"):
        attree.evaluate(model, graph, 3, methods=[method])


@pytest.mark.parametrize("fill_value", [0.0, "mean"])
def test_removal_deletes_the_edge_also_from_the_features_of_loops(fill_value: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x, attributes = torch.randn(4, 3, generator=generator), 3 * torch.randn(4, 2, generator=generator)
    edge_index = torch.tensor([[0, 1, 2, 3], [3, 3, 3, 0]])
    conv = GATConv(3, 2, edge_dim=2, fill_value=fill_value)
    graph = Data(x=x.double(), edge_index=edge_index, edge_attr=attributes.double())
    conv = randomize(conv, 0).double()
    result = attree.evaluate(conv, graph, 3, "gatt", "removal", return_type="raw")
    kept = torch.tensor([1, 2, 3])
    whole = conv(graph.x, edge_index, graph.edge_attr)[3].softmax(-1)
    without = conv(graph.x, edge_index[:, kept], graph.edge_attr[kept])[3].softmax(-1)
    expected = float(whole.max() - without[whole.argmax()])
    ends = result.pairs.graph.edge_index[:, result.pairs.edges]
    (pair,) = ((ends[0] == 0) & (ends[1] == 3)).nonzero().view(-1).tolist()
    assert float(result.reductions["removal"].delta_pc[pair]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (("gatt", "removal", "within_pearsn"), "explain/gatt/removal/within_pearson"),
        (("gat", "weight", "pc_kendall"), "explain/gatt/weight/pc_kendall"),
        (("gatt", "removl", "faithfulness"), "explain/gatt/removal/faithfulness"),
    ],
)
def test_a_misspelt_number_gets_a_suggestion(
    name: tuple[str, str, str], meant: str, model: nn.Module, graph: Data
) -> None:
    result = attree.evaluate(model, graph, targets=[0, 3], methods=["gatt", "uniform"])
    with pytest.raises(ArgumentError, match=f"Did you mean `{meant}`"):
        result.interval(*name)
    with pytest.raises(ArgumentError, match=r"Expected argument `protocol` .*Did you mean `removal`\?"):
        attree.explain(model, graph, 3, protocol="removl")
