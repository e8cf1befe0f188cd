from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.utils import to_networkx

from attree.data import BAShapes
from attree.errors import ArgumentError, MissingDataError

HOUSE = nx.Graph([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "top"), ("b", "top")])


@pytest.fixture(scope="module")
def generated() -> BAShapes:
    return BAShapes(seed=5)


def test_houses_hang_on_the_base_by_one_edge_each(generated: BAShapes) -> None:
    graph = to_networkx(generated.graph, to_undirected=True)
    assert generated.graph.y.bincount().tolist() == [300, 160, 160, 80]
    assert nx.is_connected(graph)
    assert graph.subgraph(range(300)).number_of_edges() == 3 * 297
    houses = list(nx.connected_components(graph.subgraph(range(300, 700))))
    assert len(houses) == 80
    for house in houses:
        motif = graph.subgraph(house)
        assert nx.is_isomorphic(motif, HOUSE)
        assert nx.cut_size(graph, house) == 1
        labels = {node: int(generated.graph.y[node]) for node in house}
        # The roof closes the triangle, the middle is next to it, the bottom is not.
        (top,) = [node for node in house if labels[node] == 3]
        assert {labels[node] for node in motif[top]} == {1}
        assert motif.degree[top] == 2
        assert sorted(labels.values()) == [1, 1, 2, 2, 3]


def test_links_use_all_parts_of_a_house(generated: BAShapes) -> None:
    source, destination = generated.graph.edge_index
    linked = destination[(source < 300) & (destination >= 300)]
    assert set(((linked - 300) % 5).tolist()) == set(range(5))


def test_features_are_clipped_degrees(generated: BAShapes) -> None:
    degrees = generated.graph.edge_index[1].bincount(minlength=700)
    assert torch.equal(generated.graph.x.argmax(dim=1), degrees.clamp(max=49))
    assert torch.equal(generated.graph.x.sum(dim=1), torch.ones(700))
    assert generated.graph.x.size(1) == generated.num_features == 50


def test_truth_is_every_motif_edge_and_self_loop_for_every_motif_node(generated: BAShapes) -> None:
    truth = generated.truth
    assert truth is not None
    assert truth.ptr is None
    assert truth.targets.tolist() == list(range(300, 700))
    edges = set(map(tuple, truth.edges.t().tolist()))
    expected = {(i, j) for i, j in generated.graph.edge_index.t().tolist() if min(i, j) >= 300}
    assert edges == expected | {(i, i) for i in range(300, 700)}
    assert len(edges) == truth.edges.size(1) == 80 * 12 + 400


def test_seed_decides_graph_and_split(generated: BAShapes) -> None:
    again, other = BAShapes(seed=5), BAShapes(seed=6)
    for key in ("x", "edge_index", "train_mask", "val_mask"):
        assert torch.equal(generated.graph[key], again.graph[key])
        assert not torch.equal(generated.graph[key], other.graph[key])


@pytest.mark.needs("gatt_paper")
def test_authors_graph_truth_and_split(data_root: str) -> None:
    data = BAShapes(source="authors", root=data_root)
    file = np.load(f"{data_root}/gatt_paper/ba_shapes.npz", allow_pickle=False)
    for key in ("x", "y", "edge_index"):
        assert np.array_equal(data.graph[key].numpy(), file[key])
    assert np.array_equal(data.graph.train_mask.nonzero().view(-1), np.sort(file["idx_train"]))
    assert np.array_equal(data.graph.test_mask.nonzero().view(-1), np.sort(file["idx_test"]))
    assert data.truth is not None
    source, destination = data.graph.edge_index
    labels = data.truth.labels(torch.zeros_like(source), source, destination)
    assert np.array_equal(labels.numpy(), file["edge_mask"])
    assert np.array_equal(data.truth.targets.numpy(), file["node_mask"].nonzero()[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attachment": 0}, "`attachment`"),
        ({"num_base": 3}, "`num_base` to be greater than `attachment` = 3, but got 3"),
        ({"num_houses": 0}, "`num_houses`"),
        ({"source": "web"}, "`source`"),
        ({"source": "authors", "num_houses": 10}, "num_houses"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BAShapes(**arguments)


def test_absent_authors_file_says_what_to_do(tmp_path: object) -> None:
    with pytest.raises(MissingDataError, match=r"ba_shapes.npz does not exist"):
        BAShapes(source="authors", root=str(tmp_path)).setup()
