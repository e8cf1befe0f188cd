"""Parts of graphs: what is cut, copied and found in them, against PyG's subgraphs and plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.utils import k_hop_subgraph

from attree.attention import Graph
from attree.attribution.subgraphs import neighbourhoods
from attree.models import GAT
from attree.subject import Part, Subject
from helpers.graphs import NODES, messy_graph, randomize

EDGES = messy_graph(0)
X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0))
EVERY = torch.arange(NODES)


def subject() -> Subject:
    return Subject.of(randomize(GAT(5, 3, 4, num_layers=2), 1).eval(), X, EDGES)


def one_part(induced: bool = False) -> Part:
    ((begin, end, part),) = neighbourhoods(subject(), EVERY, 1.0, 2**30, induced=induced)
    assert (begin, end, part.count) == (0, NODES, NODES)
    return part


def nodes_and_edges(part: Part, copy: int) -> tuple[list[int], list[int]]:
    assert part.graph is not None
    assert part.edge is not None
    return sorted(part.node[part.graph == copy].tolist()), sorted(part.edge[part.edge_graph == copy].tolist())


@pytest.mark.parametrize("induced", [False, True])
def test_each_target_has_the_edges_that_it_depends_on(induced: bool) -> None:
    part = one_part(induced)
    assert part.target is not None
    assert torch.equal(part.node[part.target], EVERY)
    assert torch.equal(part.node[part.edge_index], EDGES[:, part.edge])
    for target in range(NODES):
        nodes, _, _, inside = k_hop_subgraph(target, 2, EDGES, num_nodes=NODES)
        near = k_hop_subgraph(target, 1, EDGES, num_nodes=NODES)[0]
        edges = inside if induced else torch.isin(EDGES[1], near)
        assert nodes_and_edges(part, target) == (nodes.sort().values.tolist(), edges.nonzero().view(-1).tolist())


def test_little_memory_gives_the_same_graphs_one_by_one() -> None:
    whole, bounds = one_part(), []
    for begin, end, part in neighbourhoods(subject(), EVERY, 100.0, 1.0):
        bounds.append((begin, end))
        assert nodes_and_edges(part, 0) == nodes_and_edges(whole, begin)
    assert bounds == [(node, node + 1) for node in range(NODES)]


def test_graphs_are_taken_in_any_order_and_as_often_as_asked() -> None:
    explained, part = subject(), one_part()
    which = torch.tensor([4, 0, 4, NODES - 1])
    taken = part.take(which)
    assert [nodes_and_edges(taken, copy) for copy in range(4)] == [nodes_and_edges(part, one) for one in which.tolist()]
    rows, count = explained.call.target_rows(taken)
    with torch.no_grad():
        output = explained.call.on(taken).run()
    assert output.shape[0] == count
    torch.testing.assert_close(output[rows], explained.output[which])


def test_nodes_are_found_in_their_graph_alone() -> None:
    part = one_part()
    assert part.graph is not None
    for copy in (0, NODES - 1):
        found = part.find(torch.full_like(EVERY, copy), EVERY)
        own = set(part.node[part.graph == copy].tolist())
        assert [place >= 0 for place in found.tolist()] == [node in own for node in range(NODES)]
        assert torch.equal(part.node[found[found >= 0]], EVERY[found >= 0])
        assert bool((part.graph[found[found >= 0]] == copy).all())


def test_looped_ids_are_those_of_the_graph_that_the_model_sees() -> None:
    explained, part = subject(), one_part()
    whole, own = explained.graph, explained.call.on(part).graph

    def ends(copy: int, edge: int) -> list[tuple[int, int]]:
        found = part.looped_ids(whole, own, torch.tensor([copy]), torch.tensor([edge]))
        pairs: Tensor = part.node[own.edge_index[:, found]]
        return [(int(i), int(j)) for i, j in pairs.T]

    for edge in range(whole.num_edges):
        pair = (int(whole.source[edge]), int(whole.destination[edge]))
        nodes, edges = nodes_and_edges(part, 2)
        has = pair[0] in nodes if pair[0] == pair[1] else edge in whole.position[edges].tolist()
        assert set(ends(2, edge)) == ({pair} if has else set())


def test_an_empty_graph_has_parts() -> None:
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64), 3)
    part = Part.entering(graph, 2, torch.tensor([0, 1]), torch.tensor([2, 0]))
    assert part.node.tolist() == [2, 0]
    assert part.edge_index.shape == (2, 0)
    assert part.find(torch.tensor([0, 1]), torch.tensor([0, 0])).tolist() == [-1, 1]
