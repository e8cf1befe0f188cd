"""A graph from two tables with ids and labels in words: read, trained on and explained by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import attree
from attree.data import NodeDataModule, from_csv
from attree.errors import ArgumentError
from attree.models import GAT

NODES = pd.DataFrame(
    {
        "id": ["ann", "bob", "cy", "dee"],
        "age": [30, 41, 5, 62],
        "town": ["Bonn", "Ulm", "Bonn", "Kiel"],
        "label": ["spam", "ham", None, "ham"],
        "part": ["train", "val", None, "test"],
    }
)
EDGES = pd.DataFrame({"source": ["ann", "bob", "cy"], "target": ["bob", "cy", "cy"]})


def test_tables_become_the_graph_that_they_describe(tmp_path: Path) -> None:
    NODES.to_csv(tmp_path / "nodes.csv", index=False)
    EDGES.to_csv(tmp_path / "edges.csv", index=False)
    graph = from_csv(tmp_path / "nodes.csv", str(tmp_path / "edges.csv"), split="part")
    assert graph.edge_index.tolist() == [[0, 1, 2], [1, 2, 2]]
    # age, then one column for each town
    assert graph.x.tolist() == [[30, 1, 0, 0], [41, 0, 0, 1], [5, 1, 0, 0], [62, 0, 1, 0]]
    assert graph.y.tolist() == [1, 0, -1, 0]
    assert (graph.class_names, graph.node_names) == (["ham", "spam"], ["ann", "bob", "cy", "dee"])
    masks = [graph[f"{part}_mask"].tolist() for part in ("train", "val", "test")]
    assert masks == [[True, False, False, False], [False, True, False, False], [False, False, False, True]]


def test_it_is_trained_on_and_explained_by_name() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = [f"user {number}" for number in range(30)]
    nodes = pd.DataFrame({"id": ids, "age": torch.rand(30, generator=generator), "label": ["a", "b", "c"] * 10})
    ends = torch.randint(30, (2, 80), generator=generator).tolist()
    edges = pd.DataFrame({"source": [ids[end] for end in ends[0]], "target": [ids[end] for end in ends[1]]})
    graph = from_csv(nodes, edges)
    data = NodeDataModule.from_data(graph, split_seed=0)
    explanation = attree.explain(GAT(data.num_features, data.num_classes), data.graph, ends[1][0])
    assert "user" in str(explanation)


def test_undirected_edges_run_both_ways_once() -> None:
    graph = from_csv(NODES, EDGES, features=["age"], undirected=True, label=None)
    assert graph.edge_index.tolist() == [[0, 1, 2, 1, 2], [1, 2, 2, 0, 1]]
    assert "y" not in graph
    assert graph.x.tolist() == [[30], [41], [5], [62]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": EDGES.assign(target=["bob", "eve", "cy"])}, r"`target` of `edges` .* but got 'eve' in row 2"),
        ({"nodes": NODES.assign(id=["a", "b", "b", "c"])}, r"`id` to be each id once, but got \['b'\]"),
        ({"label": "class"}, r"`label` to be columns of `nodes` \(id, age, town, label, part\), but got 'class'"),
        ({"nodes": NODES.assign(age=[1, None, 2, 3])}, r"1 empty cells in column 'age'"),
        ({"split": "town"}, r"`train`, `val`, `test` or nothing in each row, but got 'Bonn'"),
        ({"nodes": "absent.csv"}, r"`nodes` to be a CSV file or a data frame, but got 'absent.csv'"),
        ({"edges": 3}, r"`edges` to be a CSV file or a data frame, but got 3"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"nodes": NODES.assign(part="train"), "edges": EDGES, **changes}
    with pytest.raises(ArgumentError, match=message):
        from_csv(**arguments)
