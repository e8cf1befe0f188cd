"""attree.explain: what it says is what the model itself says when an edge is gone."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import torch
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgba
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GAT, GATConv, HGTConv, global_add_pool

import attree
from attree.data import GroundTruth
from attree.errors import ArgumentError
from attree.explanation import TargetExplanation
from attree.explanation.sentence import percent
from attree.report.style import ORANGE


class Links(nn.Module):
    """A link predictor: the dot product of two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(4, 8), GATConv(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.last(self.first(x, edge_index).relu(), edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class Graphs(nn.Module):
    """A graph classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(self.conv(x, edge_index), batch)


def graph(seed: int = 0, nodes: int = 14) -> Data:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(nodes, nodes, generator=generator) < 0.2
    edge_index = dense.fill_diagonal_(False).nonzero().T.contiguous()
    y = torch.arange(nodes) % 3
    return Data(x=torch.randn(nodes, 4, generator=generator), edge_index=edge_index, y=y)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(1)
    return GAT(4, 8, 2, out_channels=3).eval()


def target_with_edges(data: Data) -> int:
    return int(data.edge_index[1].bincount().argmax())


@pytest.fixture(scope="module")
def explanation(model: nn.Module) -> TargetExplanation:
    data = graph()
    return attree.explain(model, data, target_with_edges(data))


def test_every_effect_is_what_the_model_says_without_the_edge(model: nn.Module, explanation: TargetExplanation) -> None:
    """Removal of an edge from attention is removal from the graph: the model is run once for each."""
    data, target = graph(), explanation.target
    before = model(data.x, data.edge_index).softmax(-1)[target]
    assert explanation.predicted == int(before.argmax())
    assert explanation.probability == pytest.approx(float(before.max()), abs=1e-6)
    assert explanation.true_class == int(data.y[target])
    between = [edge for edge in explanation.edges if edge.source != edge.destination]
    assert len(between) > 3
    for edge in between:
        gone = (data.edge_index[0] == edge.source) & (data.edge_index[1] == edge.destination)
        after = model(data.x, data.edge_index[:, ~gone]).softmax(-1)[target]
        assert edge.effect == pytest.approx(float(before.max() - after[before.argmax()]), abs=1e-6)
        assert edge.predicted == int(after.argmax())
        assert edge.probability == pytest.approx(float(after.max()), abs=1e-6)
        assert edge.changes == (int(after.argmax()) != explanation.predicted)


def test_edges_are_ranked_by_the_method(model: nn.Module, explanation: TargetExplanation) -> None:
    scores = [edge.score for edge in explanation.edges]
    assert scores == sorted(scores, key=abs, reverse=True)
    assert scores == pytest.approx([edge.effect for edge in explanation.edges])  # the default is the effect itself
    data, target = graph(), explanation.target
    gatt = attree.explain(model, data, target, "gatt", "weight")
    assert (gatt.method, gatt.protocol) == ("gatt", "weight")
    expected = attree.GAtt().attribute(attree.capture_attention(model, data.x, data.edge_index), [target]).dense(target)
    pairs = gatt.evaluation.pairs
    assert torch.allclose(gatt.scores.double(), expected[pairs.edges[gatt.positions]].double())


def test_the_sentence_says_what_would_be(model: nn.Module, explanation: TargetExplanation) -> None:
    edge = next(edge for edge in explanation.edges if edge.source != edge.destination)
    assert f"The network predicts class {explanation.predicted}" in explanation.sentence
    against = ", which speaks against it," if edge.effect < 0 else ""
    assert f"Without {edge.name}{against} it would" in explanation.sentence
    assert ("still predict the same" in explanation.sentence) == (not edge.changes)
    assert explanation.sentence in str(explanation)
    data = graph()
    data.class_names, data.node_names = ["theory", "rules", "agents"], [f"paper {node}" for node in range(14)]
    named = attree.explain(model, data, explanation.target)
    assert f"The network predicts {data.class_names[explanation.predicted or 0]} (" in named.sentence
    assert f"paper {edge.source} -> paper {edge.destination}" in named.sentence
    assert all(name.startswith("paper ") for name in named.to_pandas()["source_name"])


def test_a_wrong_prediction_and_a_changed_one_are_said(model: nn.Module) -> None:
    data = graph()
    wrong = int((model(data.x, data.edge_index).argmax(-1) != data.y).nonzero()[0])
    assert f"; labelled class {int(data.y[wrong])})" in attree.explain(model, data, wrong).sentence
    found = [attree.explain(model, graph(seed), target) for seed in range(3) for target in range(0, 14, 3)]
    strongest = [next((edge for edge in one.edges if edge.source != edge.destination), None) for one in found]
    changing = [(one, edge) for one, edge in zip(found, strongest, strict=True) if edge is not None and edge.changes]
    assert changing
    for one, edge in changing:
        against = ", which speaks against it," if edge.effect < 0 else ""
        assert f"Without {edge.name}{against} it would predict class {edge.predicted} (" in one.sentence


def test_a_pair_by_its_column_or_by_its_nodes() -> None:
    torch.manual_seed(0)
    model, data = Links().eval(), graph()
    del data.y
    data.edge_label_index = torch.tensor([[0, 3, 5], [1, 4, 7]])
    data.edge_label = torch.tensor([1, 0, 1])
    column, pair = attree.explain(model, data, 1), attree.explain(model, data, (3, 4))
    assert column.subject.level == "edge"
    assert column.to_pandas().equals(pair.to_pandas())
    assert data.edge_label_index.shape == (2, 3)
    assert "link" in pair.sentence
    before = model(data.x, data.edge_index, torch.tensor([[3], [4]])).sigmoid()
    assert pair.probability == pytest.approx(float(torch.maximum(before, 1 - before)), abs=1e-6)
    assert {node for node, told in pair.to_networkx().nodes(data="is_target") if told} == {3, 4}
    with pytest.raises(ArgumentError, match=r"nodes in \[0, 14\)"):
        attree.explain(model, data, (3, 99))
    with pytest.raises(ArgumentError, match="no `edge_label_index`"):
        attree.explain(GAT(4, 8, 2, out_channels=3), graph(), (3, 4))


def test_a_graph_of_a_batch() -> None:
    torch.manual_seed(0)
    graphs = [graph(seed, 6) for seed in range(3)]
    for one in graphs:
        one.y = torch.tensor([1])
    batch = Batch.from_data_list(graphs)
    explained = attree.explain(Graphs().eval(), batch, 2)
    assert explained.subject.level == "graph"
    nodes = set(explained.to_networkx().nodes)
    assert nodes <= set(range(12, 18))
    small = explained.subgraph(4)
    assert nx.is_weakly_connected(small.to_networkx())
    assert explained.plot().axes


def targets_drawn(explanation: TargetExplanation) -> tuple[str, set[str], set[str]]:
    """Of a picture: its heading, what stands on orange nodes, and the words of its legend."""
    figure = explanation.plot()
    axes = figure.axes[0]
    (discs,) = [one for one in axes.collections if isinstance(one, EllipseCollection)]
    orange = [tuple(color) == to_rgba(ORANGE) for color in discs.get_facecolors()]
    places = {tuple(place) for place, own in zip(discs.get_offsets().tolist(), orange, strict=True) if own}
    named = {text.get_text() for text in axes.texts if text.get_position() in places}
    legend = {text.get_text() for one in figure.legends for text in one.get_texts()}
    return figure.get_suptitle().split(":")[0], named, legend


def test_pictures_name_and_mark_what_is_explained(explanation: TargetExplanation) -> None:
    assert targets_drawn(explanation) == (
        *(f"2-hop neighbourhood of node {explanation.target}", {str(explanation.target)}, {"target"}),
    )
    torch.manual_seed(0)
    pair = graph()
    pair.edge_label_index = torch.tensor([[0, 3], [1, 4]])
    assert targets_drawn(attree.explain(Links().eval(), pair, 1)) == (
        *("2-hop neighbourhood of link 3 – 4", {"3", "4"}, {"targets"}),
    )
    batch = Batch.from_data_list([graph(seed, 6) for seed in range(3)])
    del batch.y
    whole = attree.explain(Graphs().eval(), batch, 2)
    assert targets_drawn(whole) == ("Graph 2", set(), set())
    drawn = {text.get_text() for text in whole.plot().axes[0].texts}
    assert drawn == {str(node - 12) for node in whole.to_networkx()}
    assert {name for path in whole.paths() for name in path.names or ()} <= drawn


class Authors(nn.Module):
    """Classes of authors, which are the second type of node."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.first, self.last = (HGTConv(4, 4, data.metadata()) for _ in range(2))

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        out: Tensor = self.last(self.first(x_dict, edge_index_dict), edge_index_dict)["author"]
        return out


def test_the_picture_of_a_typed_node_marks_that_node() -> None:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(8, 4, generator=generator), torch.randn(5, 4, generator=generator)
    writes = torch.stack([torch.arange(10) % 5, torch.randint(0, 8, (10,), generator=generator)])
    data["author", "writes", "paper"].edge_index, data["paper", "by", "author"].edge_index = writes, writes.flip(0)
    torch.manual_seed(0)
    explained = attree.explain(Authors(data).eval(), data, 3)
    assert targets_drawn(explained) == (*("2-hop neighbourhood of author 3", {"3"}, {"target", "paper", "author"}),)
    assert [node for node, own in explained.to_networkx().nodes(data="is_target") if own] == [8 + 3]


def test_a_subgraph_hangs_together_and_holds_the_target(explanation: TargetExplanation) -> None:
    for size in range(1, len(explanation.edges) + 1):
        part = explanation.subgraph(size)
        drawn = part.to_networkx()
        assert len(part.edges) == size or len(part.edges) == len(explanation.edges)
        assert explanation.target in drawn
        assert nx.is_weakly_connected(drawn)
    entering = [edge for edge in explanation.edges if edge.destination == explanation.target]
    assert explanation.subgraph(1).edges == entering[:1]
    with pytest.raises(ArgumentError, match="`k`"):
        explanation.subgraph(0)


def test_files_hold_what_the_table_holds(explanation: TargetExplanation, tmp_path: Path) -> None:
    table = explanation.to_pandas()
    path = explanation.to_graphml(tmp_path / "new" / "one.graphml")
    read = nx.read_graphml(path, node_type=int)
    found = {(i, j): data["effect"] for i, j, data in read.edges(data=True)}
    expected = {(row.source, row.destination): row.effect for row in table.itertuples()}
    assert found == pytest.approx(expected)
    page = explanation.page(tmp_path / "page.html")
    assert "<!doctype html>" in page.read_text()
    explanation.plot().savefig(tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 5000


def test_an_evaluation_explains_any_target(
    model: nn.Module, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = graph()
    truth = GroundTruth(torch.tensor([3]), data.edge_index[:, :2])
    result = attree.evaluate(model, data, targets=[0, 3], methods=["gatt"], truth=truth)
    other = result.explain(5)
    assert result.verdict.method == other.method == "gatt"  # the only one, and it predicts something here
    assert other.to_pandas().equals(attree.explain(model, data, 5, "gatt").to_pandas())
    assert other.true_class == int(data.y[5])
    assert result.explain(3, "gatt", "weight").method == "gatt"
    assert "Without" in result.explain(3).sentence
    assert result.explain(3).plot().axes
    assert result.show().axes
    assert "gatt" in capsys.readouterr().out.lower()
    assert "<!doctype html>" in result.page(tmp_path / "all.html").read_text()
    loaded = type(result).load(result.save(tmp_path / "saved"))
    with pytest.raises(ArgumentError, match="one that was read from files"):
        loaded.explain(3)


def test_one_id_is_an_id_and_a_number_is_asked_for_by_name(model: nn.Module) -> None:
    data = graph()
    assert attree.evaluate(model, data, targets=7, methods=["gatt"]).targets.tolist() == [7]
    assert attree.evaluate(model, data, num_targets=7, methods=["gatt"]).targets.numel() == 7


@pytest.mark.parametrize("target", ["a", 1.5, 99, -1, (1, 2, 3)])
def test_what_is_no_target(target: object, model: nn.Module) -> None:
    with pytest.raises(ArgumentError, match="target"):
        attree.explain(model, graph(), target)  # type: ignore[arg-type]


def test_numbers_are_explained_as_numbers() -> None:
    torch.manual_seed(0)
    model, data = GAT(4, 8, 2, out_channels=1).eval(), graph()
    data.y = torch.randn(14)
    explained = attree.explain(model, data, target_with_edges(data), mode="regression")
    assert explained.predicted is None
    assert "The network predicts " in explained.sentence
    assert "it would predict" in explained.sentence
    assert list(explained.to_pandas()) == ["source", "destination", "score", "effect", "changes"]


def test_percentages_do_not_round_to_certainty() -> None:
    assert [percent(share) for share in (0.5, 0.994, 0.9999, 1.0, 0.0, 0.002)] == [
        *("50 %", "99.4 %", "> 99.9 %", "100 %", "0 %", "0.2 %")
    ]
