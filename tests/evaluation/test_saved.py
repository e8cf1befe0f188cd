"""A saved evaluation is read as it was: types, links, labels; and damage is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT, GATConv, HGTConv, global_add_pool

import attree
from attree.attribution import attribute_nodes
from attree.errors import ArgumentError
from attree.evaluation import Evaluation
from attree.report.page.content import page_content
from helpers.damage import flip_bytes, truncate
from helpers.hetero import hetero_graph


class Typed(nn.Module):
    """Classes of the nodes of the last type."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self.node_type = data.node_types[-1]
        width = {kind: data[kind].x.shape[1] for kind in data.node_types}
        self.first, self.last = HGTConv(width, 4, data.metadata()), HGTConv(4, 3, data.metadata())

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        out: Tensor = self.last(self.first(x_dict, edge_index_dict), edge_index_dict)[self.node_type]
        return out


class Links(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(self.conv(x, edge_index), batch)


def graph(**more: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    x, edge_index = torch.randn(9, 4, generator=generator), torch.randint(0, 9, (2, 24), generator=generator)
    return Data(x=x, edge_index=edge_index, **more)


def typed() -> Evaluation:
    data = hetero_graph()
    return attree.evaluate(Typed(data).double().eval(), data, [0, 2], ["gatt", "occlusion"])


def links() -> Evaluation:
    pairs = torch.tensor([[0, 3, 5, 2], [1, 4, 7, 2]])
    return attree.evaluate(Links().eval(), graph(edge_label_index=pairs), [1, 3], ["gatt"])


def labels() -> Evaluation:
    data = graph(y=torch.randint(0, 2, (9, 3)), class_names=["a", "b", "c"])
    return attree.evaluate(GAT(4, 8, 2, out_channels=3).eval(), data, [1, 3], ["gatt"], mode="binary_classification")


def graphs() -> Evaluation:
    return attree.evaluate(Graphs().eval(), Batch.from_data_list([graph(), graph()]), [0, 1], ["gatt"])


def nodes() -> Evaluation:
    return attree.evaluate(GAT(4, 8, 2, out_channels=3).eval(), graph(y=torch.arange(9) % 3), [1, 3], ["gatt"])


CASES: dict[str, tuple[Callable[[], Evaluation], str]] = {
    "typed": (typed, "2 of 3 nodes"),
    "links": (links, "2 of 4 links"),
    "labels": (labels, "2 of 9 nodes"),
    "graphs": (graphs, "2 graphs"),
    "nodes": (nodes, "2 of 9 nodes"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_what_was_saved(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, count = CASES[name]
    saved = make()
    read = Evaluation.load(saved.save(tmp_path))
    assert f"\n{count}, " in f"\n{saved}"
    assert str(read).split("\n\n")[0] == str(saved).split("\n\n")[0]  # files do not keep times, which verdicts tell
    assert (read.pairs.level, read.pairs.graph.types) == (saved.pairs.level, saved.pairs.graph.types)
    for method, scores in saved.scores.items():
        assert read.scores[method].to_pandas().equals(scores.to_pandas())
    pages = [page_content(evaluation) for evaluation in (saved, read)]
    for page in pages:
        page.pop("verdict")
        page.pop("groups")  # colours by the class of every node, which files do not keep
        for target in page["targets"]:
            for of_tree in ("layers", "treeSize", "group"):
                target.pop(of_tree, None)
    assert repr(pages[0]) == repr(pages[1])  # NaN equals NaN


def test_a_damaged_file_of_settings_is_refused_in_a_sentence(tmp_path: Path) -> None:
    nodes().save(tmp_path)
    path, rng = tmp_path / "methods.json", np.random.default_rng(0)
    content = path.read_bytes()
    damages: list[Callable[[], object]] = [lambda: flip_bytes(path, rng), lambda: truncate(path, rng)] * 35
    texts = (b"[" * 100_000, b"[1]", b'{"gatt": 3}', b"\xff\xfe", b"")
    damages += [lambda text=text: path.write_bytes(text) for text in texts]  # type: ignore[misc]
    refused = 0
    for damage in damages:
        path.write_bytes(content)
        damage()
        try:
            Evaluation.load(tmp_path)
        except ArgumentError as error:
            refused += "methods.json" in str(error)
    assert refused > 50


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("roots", np.array([[0, 99], [1, 1]])),
        ("roots", np.array([[0.5, 1.0], [1.0, 1.0]])),
        ("level", np.array("pair")),
        ("level", np.array("graph")),
        ("measured", np.array([1])),
    ],
)
def test_forged_arrays_are_refused(array: str, value: np.ndarray, tmp_path: Path) -> None:
    nodes().save(tmp_path)
    path = tmp_path / "evaluation.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **arrays | {array: value})
    with pytest.raises(ArgumentError, match="whole evaluation"):
        Evaluation.load(tmp_path)


def test_node_scores_are_saved_and_damaged_ones_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph = Data(x=torch.randn(12, 4), edge_index=torch.randint(0, 12, (2, 30)))
    result = attree.evaluate(GAT(4, 8, 2, 3), graph, targets=[2, 5], methods=["random", "gatt"], protocols=["weight"])
    assert result.nodes is not None
    assert result.subject is not None
    read = Evaluation.load(result.save(tmp_path)).nodes
    assert read is not None
    for target in (2, 5):
        expected = attribute_nodes(result.subject, target).dense(target)
        assert torch.equal(read.dense(target), result.nodes.dense(target))
        torch.testing.assert_close(read.dense(target), expected)
    with np.load(tmp_path / "nodes.npz") as arrays:
        damaged = {**arrays, "nodes": arrays["nodes"] + 12}
    np.savez(tmp_path / "nodes.npz", **damaged)
    with pytest.raises(ArgumentError, match="node scores that fit its graph"):
        Evaluation.load(tmp_path)
