"""What Python tells the page: read back without the page, and compared with what was evaluated."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import HGTConv, global_add_pool

from attree.attribution import ComputationTree
from attree.errors import ArgumentError
from attree.evaluation import Evaluation, EvaluationConfig, Evaluator, TargetLabels, evaluate
from attree.report.drawn_targets import instructive_order
from attree.report.page import write_page
from attree.report.page.content import _by_kind as node_groups_of
from attree.report.page.content import page_content
from attree.subject import Subject
from helpers.explained import IMAGE, TARGETS, ExplainedModel, explained_model
from helpers.hetero import CHANNELS, METADATA, Stacked, hetero_graph

KINDS = {"f4": np.float32, "u1": np.uint8, "u2": np.uint16, "i4": np.int32}


def unpack(packed: dict[str, str]) -> NDArray[Any]:
    ((kind, text),) = packed.items()
    return np.frombuffer(base64.b64decode(text), KINDS[kind])


@pytest.fixture(scope="module")
def model() -> ExplainedModel:
    return explained_model()


@pytest.fixture(scope="module")
def embedded(model: ExplainedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document as it stands in the file."""
    path = write_page(tmp_path_factory.mktemp("page") / "page.html", model.evaluation, **model.options)
    text = path.read_text(encoding="utf-8")
    (content,) = re.findall(r'<script type="application/json" id="attree-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(content)


def test_the_file_holds_every_score_and_effect(model: ExplainedModel, embedded: dict[str, Any]) -> None:
    evaluation = model.evaluation
    pairs = evaluation.pairs
    # The most instructive first: right with true edges, then the one that depends more on an edge; the wrong one last.
    assert [target["id"] for target in embedded["targets"]] == [11, 7, 30, 3]
    for target in embedded["targets"]:
        position = TARGETS.index(target["id"])
        own = slice(int(pairs.ptr[position]), int(pairs.ptr[position + 1]))
        nodes = unpack(target["nodes"])
        ends = pairs.graph.edge_index[:, pairs.edges[own]].numpy()
        np.testing.assert_array_equal(nodes[unpack(target["source"])], ends[0])
        np.testing.assert_array_equal(nodes[unpack(target["destination"])], ends[1])
        assert nodes[target["target"]] == TARGETS[position]
        for name, scores in evaluation.pair_scores.items():
            np.testing.assert_allclose(unpack(target["scores"][name]), scores[own], rtol=1e-6)
        for name, reduction in evaluation.reductions.items():
            effect = target["effects"][name]
            np.testing.assert_allclose(unpack(effect["pc"]), reduction.delta_pc[own], rtol=1e-6)
            np.testing.assert_allclose(unpack(effect["ne"]), reduction.delta_ne[own], rtol=1e-6)
            np.testing.assert_array_equal(unpack(effect["changed"]).astype(bool), reduction.changed[own])
            assert reduction.probability is not None
            np.testing.assert_array_equal(unpack(effect["after"]), reduction.probability[own].argmax(1))
            np.testing.assert_allclose(unpack(effect["confidence"]), reduction.probability[own].amax(1), rtol=1e-6)
        predicted = model.options["predictions"][position]
        assert target["predicted"] == int(predicted.argmax())
        assert target["confidence"] == pytest.approx(float(predicted.max()))
        assert target["true"] == int(model.options["true_classes"][position])


def test_true_edges_are_those_of_the_own_target(model: ExplainedModel, embedded: dict[str, Any]) -> None:
    for target in embedded["targets"]:
        expected = set()
        if target["id"] in model.truth.targets.tolist():
            expected = set(zip(*model.truth.edges_of(target["id"]).tolist(), strict=True))
        nodes = unpack(target["nodes"])
        ends = zip(nodes[unpack(target["source"])], nodes[unpack(target["destination"])], strict=True)
        flags = unpack(target["truth"]) if target["truth"] else np.zeros(len(unpack(target["source"])))
        found = {(int(i), int(j)) for (i, j), is_true in zip(ends, flags, strict=True) if is_true}
        assert found == expected
    assert [target["truth"] is not None for target in embedded["targets"]] == [True, True, False, False]


def test_nodes_are_grouped_by_what_the_model_predicts_for_them(model: ExplainedModel, embedded: dict[str, Any]) -> None:
    names = model.options["class_names"]
    assert embedded["groups"] == {"meaning": "predicted class", "names": names, "shapes": False}
    predicted = model.attention.output.argmax(-1)
    for target in embedded["targets"]:
        np.testing.assert_array_equal(unpack(target["group"]), predicted[unpack(target["nodes"]).tolist()])


def test_atoms_are_grouped_by_their_kind_and_mixed_names_are_not() -> None:
    groups = node_groups_of(["C0", "C1", "O2", "Cl3"])
    assert groups is not None
    assert groups.names == ["C", "Cl", "O"]
    assert groups.of_node.tolist() == [0, 0, 2, 1]
    assert node_groups_of(["C0", "a paper", "O2"]) is None
    assert node_groups_of(["C0", "C1"]) is None  # one kind tells nothing apart


def test_trees_have_the_size_that_they_are_said_to_have(model: ExplainedModel, embedded: dict[str, Any]) -> None:
    for target in embedded["targets"]:
        assert target["treeSize"] == len(ComputationTree(model.attention, target["id"]))


def test_without_attention_or_predictions_the_page_does_not_know_them(model: ExplainedModel) -> None:
    unknown = replace(model.evaluation, attention=None, predictions=None, truth=None, target_labels=TargetLabels())
    target = page_content(unknown)["targets"][0]
    assert target["layers"] is None
    assert target["treeSize"] is None
    assert target["truth"] is None
    assert "predicted" not in target
    assert "true" not in target


def test_an_evaluation_alone_tells_predictions_classes_names_and_trees(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    names = [f"paper {node}" for node in range(30)]
    graph = Data(
        x=torch.randn(30, 4, generator=generator),
        edge_index=torch.randint(0, 30, (2, 80), generator=generator),
        y=torch.arange(30) % 3 - (torch.arange(30) == 4).long() * 9,  # one node has no class
        node_names=names,
        class_names=["red", "green", "blue"],
    )
    net = PyGGAT(4, 8, 2, out_channels=3).eval()
    evaluation = evaluate(net, graph, [4, 7], "gatt")
    shares = net(graph.x, graph.edge_index).detach().double().softmax(-1)
    evaluation.save(tmp_path)
    for result, has_tree in ((evaluation, True), (Evaluation.load(tmp_path), False)):
        content = page_content(result)
        first, second = sorted(content["targets"], key=lambda target: target["id"])
        assert "true" not in first
        assert second["true"] == 1
        for target, node in ((first, 4), (second, 7)):
            assert target["predicted"] == int(shares[node].argmax())
            assert target["confidence"] == pytest.approx(float(shares[node].max()), abs=1e-6)
            assert (target["layers"] is not None) == has_tree
        assert content["nodeNames"]["7"] == "paper 7"
        assert content["classNames"] == ["red", "green", "blue"]
    assert page_content(evaluation)["title"] == "GAT, 2 layers"
    assert page_content(evaluation, title="Mine")["title"] == "Mine"
    meanings = {one["name"]: one["meaning"] for one in page_content(evaluation)["protocols"]}
    assert "stay as they are" in meanings["weight"]
    assert "deleted" in meanings["removal"]


def test_large_neighbourhoods_keep_true_and_high_scores_and_say_so(model: ExplainedModel) -> None:
    content = page_content(model.evaluation, truth=model.truth, max_edges=6)
    pairs = model.evaluation.pairs
    for target in content["targets"]:
        position = TARGETS.index(target["id"])
        whole = int(pairs.ptr[position + 1] - pairs.ptr[position])
        kept = len(unpack(target["source"]))
        assert kept <= 6
        assert target["wholeEdges"] == whole
        assert target["leftOut"].startswith(f"{whole - kept} lower-scored edge")
    first = next(target for target in content["targets"] if target["id"] == 7)
    nodes = unpack(first["nodes"])
    kept_pairs = set(zip(nodes[unpack(first["source"])], nodes[unpack(first["destination"])], strict=True))
    true_pairs = set(zip(*model.truth.edges_of(7).tolist(), strict=True))
    assert 0 < len(true_pairs) <= 6
    assert true_pairs <= kept_pairs


def test_the_most_instructive_targets_come_first(model: ExplainedModel) -> None:
    evaluation, options = model.evaluation, model.options
    pairs = evaluation.pairs
    right = options["predictions"].argmax(1) == options["true_classes"]
    has_truth = torch.tensor([target in model.truth.targets.tolist() for target in TARGETS])
    order = instructive_order(evaluation, options["predictions"], options["true_classes"], has_truth).tolist()

    def key(position: int) -> tuple[bool, bool, int, bool, float]:
        own = slice(int(pairs.ptr[position]), int(pairs.ptr[position + 1]))
        size = own.stop - own.start
        effect = max(float(one.delta_pc[own].abs().max()) for one in evaluation.reductions.values())
        thicket = 2 if size > 200 else int(not 4 <= size <= 60)
        unsure = float(options["predictions"][position].max()) < 0.8
        return not right[position], not has_truth[position], thicket, unsure, -effect

    assert order == sorted(range(len(TARGETS)), key=key)
    # Without predictions or truth the order still is one of all targets.
    unknown = replace(evaluation, predictions=None, target_labels=TargetLabels(), reductions={})
    assert sorted(instructive_order(unknown).tolist()) == [0, 1, 2, 3]


def test_more_targets_than_fit_are_counted(model: ExplainedModel) -> None:
    content = page_content(model.evaluation, max_targets=2, node_names=[str(node) for node in range(40)])
    assert len(content["targets"]) == 2
    assert content["numTargets"] == 4
    touched = {str(node) for target in content["targets"] for node in unpack(target["nodes"])}
    assert set(content["nodeNames"]) == touched


def test_markup_in_names_never_stands_in_the_file_as_markup(model: ExplainedModel, tmp_path: Path) -> None:
    text = write_page(tmp_path / "page.html", model.evaluation, **model.options).read_text(encoding="utf-8")
    assert IMAGE not in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    for namespace in ("http://www.w3.org/2000/svg", "http://graphml.graphdrawing.org/xmlns"):
        text = text.replace(namespace, "")
    assert "http://" not in text
    assert "https://" not in text


def test_an_undefined_metric_is_null_not_broken_json(model: ExplainedModel, tmp_path: Path) -> None:
    evaluation = replace(model.evaluation, metrics={"explain/gatt/truth_auroc": float("nan"), "val/acc": 0.5})
    text = write_page(tmp_path / "page.html", evaluation).read_text(encoding="utf-8")
    assert '{"name":"truth_auroc","value":null,"method":"gatt","protocol":null},{"name":"val/acc","value":0.5}' in text


def test_graphs_are_drawn_whole_and_have_no_tree() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = PyGGAT(4, 8, 2, out_channels=2)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            return global_add_pool(self.body(x, edge_index), batch)

    graphs = [Data(x=torch.randn(size, 4), edge_index=torch.randint(0, size, (2, 3 * size))) for size in (4, 6)]
    evaluation = evaluate(Net(), Batch.from_data_list(graphs), "all", ["gatt"], ["removal"])
    content = page_content(evaluation)
    assert content["kind"] == "graph"
    content["targets"].sort(key=lambda target: target["id"])
    assert [len(unpack(target["nodes"])) for target in content["targets"]] == [4, 6]
    assert [target["layers"] for target in content["targets"]] == [None, None]
    assert [target["target"] for target in content["targets"]] == [-1, -1]
    # Each graph numbers its own nodes from 0, and graphs are called by their ids in the dataset.
    assert [unpack(target["nodes"]).tolist() for target in content["targets"]] == [[*range(4)], [*range(6)]]
    batch, names = Batch.from_data_list(graphs), [f"C{number}" for number in (*range(4), *range(6))]
    batch.node_names = [names[:4], names[4:]]
    subject = Subject.of_data(Net(), batch)
    labels = TargetLabels.of(batch, subject, ids=torch.tensor([28, 43]))
    content = page_content(Evaluator(subject, [1], EvaluationConfig("gatt", "removal"), labels=labels).evaluate())
    assert content["targets"][0]["id"] == 43
    assert content["targets"][0]["names"] == names[4:]


class Links(torch.nn.Module):
    """Scores pairs of nodes by what a GAT says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = PyGGAT(4, 8, 2, out_channels=3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_label_index: torch.Tensor) -> torch.Tensor:
        h = self.body(x, edge_index)
        return (h[edge_label_index[0]] * h[edge_label_index[1]]).sum(-1)


def test_a_pair_of_nodes_is_shown_with_both_its_ends() -> None:
    generator = torch.Generator().manual_seed(1)
    x, edges = torch.randn(20, 4, generator=generator), torch.randint(0, 20, (2, 60), generator=generator)
    pairs = torch.tensor([[3, 7, 5], [11, 2, 5]])
    subject = Subject.of(Links(), x, edges, edge_label_index=pairs)
    labels = TargetLabels.of(Data(x=x, edge_index=edges), subject)
    content = page_content(
        Evaluator(subject, [0, 2], EvaluationConfig(["gatt"], ["removal"]), labels=labels).evaluate()
    )
    assert content["kind"] == "edge"
    shown = {target["name"]: unpack(target["nodes"])[target["roots"]].tolist() for target in content["targets"]}
    assert shown == {"3 \N{EN DASH} 11": [3, 11], "5 \N{EN DASH} 5": [5]}
    assert all(target["layers"] is None for target in content["targets"])  # two roots make no single tree


def test_types_have_groups_with_shapes_and_relations_have_names() -> None:
    data = hetero_graph()
    model = Stacked(*(HGTConv(CHANNELS, CHANNELS, METADATA, heads=1) for _ in range(2))).double()
    subject = Subject.of_data(model, data)
    labels = TargetLabels.of(data, subject)
    content = page_content(
        Evaluator(subject, [1, 4], EvaluationConfig(["gatt"], []), labels=labels, warn=False).evaluate()
    )
    assert content["groups"] == {"meaning": "type of node", "names": ["paper", "author", "term"], "shapes": True}
    assert content["relations"] == ["writes", "written_by", "in", "has", "cites", "self-loop"]
    sizes = {"paper": 0, "author": 7, "term": 12}  # where the nodes of each type begin in the union
    for target in content["targets"]:
        kind = [content["groups"]["names"][place] for place in unpack(target["group"])]
        ids = unpack(target["nodes"]).tolist()
        assert target["names"] == [f"{own} {node - sizes[own]}" for own, node in zip(kind, ids, strict=True)]
        assert target["name"] == f"paper {target['id']}"
        assert [ids[place] for place in target["roots"]] == [target["id"]]
        for relation, source, destination in zip(
            *(unpack(target[key]) for key in ("relation", "source", "destination")), strict=True
        ):
            word = content["relations"][relation]
            (edge_type,) = (known for known in data.edge_types if known[1] == word)
            assert (kind[source], kind[destination]) == (edge_type[0], edge_type[2])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"predictions": torch.ones(3, 3)}, "predictions"),
        ({"true_classes": torch.zeros(5, dtype=torch.long)}, "true_classes"),
        ({"node_names": ["one"]}, "node_names"),
        ({"class_names": ["one", "two"]}, "class_names"),
        ({"max_edges": 0}, "max_edges"),
        ({"max_targets": 0}, "max_targets"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    model: ExplainedModel, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ArgumentError, match=f"`{named}`"):
        write_page(tmp_path / "page.html", model.evaluation, **options)
    assert list(tmp_path.iterdir()) == []


def test_attention_of_another_depth_is_refused(model: ExplainedModel, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="pairs of a network of 3 layers"):
        write_page(tmp_path / "page.html", model.evaluation, attention=explained_model(3).attention)
