"""Heterogeneous datasets: what the files must be, and the labels and truth of the synthetic one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import attree
from attree.data import ACM, DBLP, HeteroDataModule, HeteroInfection
from attree.data.checks import check_hetero_graph
from attree.data.node_data import offsets
from attree.errors import ArgumentError, MissingDataError
from attree.models import HeteroGAT

SMALL = {"num_people": 60, "num_mosquitoes": 40, "num_flies": 50, "num_val": 10}


@pytest.mark.needs("hetero")
@pytest.mark.parametrize("make", [ACM, DBLP])
def test_the_real_graphs_have_the_published_sizes(make: type[HeteroDataModule], data_root: str) -> None:
    data = make(root=data_root)
    data.setup("fit")
    graph, nodes = data.graph, data.graph[data.node_type]
    assert graph.node_types == list(data.num_features)
    assert graph.edge_types == data.edge_types == data.num_features.edge_types
    assert int(nodes.train_mask.sum()) == 60 * data.num_classes
    assert [int(nodes[mask].sum()) for mask in ("val_mask", "test_mask")] == [1000, 1000]
    masks = nodes.train_mask.long() + nodes.val_mask.long() + nodes.test_mask.long()
    assert int(masks.max()) == 1
    for kind in graph.node_types:
        x = graph[kind].x
        assert float(x[x != 0].mean()) == pytest.approx(1, abs=1e-4)  # whatever units the file has
    for relation in graph.edge_types:
        back = graph[relation[2], f"to_{relation[0]}", relation[0]].edge_index.flip(0)
        assert torch.equal(graph[relation].edge_index, back)
    assert len(graph.class_names) == data.num_classes == int(nodes.y.max()) + 1


def acm_arrays() -> dict[str, np.ndarray]:
    """A file with the sizes of ACM's and hardly anything in it."""
    papers, words = ACM.counts.nodes["paper"], ACM.counts.features["paper"]
    pairs = np.arange(13407)
    return {
        "y": np.arange(papers) % 3,
        "num_nodes": np.array(list(ACM.counts.nodes.values())),
        "paper_author": np.stack([pairs % papers, pairs % 7167]),
        "paper_subject": np.stack([np.arange(papers), np.arange(papers) % 60]),
        "paper_x_indptr": np.minimum(np.arange(papers + 1), 5),
        "paper_x_indices": np.arange(5),
        "paper_x_values": np.full(5, 0.125, dtype=np.float32),
        "paper_x_shape": np.array([papers, words]),
        "train": np.arange(9),
        "val": np.arange(9, 12),
        "test": np.arange(12, 20),
    }


def store(tmp_path: Path, arrays: dict[str, np.ndarray]) -> ACM:
    (tmp_path / "hetero").mkdir(exist_ok=True)
    np.savez(tmp_path / "hetero" / "acm.npz", **arrays)
    return ACM(root=str(tmp_path))


def test_features_and_masks_are_those_of_the_file(tmp_path: Path) -> None:
    graph = store(tmp_path, acm_arrays()).graph
    assert graph["paper"].x[:5].nonzero().tolist() == [[row, row] for row in range(5)]
    assert float(graph["paper"].x.sum()) == pytest.approx(5)
    assert torch.equal(graph["subject"].x, torch.eye(60))
    assert graph["author"].x.shape == (7167, 1)
    assert graph["paper"].train_mask.nonzero().view(-1).tolist() == list(range(9))


def _longer(array: np.ndarray) -> np.ndarray:
    return array + 10**6


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("paper_author", _longer, "paper_author"),
        ("paper_author", lambda array: array.T, "paper_author"),
        ("train", lambda array: -1 - array, "train"),
        ("paper_x_indptr", lambda array: array[::-1], "paper_x_indptr"),
        ("paper_x_indices", _longer, "paper_x_indices"),
        ("paper_x_values", lambda array: array[:-1], "paper_x_values"),
        ("paper_x_shape", lambda array: array * 1000, "paper_x_shape"),
        ("num_nodes", lambda array: array + 1, "num_nodes"),
        ("y", lambda array: array[:-1], "y"),
        ("y", lambda array: array + 1, "y"),
    ],
)
def test_a_damaged_file_is_refused_by_the_name_of_its_array(
    name: str, change: Callable[[np.ndarray], np.ndarray], said: str, tmp_path: Path
) -> None:
    arrays = acm_arrays()
    arrays[name] = change(arrays[name])
    with pytest.raises((MissingDataError, ArgumentError), match=said):
        _ = store(tmp_path, arrays).graph


def test_an_absent_file_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="attree does not download DBLP") as error:
        DBLP(root=str(tmp_path)).setup("fit")
    assert str(tmp_path / "hetero" / "dblp.npz") in str(error.value)
    assert "paper_conference" in str(error.value)


@pytest.mark.parametrize("seed", range(3))
def test_hetero_infection_is_what_its_definition_says(seed: int) -> None:
    """Labels and ways, person by person, from lists of who fed on whom and who bit whom."""
    data = HeteroInfection(**SMALL, meals=2.5, seed=seed)
    graph, truth = data.graph, data.truth
    assert truth is not None
    infected = graph["person"].x[:, 0].bool().tolist()
    feeds = graph["person", "feeds", "mosquito"].edge_index.T.tolist()
    bites = graph["mosquito", "bites", "person"].edge_index.T.tolist()
    begin = offsets(graph)["mosquito"]
    expected = {}
    for person in range(SMALL["num_people"]):
        carriers = [carrier for carrier, bitten in bites if bitten == person]
        ways = [(donor, carrier) for donor, fed in feeds for carrier in carriers if fed == carrier and infected[donor]]
        label = 0 if infected[person] else 1 if ways else 2
        assert int(graph["person"].y[person]) == label
        if label == 1 and len(ways) == 1:
            donor, carrier = ways[0]
            expected[person] = [[donor, begin + carrier], [begin + carrier, person]]
    assert truth.targets.tolist() == list(expected)
    assert len(expected) > 2
    for person, way in expected.items():
        assert truth.edges_of(person).T.tolist() == way


def test_flies_live_as_mosquitoes_do_and_seeds_draw_other_graphs() -> None:
    first, again, other = (HeteroInfection(**SMALL, seed=seed).graph for seed in (0, 0, 1))
    for relation in first.edge_types:
        assert torch.equal(first[relation].edge_index, again[relation].edge_index)
        assert not torch.equal(first[relation].edge_index, other[relation].edge_index)
    large = HeteroInfection(num_people=500, num_mosquitoes=400, num_flies=400, meals=5.0).graph
    sizes = [large[relation].edge_index.size(1) for relation in large.edge_types]
    assert max(sizes) < 1.2 * min(sizes)  # four draws of one binomial distribution, 2,000 edges on average


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_people": 1}, "num_people"),
        ({"meals": 0}, "meals"),
        ({"infected": 1.0}, "infected"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_of_hetero_infection(arguments: dict, said: str) -> None:
    with pytest.raises(ArgumentError, match=f"`{said}`"):
        HeteroInfection(**arguments)


def small_graph() -> HeteroData:
    graph = HeteroData()
    graph["a"].x, graph["b"].x = torch.rand(3, 2), torch.rand(2, 1)
    graph["a"].y = torch.tensor([0, 1, 0])
    graph["a", "to", "b"].edge_index = torch.tensor([[0, 2], [1, 0]])
    return graph


def test_a_graph_of_several_types_is_checked_type_by_type() -> None:
    check_hetero_graph(small_graph(), "a")
    graph = small_graph()
    graph["a", "to", "b"].edge_index = torch.tensor([[0, 2], [1, 2]])  # node 2 is one of a, and none of b
    with pytest.raises(ArgumentError, match=r"destinations in \[0, 2\)"):
        check_hetero_graph(graph, "a")
    graph = small_graph()
    graph["b"].x[0] = torch.nan
    with pytest.raises(ArgumentError, match=r"'b'\].x"):
        check_hetero_graph(graph, "a")
    with pytest.raises(ArgumentError, match="node_type"):
        check_hetero_graph(small_graph(), "c")
    with pytest.raises(ArgumentError, match=r"'b'\].y"):
        check_hetero_graph(small_graph(), "b")


def test_offsets_are_the_sizes_before() -> None:
    sizes = list(offsets(small_graph()).values())
    assert sizes == [0, 3]
    assert all(first < second for first, second in pairwise(sizes))


def test_the_graph_names_its_classes() -> None:
    data = HeteroInfection(**SMALL)
    assert data.graph.class_names == list(data.class_names)
    net = HeteroGAT(data.num_features, data.num_classes)
    explanation = attree.explain(net, data.graph, 3)
    assert explanation.sentence.startswith(tuple(f"The network predicts {name} (" for name in data.class_names))
