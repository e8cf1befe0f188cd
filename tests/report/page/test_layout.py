"""Where nodes stand: against NetworkX's own layout and distances."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attree.attention import Graph
from attree.report.drawn_targets import DrawnPart
from attree.report.layout import place, spacing
from attree.report.page.target import hops

GRAPHS = {
    "path": nx.path_graph(7),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 5)),
    "tree": nx.balanced_tree(3, 3),
    "star": nx.star_graph(30),
    "random": nx.gnm_random_graph(60, 110, seed=4),
    "two parts": nx.disjoint_union(nx.cycle_graph(6), nx.path_graph(3)),
}


def neighbourhood(graph: nx.Graph, target: int | None) -> DrawnPart:
    edge_index = torch.tensor([*graph.edges, *((j, i) for i, j in graph.edges)]).T
    looped = Graph(edge_index, graph.number_of_nodes())
    edges = np.arange(looped.num_edges)
    return DrawnPart.of(looped, edges, np.zeros(len(edges), dtype=bool), target)


def placed(part: DrawnPart) -> NDArray[np.float64]:
    return place(part.source, part.destination, len(part.nodes), part.target)


def stress(graph: nx.Graph, positions: NDArray[np.float64]) -> float:
    """The energy of Kamada and Kawai at the best scale."""
    steps = np.array([[*map(float, row)] for row in nx.floyd_warshall_numpy(graph)])
    pairs = np.triu_indices(len(steps), 1)
    steps = steps[pairs]
    lengths = np.linalg.norm(positions[:, None] - positions[None], axis=-1)[pairs]
    scale = (lengths / steps).sum() / (lengths**2 / steps**2).sum()
    return float(((scale * lengths / steps - 1) ** 2).sum())


@pytest.mark.parametrize("name", ["path", "grid", "tree", "star"])
def test_energy_is_as_low_as_kamada_kawai_of_networkx(name: str) -> None:
    graph = GRAPHS[name]
    theirs = nx.kamada_kawai_layout(graph)
    expected = stress(graph, np.array([theirs[node] for node in graph]))
    assert stress(graph, placed(neighbourhood(graph, None))) <= 1.05 * expected + 1e-3


@pytest.mark.parametrize("target", [0, None])
@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_fit_stand_apart_and_always_in_the_same_places(name: str, target: int | None) -> None:
    part = neighbourhood(GRAPHS[name], target)
    positions = placed(part)
    assert np.abs(positions).max() == pytest.approx(1.0)
    gaps = np.linalg.norm(positions[:, None] - positions[None], axis=-1) + np.eye(len(positions))
    assert gaps.min() > 0.01
    assert 0.01 < spacing(positions) <= 2.0
    np.testing.assert_array_equal(placed(part), positions)
    if target is not None:
        np.testing.assert_allclose(positions[target], 0.0, atol=1e-12)


def test_one_node_alone() -> None:
    part = DrawnPart.of(Graph(torch.empty(2, 0, dtype=torch.long), 1), np.array([0]), np.array([False]), 0)
    np.testing.assert_array_equal(placed(part), [[0.0, 0.0]])
    assert spacing(placed(part)) == 1.0


def test_hops_follow_the_edges_towards_the_target() -> None:
    graph = Graph(torch.tensor([[0, 1, 3, 2], [1, 2, 1, 4]]), 5)  # 0 -> 1 -> 2 -> 4, and 3 -> 1
    part = DrawnPart.of(graph, np.arange(graph.num_edges), np.zeros(graph.num_edges, dtype=bool), target=2)
    assert hops(part).tolist() == [2, 1, 0, 2, -1]
