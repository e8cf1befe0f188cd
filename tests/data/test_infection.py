from __future__ import annotations

import random

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import attree
from attree.data import Infection
from attree.data.datasets.infection import directed_erdos_renyi, infection_paths
from attree.errors import ArgumentError, MissingDataError
from attree.models import GAT


def shortest_paths(graph: nx.DiGraph, infected: list[int], node: int) -> list[list[int]]:
    """All shortest paths to `node` from its nearest infected nodes, found one source at a time."""
    paths = [
        path
        for source in infected
        if nx.has_path(graph, source, node)
        for path in nx.all_shortest_paths(graph, source, node)
    ]
    shortest = min(map(len, paths), default=0)
    return [path for path in paths if len(path) == shortest]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.integers(2, 16),
    mean_degree=st.floats(0.3, 4),
    num_infected=st.integers(1, 4),
    num_layers=st.integers(1, 5),
)
def test_labels_targets_and_paths_match_all_shortest_paths(
    seed: int, num_nodes: int, mean_degree: float, num_infected: int, num_layers: int
) -> None:
    data = Infection(
        num_nodes=num_nodes,
        edge_probability=min(1.0, mean_degree / num_nodes),
        num_layers=num_layers,
        num_infected=min(num_infected, num_nodes - 1),
        seed=seed,
    )
    infected = data.graph.x[:, 0].nonzero().view(-1).tolist()
    graph = nx.DiGraph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(data.graph.edge_index.t().tolist())

    labels, unique = [], {}
    for node in range(num_nodes):
        paths = shortest_paths(graph, infected, node)
        distance = len(paths[0]) - 1 if paths else num_layers + 1
        labels.append(min(distance, num_layers + 1))
        if 1 <= distance <= num_layers and len(paths) == 1:
            unique[node] = paths[0]

    assert len(infected) == min(num_infected, num_nodes - 1)
    assert data.graph.y.tolist() == labels
    assert data.truth is not None
    assert data.truth.targets.tolist() == list(unique)
    for node, path in unique.items():
        assert data.truth.edges_of(node).t().tolist() == [list(edge) for edge in nx.utils.pairwise(path)]


def test_two_sources_at_the_same_distance_are_not_unique() -> None:
    edge_index = torch.tensor([[0, 1, 2], [2, 2, 3]])
    distance, truth = infection_paths(edge_index, torch.tensor([True, True, False, False]), 3)
    assert distance.tolist() == [0, 0, 1, 2]
    assert truth.num_targets == 0


def test_path_counts_of_deep_searches_do_not_overflow() -> None:
    # 80 layers of two nodes, fully connected: 2^80 paths, which wraps round to 0 in 64 bits.
    left = torch.arange(0, 160, 2)
    tails = torch.stack([left, left, left + 1, left + 1]).view(-1)
    heads = torch.stack([left + 2, left + 3, left + 2, left + 3]).view(-1)
    infected = torch.zeros(162, dtype=torch.bool)
    infected[:2] = True
    distance, truth = infection_paths(torch.stack([tails, heads]), infected, 100)
    assert distance.tolist() == torch.arange(81).repeat_interleave(2).tolist()
    assert truth.num_targets == 0


@pytest.mark.parametrize(("num_layers", "num_targets"), [(2, 1057), (3, 974)])
@pytest.mark.needs("gatt_paper")
def test_authors_graph_gives_their_labels_targets_and_paths(data_root: str, num_layers: int, num_targets: int) -> None:
    data = Infection(num_layers=num_layers, source="authors", root=data_root)
    file = np.load(f"{data_root}/gatt_paper/infection_{num_layers}hop.npz", allow_pickle=False)
    assert np.array_equal(data.graph.x.numpy(), file["x"])
    assert np.array_equal(data.graph.y.numpy(), file["y"])
    assert data.truth is not None
    assert data.truth.num_targets == num_targets
    assert np.array_equal(data.truth.targets.numpy(), file["unique_nodes"])
    for k, target in enumerate(file["unique_nodes"]):
        path = file["path_nodes"][file["path_ptr"][k] : file["path_ptr"][k + 1]]
        assert np.array_equal(data.truth.edges_of(int(target)).numpy(), np.stack([path[:-1], path[1:]]))


def test_erdos_renyi_is_simple_and_uniform() -> None:
    size, probability, draws = 6, 0.3, 3000
    rng = np.random.default_rng(0)
    counts = np.zeros((size, size))
    sizes = []
    for _ in range(draws):
        edge_index = directed_erdos_renyi(size, probability, rng)
        assert edge_index.unique(dim=1).size(1) == edge_index.size(1)
        counts[tuple(edge_index.numpy())] += 1
        sizes.append(edge_index.size(1))
    off_diagonal = counts[~np.eye(size, dtype=bool)]
    assert np.diag(counts).sum() == 0
    # Each of the 30 pairs appears Binomial(draws, p) times; pairs are independent in G(n, p).
    z = (off_diagonal - draws * probability) / np.sqrt(draws * probability * (1 - probability))
    assert stats.kstest(z, "norm").pvalue > 0.001
    assert np.var(sizes) == pytest.approx(30 * probability * (1 - probability), rel=0.1)


def test_erdos_renyi_with_probability_one_is_complete() -> None:
    edge_index = directed_erdos_renyi(5, 1.0, np.random.default_rng(0))
    assert set(map(tuple, edge_index.t().tolist())) == {(i, j) for i in range(5) for j in range(5) if i != j}


def test_defaults_resemble_the_paper() -> None:
    data = Infection()
    assert abs(data.graph.num_edges - 9998) < 5 * 100
    assert data.truth is not None
    assert 800 < data.truth.num_targets < 1300
    assert [int(mask.sum()) for mask in (data.graph.train_mask, data.graph.test_mask)] == [2500, 2500]
    assert Infection(num_layers=2).num_infected == 250
    assert data.num_infected == 100


def test_seed_decides_everything_and_global_state_nothing() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate()
    first = Infection(num_nodes=500, edge_probability=0.004, seed=3).graph
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(2)
    again, other = (Infection(num_nodes=500, edge_probability=0.004, seed=seed).graph for seed in (3, 4))
    for key in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(first[key], again[key])
    assert not torch.equal(first.train_mask, other.train_mask)
    assert not torch.equal(first.x, other.x)
    assert first.edge_index.tolist() != other.edge_index.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": -1}, r"`num_layers` to be an integer in \[1, 1000\], but got -1"),
        ({"num_nodes": 1}, "`num_nodes`"),
        ({"edge_probability": 0.0}, "`edge_probability`"),
        ({"edge_probability": 1.5}, "`edge_probability`"),
        ({"num_nodes": 10, "num_infected": 10}, r"`num_infected` to be an integer in .1, 9"),
        ({"seed": -1}, "`seed`"),
        ({"num_val": 0}, "`num_val`"),
        ({"source": "web"}, "`source` to be `generated` or `authors`"),
        ({"source": "authors", "num_layers": 4}, "`num_layers` to be 2 or 3"),
        ({"source": "authors", "num_nodes": 400}, "5000"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Infection(**arguments)


def test_absent_authors_file_says_what_to_do(tmp_path: object) -> None:
    data = Infection(source="authors", root=str(tmp_path))
    assert (data.num_features, data.num_classes) == (2, 5)
    with pytest.raises(MissingDataError, match=r"gatt_paper.infection_3hop.npz does not exist.*`source: generated`"):
        data.prepare_data()


def test_the_graph_names_its_classes_and_so_does_an_explanation() -> None:
    """An explanation of a run's graph names classes as the page and the terminal do."""
    data = Infection(num_nodes=200, edge_probability=0.01, num_infected=10, num_layers=2)
    assert data.graph.class_names == list(data.class_names)
    explanation = attree.explain(GAT(data.num_features, data.num_classes), data.graph, 3)
    assert explanation.sentence.startswith(tuple(f"The network predicts {name} (" for name in data.class_names))
