"""The self-looped edge list against PyG's, its rows, and the map to the edges given."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import add_self_loops, remove_self_loops

from attree.attention import Graph
from attree.tensors.arrays import expand, group, row_of


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Tensor, int]:
    num_nodes = draw(st.integers(0, 8))
    node = st.integers(0, max(num_nodes - 1, 0))
    edges = draw(st.lists(st.tuples(node, node), max_size=20 if num_nodes else 0))
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous(), num_nodes


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_is_the_edge_list_of_pygs_attention_convolutions(case: tuple[Tensor, int]) -> None:
    edge_index, num_nodes = case
    graph = Graph(edge_index, num_nodes)
    expected, _ = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=num_nodes)
    assert torch.equal(graph.edge_index, expected)
    assert torch.equal(graph.edge_index[:, graph.position], edge_index)
    assert torch.equal(graph.to_original(graph.edge_index), edge_index)
    proper = edge_index[0] != edge_index[1]
    assert graph.position[proper].unique().numel() == int(proper.sum()) == graph.num_proper_edges


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_rows_list_the_edges_of_their_nodes(case: tuple[Tensor, int], data: st.DataObject) -> None:
    graph = Graph(*case)
    nodes = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=10)) if graph.num_nodes else []
    for rows, end in ((graph.entering, graph.destination), (group(graph.source, graph.num_nodes), graph.source)):
        owner, place = expand(rows.ptr, torch.tensor(nodes, dtype=torch.int64))
        listed = list(zip(owner.tolist(), rows.items[place].tolist(), strict=True))
        assert listed == [
            (number, edge) for number, node in enumerate(nodes) for edge in (end == node).nonzero().view(-1).tolist()
        ]
    assert torch.equal(graph.entering_source, graph.source[graph.entering.items])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12))
def test_row_of_is_repeat_interleave(sizes: list[int]) -> None:
    tensor = torch.tensor(sizes, dtype=torch.int64)
    assert torch.equal(row_of(tensor), torch.repeat_interleave(tensor))


def test_matches_only_its_own_edges() -> None:
    edge_index = torch.tensor([[0, 1], [1, 0]])
    graph = Graph(edge_index, 2)
    assert graph.matches(edge_index.clone(), 2)
    assert not graph.matches(edge_index.flip(0), 2)
    assert not graph.matches(edge_index, 3)


def test_pygs_edge_index_becomes_a_plain_tensor() -> None:
    edge_index = EdgeIndex([[0, 1, 1], [1, 1, 0]], sparse_size=(3, 3), sort_order="row")
    graph = Graph(edge_index, 3)
    for tensor in (graph.edge_index, graph.original_edge_index, graph.position, graph.entering.items):
        assert type(tensor) is Tensor
    assert graph.matches(edge_index, 3)
    assert graph.matches(edge_index.as_tensor(), 3)
    assert torch.equal(graph.edge_index, Graph(edge_index.as_tensor(), 3).edge_index)
