"""A graph in a folder of `.npy` files: what is read, how neighbourhoods are cut out, and which folders are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.utils import k_hop_subgraph

from attree.data import OnDiskGraph, TorchNeighborSampler, write_graph
from attree.data.on_disk import Room, TooLargeError, cut_out

ROOM = Room(1e9, 1, 1)


def random_graph(seed: int = 0, nodes: int = 30, edges: int = 90) -> Data:
    """A graph with self-loops, parallel edges and nodes without edges."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes - 3, (2, edges), generator=generator)
    return Data(
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=edge_index,
        y=torch.randint(3, (nodes,), generator=generator),
        edge_attr=torch.randn(edges, 2, generator=generator),
        train_mask=torch.rand(nodes, generator=generator) < 0.5,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_graph(random_graph(), tmp_path / "graph", name="Random")
    return tmp_path / "graph"


def test_edges_that_enter_nodes_keep_their_order(folder: Path) -> None:
    data, graph = random_graph(), OnDiskGraph(folder)
    nodes = [0, 5, 6, 29]
    edges, places = graph.in_edges(nodes)
    expected = torch.cat([(data.edge_index[1] == node).nonzero().view(-1) for node in nodes])
    assert torch.equal(edges, data.edge_index[:, expected])
    assert torch.equal(graph.rows("edge_attr", places), data.edge_attr[expected])
    assert torch.equal(graph.features(nodes), data.x[nodes])
    assert torch.equal(graph.mask("train_mask"), data.train_mask.nonzero().view(-1))
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.name) == (30, 90, 4, "Random")


def test_the_whole_graph_in_memory_is_the_written_one(folder: Path) -> None:
    data, whole = random_graph(), OnDiskGraph(folder).to_data()
    order = data.edge_index[1].argsort(stable=True)
    assert torch.equal(whole.edge_index, data.edge_index[:, order])
    assert torch.equal(whole.edge_attr, data.edge_attr[order])
    assert torch.equal(whole.y, data.y)


def test_half_precision_is_read_in_the_type_of_the_model(tmp_path: Path) -> None:
    graph = write_graph(random_graph(), tmp_path / "half", half=True)
    assert graph.array("x").dtype == np.float16
    assert torch.equal(graph.features([3, 4]), random_graph().x[3:5].half().float())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    edges=st.integers(0, 60),
    targets=st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True),
    hops=st.integers(1, 3),
    closed=st.booleans(),
)
def test_neighbourhood_is_pygs_subgraph(
    tmp_path_factory: pytest.TempPathFactory, seed: int, edges: int, targets: list[int], hops: int, closed: bool
) -> None:
    data = random_graph(seed, 12, edges)
    graph = write_graph(data, tmp_path_factory.mktemp("cut"))
    whole = graph.to_data().edge_index
    cut = cut_out(graph, np.sort(targets), hops, closed=closed, room=ROOM)
    nodes, _, _, is_induced = k_hop_subgraph(targets, hops, whole, num_nodes=12)
    inner = k_hop_subgraph(targets, hops - 1, whole, num_nodes=12)[0] if hops > 1 else torch.tensor(targets)
    expected = is_induced if closed else torch.isin(whole[1], inner)
    assert cut.nodes.tolist() == sorted(nodes.tolist())
    assert cut.edges.tolist() == expected.nonzero().view(-1).tolist()
    assert np.array_equal(cut.nodes[cut.edge_index], whole[:, cut.edges].numpy())


def test_a_hub_that_does_not_fit_is_named_before_its_edges_are_read(tmp_path: Path) -> None:
    hub = torch.stack([torch.arange(1, 1001), torch.zeros(1000, dtype=torch.int64)])
    graph = write_graph(Data(x=torch.ones(1001, 2), edge_index=hub), tmp_path / "hub")
    read = []
    graph.edges_into = lambda nodes: read.append(nodes)  # type: ignore[method-assign,assignment,func-returns-value]
    with pytest.raises(TooLargeError, match=r"node 0 to fit .* 1,000 edges within 1 hop,.*raise `memory`"):
        cut_out(graph, np.array([0]), 2, closed=True, room=Room(999, 0, 1))
    assert read == []


def test_pygs_stores_feed_pygs_loaders(folder: Path) -> None:
    data, graph = random_graph(), OnDiskGraph(folder)
    whole = graph.to_data()
    sampler = TorchNeighborSampler(whole.edge_index, 30, [-1, -1])
    loader = NodeLoader(graph.stores(), sampler, input_nodes=torch.tensor([7, 2]), batch_size=2)
    for batch, same in zip(
        loader, NodeLoader(whole, sampler, input_nodes=torch.tensor([7, 2]), batch_size=2), strict=True
    ):
        assert torch.equal(batch.x, same.x)
        assert torch.equal(batch.y, same.y)
        assert torch.equal(batch.edge_index, same.edge_index)
    edges = graph.stores()[1]
    sources, pointers = edges.get_edge_index(edge_type=None, layout="csc")
    assert torch.equal(sources, whole.edge_index[0])
    assert torch.equal(pointers.diff(), data.edge_index[1].bincount(minlength=30))
    assert torch.equal(graph.stores()[0].get_tensor(None, "x", index=torch.tensor([5, 1, 5])), data.x[[5, 1, 5]])


def test_other_processes_open_the_folder_again(folder: Path) -> None:
    graph = pickle.loads(pickle.dumps(OnDiskGraph(folder, memory=1e6)))
    assert graph.memory == 1e6
    assert torch.equal(graph.features([1]), random_graph().x[1:2])


def truncate(folder: Path) -> None:
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-3])


def swap(folder: Path) -> None:
    np.save(folder / "x.npy", np.zeros((30, 4), dtype=np.float32))


def pickled(folder: Path) -> None:
    np.save(folder / "y.npy", np.array([{}] * 30, dtype=object), allow_pickle=True)


def remove(folder: Path) -> None:
    (folder / "indices.npy").unlink()


def newer(folder: Path) -> None:
    content = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps(content | {"format": "attree-graph-9"}))


def undescribed(folder: Path) -> None:
    (folder / "graph.json").unlink()


def no_json(folder: Path) -> None:
    (folder / "graph.json").write_text("[1, 2")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, r"x\.npy to be a whole \.npy file, but it is not \(.* bytes where its header says"),
        (swap, r"x\.npy to be the file that graph\.json describes"),
        (pickled, r"y\.npy to be a whole \.npy file, but it is not \(.*numbers\)"),
        (remove, r"indices\.npy to be a whole \.npy file, but it is not"),
        (newer, r"graph\.json to have the format attree-graph-1, but it has 'attree-graph-9'"),
        (undescribed, r"to hold a graph that `attree convert` wrote, but it has no graph\.json\."),
        (no_json, r"graph\.json to describe a graph, but it does not"),
    ],
)
def test_damaged_and_foreign_files_are_refused_by_name(folder: Path, damage: object, words: str) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(FileNotFoundError, match=words):
        OnDiskGraph(folder)


def test_wrong_edges_are_seen_by_a_full_check(folder: Path) -> None:
    graph = OnDiskGraph(folder)
    graph.check()
    indices = np.array(graph.array("indices"))
    indices[7] = 30
    graph._files["indices"].array = indices
    graph._files["indices"].pieces = lambda rows: iter([indices])  # type: ignore[method-assign]
    with pytest.raises(FileNotFoundError, match=r"indices\.npy to hold nodes in \[0, 30\)"):
        graph.check()


def test_bad_arguments_are_named(folder: Path) -> None:
    graph = OnDiskGraph(folder)
    with pytest.raises(ValueError, match=r"`nodes` to be ids in \[0, 30\)"):
        graph.features([30])
    with pytest.raises(ValueError, match="`nodes` to be ascending"):
        graph.features([3, 1])
    with pytest.raises(ValueError, match="an attribute of the graph: edge_attr, train_mask, x, y"):
        graph.rows("z", [1])
    with pytest.raises(ValueError, match="`memory` to be a number of bytes"):
        OnDiskGraph(folder, memory=0)
    with pytest.raises(ValueError, match="new or an empty folder"):
        write_graph(random_graph(), folder)
