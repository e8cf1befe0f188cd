"""Any dataset of PyG by the name of its class: the same graph as PyG's own loader gives, trained and explained."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch_geometric import datasets
from torch_geometric.utils import degree, k_hop_subgraph

import attree
from attree.cli import main
from attree.data import NodeDataModule, PyG, PyGGraphs
from attree.data.datasets.motifs import MOTIFS as PUBLISHED
from attree.data.datasets.motifs import motif_edges
from attree.errors import ArgumentError, MissingDataError
from attree.io.files import read_metrics
from attree.models import GAT, GraphClassifier
from attree.runs.classes import build_run
from helpers.cli import command

MOTIFS = {
    "graph_generator": "ba",
    "motif_generator": "house",
    "num_motifs": 6,
    "graph_generator_kwargs": {"num_nodes": 40, "num_edges": 2},
}


def test_a_generated_dataset_has_its_motifs_as_truth(tmp_path: Path) -> None:
    data = PyG("ExplainerDataset", MOTIFS, split_seed=3, root=str(tmp_path))
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    theirs = datasets.ExplainerDataset(**{**MOTIFS, "graph_generator_kwargs": dict(MOTIFS["graph_generator_kwargs"])})[
        0
    ]
    assert torch.equal(data.graph.edge_index, theirs.edge_index)
    assert torch.equal(data.graph.y, theirs.y)
    assert torch.equal(data.graph.x.argmax(dim=1), degree(theirs.edge_index[1], theirs.num_nodes).long().clamp(max=49))
    assert data.truth is not None
    assert data.truth.targets.tolist() == theirs.node_mask.nonzero().view(-1).tolist()
    in_motif = {tuple(edge) for edge in theirs.edge_index[:, theirs.edge_mask > 0].t().tolist()}
    true_edges = {tuple(edge) for edge in data.truth.edges_of(int(data.truth.targets[0])).t().tolist()}
    assert true_edges == in_motif | {(node, node) for node in data.truth.targets.tolist()}
    sizes = [int(data.graph[f"{part}_mask"].sum()) for part in ("train", "val", "test")]
    assert sizes == [42, 14, 14]  # 60 %, 20 % and 20 % of 40 + 6 * 5 nodes
    assert isinstance(data, NodeDataModule)
    result = attree.evaluate(
        GAT(data.num_features, data.num_classes), data.graph, num_targets=5, methods=["gatt"], truth=data.truth
    )
    assert 0 <= result.metrics["explain/gatt/truth_auroc"] <= 1


def test_the_same_seed_gives_the_same_graph_and_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    first, second, other = (PyG("ExplainerDataset", MOTIFS, split_seed=s, root=str(tmp_path)).graph for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.edge_index, second.edge_index)
    assert torch.equal(first.train_mask, second.train_mask)
    assert not torch.equal(first.train_mask, other.train_mask)


def test_a_dataset_on_disk_is_read_with_one_of_its_splits(data_root: str) -> None:
    folder = f"{data_root}/webkb"
    data = PyG("WebKB", {"name": "Texas", "root": folder}, split=2)
    theirs = datasets.WebKB(folder, "Texas")[0]
    assert (data.name, data.num_classes) == ("WebKB Texas", 5)
    assert torch.equal(data.graph.edge_index, theirs.edge_index)
    assert torch.equal(data.graph.test_mask, theirs.test_mask[:, 2])
    with pytest.raises(ArgumentError, match=r"`split` to be below 10, the number of splits"):
        PyG("WebKB", {"name": "Texas", "root": folder}, split=10)


def test_graphs_are_classified(data_root: str) -> None:
    options = {"name": "MUTAG", "root": f"{data_root}/tu"}
    data = PyGGraphs("TUDataset", options)
    theirs = datasets.TUDataset(options["root"], "MUTAG")
    assert (data.name, data.num_features, data.num_classes) == ("TUDataset MUTAG", 7, 2)
    assert len(data.graphs) == len(theirs)
    assert all(torch.equal(ours.edge_index, graph.edge_index) for ours, graph in zip(data.graphs, theirs, strict=True))
    with pytest.raises(ArgumentError, match=r"TUDataset has 188: use `attree.data.PyGGraphs`"):
        PyG("TUDataset", options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Amazn",), r"name a class of torch_geometric.datasets, but got 'Amazn'. Did you mean `Amazon`"),
        (("os",), r"name a class of torch_geometric.datasets"),
        (("Amazon",), r"arguments of Amazon \(root, name, .* missing a required argument: 'name'"),
        (("Amazon", {"nam": "Photo"}), r"arguments of Amazon"),
        (("DBLP",), r"DBLP"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, arguments: tuple[Any, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(datasets.DBLP, "download", offline)
    with pytest.raises((ArgumentError, MissingDataError), match=message):
        PyG(*arguments, root=str(tmp_path))


def test_truth_lies_within_reach_of_its_targets(tmp_path: Path) -> None:
    data = PyG("ExplainerDataset", MOTIFS, root=str(tmp_path))
    assert data.truth is not None
    target = int(data.truth.targets[0])
    _, edges, _, _ = k_hop_subgraph(target, 2, data.graph.edge_index)
    true_edges = {tuple(edge) for edge in data.truth.edges_of(target).t().tolist()}
    assert true_edges & {tuple(edge) for edge in edges.t().tolist()}


def test_a_run_that_names_a_loader_of_pyg_is_opened_only_with_leave(tmp_path: Path) -> None:
    path = "attree.data.PyG"
    config = {
        "data": {"class_path": path, "init_args": {"dataset": "ExplainerDataset", "options": MOTIFS}},
        "model": {
            "class_path": "attree.models.NodeClassifier",
            "init_args": {"net": {"class_path": "attree.models.GAT"}},
        },
    }
    with pytest.raises(ArgumentError, match=r'it names attree.data.PyG. .* allow=\["attree.data.PyG"\]'):
        build_run(config, tmp_path / "config.yaml")
    data, _ = build_run(config, tmp_path / "config.yaml", [path])
    assert isinstance(data, PyG)


SHAPES = {"house": nx.house_graph, "wheel": lambda: nx.wheel_graph(6), "grid": lambda: nx.grid_2d_graph(3, 3)}


def with_motifs(shapes: list[nx.Graph], size: int, seed: int) -> tuple[nx.Graph, set[tuple[int, int]]]:
    """A random tree with motifs attached one after the other, each by one edge, as both papers describe it."""
    draw = random.Random(seed)
    graph = nx.barabasi_albert_graph(size - sum(map(len, shapes)), 1, seed=seed)
    inside: set[tuple[int, int]] = set()
    for shape in shapes:
        first = len(graph)
        graph = nx.disjoint_union(graph, nx.convert_node_labels_to_integers(shape))
        inside |= {(a, b) for a, b in graph.edges if min(a, b) >= first}
        graph.add_edge(draw.randrange(first), draw.randrange(first, len(graph)))
    return graph, inside | {(b, a) for a, b in inside}


def write_motif_files(root: Path) -> tuple[list[set[tuple[int, int]]], list[set[tuple[int, int]]]]:
    """Files in the published formats; returns the true edges of the graphs of both."""
    two, many = [], []
    for number in range(20):
        two.append(with_motifs([nx.house_graph() if number % 2 else nx.cycle_graph(5)], 25, number))
        names = [name for place, name in enumerate(SHAPES) if number >> place & 1]
        random.Random(number).shuffle(names)
        many.append(with_motifs([SHAPES[name]() for name in names], 40, number))
    features = [np.full((len(graph), 10), 0.1) for graph, _ in two]
    adjacencies = [nx.to_numpy_array(graph) for graph, _ in two]
    content = (np.stack(adjacencies), np.stack(features), np.eye(2)[[number % 2 for number in range(20)]])
    folder = root / "pyg" / "BA2MotifDataset" / "raw"
    folder.mkdir(parents=True)
    (folder / "BA-2motif.pkl").write_bytes(pickle.dumps(content))
    labels = [int(bin(number & 7).count("1") == 2) for number in range(20)]
    others = ([nx.to_numpy_array(graph) for graph, _ in many], [list(np.full((40, 10), 0.1)) for _ in many], labels)
    folder = root / "pyg" / "BAMultiShapesDataset" / "raw"
    folder.mkdir(parents=True)
    (folder / "BAMultiShapes.pkl").write_bytes(pickle.dumps(others))
    return [edges for _, edges in two], [edges for _, edges in many]


def edge_set(edges: Tensor) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in edges.t().tolist()}


def test_motifs_of_graphs_are_their_ground_truth(tmp_path: Path) -> None:
    two, many = write_motif_files(tmp_path)
    for name, expected in (("BA2MotifDataset", two), ("BAMultiShapesDataset", many)):
        data = PyGGraphs(name, root=str(tmp_path))
        assert [edge_set(graph.edge_index[:, graph.true_edge_mask]) for graph in data.graphs] == expected
    assert any(not edges for edges in many)  # trees without motifs have no truth
    broken = motif_edges(torch.tensor([[0, 1, 2, 1, 2, 0], [1, 0, 0, 2, 1, 2]]), 3, PUBLISHED["BA2MotifDataset"])
    assert not bool(broken.any())


def test_true_edges_of_graphs_are_compared_with_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AUROC over all pairs of graphs that have a motif; edges are numbered within the batch."""
    _, many = write_motif_files(tmp_path)
    data = PyGGraphs("BAMultiShapesDataset", root=str(tmp_path))
    torch.manual_seed(0)
    module = GraphClassifier(GAT(data.num_features, data.num_classes, num_layers=2))
    result = attree.evaluate(module, data, targets=[1, 3, 8, 19], methods=["gatt"], protocols=["removal"])
    labels, scores = [], []
    edges, first = result.pairs.graph.edge_index[:, result.pairs.edges], 0
    for place, number in enumerate((1, 3, 8, 19)):
        own = result.pairs.owner == place
        nodes = {node for edge in many[number] for node in edge}
        true = many[number] | {(node, node) for node in nodes}
        if true:
            labels += [(a - first, b - first) in true for a, b in edges[:, own].t().tolist()]
            scores += result.pair_scores["gatt"][own].tolist()
        first += 40
    assert result.num_true_targets == 3
    assert result.metrics["explain/gatt/truth_auroc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
    assert "true edges" in str(result)
    fit = f"fit --data=PyGGraphs --data.dataset=BAMultiShapesDataset --data.root={tmp_path} --model=GraphClassifier"
    quick = "--model.net=GAT --trainer.max_epochs=1 --trainer.enable_progress_bar=false --explain.figures=0"
    main([*fit.split(), *quick.split(), f"--trainer.logger.save_dir={tmp_path / 'logs'}"])
    run = tmp_path / "logs" / "runs" / "version_0"
    assert "explain/gatt/truth_auroc" in read_metrics(run / "metrics.json")
    explained = ["--targets=truth:3", "--figures=0", "--allow=attree.data.PyGGraphs"]
    capsys.readouterr()
    assert command("explain", str(run), *explained) == 0
    assert "ground truth: measured on 3 targets" in " ".join(capsys.readouterr().out.split())
