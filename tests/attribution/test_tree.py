"""The explicit computation tree against recursive enumeration, and its size limit."""

from __future__ import annotations

import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings

from attree.attention import Attention, Graph
from attree.attribution import ComputationTree
from helpers.random_attention import Case, cases
from reference import attribution_by_flows, flows_to


@settings(max_examples=40, deadline=None)
@given(cases(partial=True))
def test_holds_exactly_the_flows(case: Case) -> None:
    for target in range(case.num_nodes):
        tree = ComputationTree(case.attention, target)
        expected = list(flows_to(case.looped, case.attention.num_layers, target, case.used))
        assert len(tree) == 1 + len(expected)
        assert sorted((flow.edges, flow.attention) for flow in tree.flows()) == sorted(
            (tuple(edge for _, edge in flow), tuple(case.alpha[layer][edge] for layer, edge in flow))
            for flow in expected
        )
        scores = attribution_by_flows(case.looped, case.alpha, target, case.used)
        assert tree.gatt() == pytest.approx(scores["gatt"])
        assert tree.gatt_sim() == pytest.approx(scores["gatt_sim"])
        assert tree.gatt_avg() == pytest.approx(scores["gatt_avg"])


def chain() -> Attention:
    """0 -> 1 -> 2 with two layers."""
    graph = Graph(torch.tensor([[0, 1], [1, 2]]), 3)
    return Attention.from_weights(graph, [torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), torch.arange(5) / 10])


def test_levels_read_from_the_root_down() -> None:
    tree = ComputationTree(chain(), 2)
    assert [[occurrence.node for occurrence in level] for level in tree.levels()] == [[2], [1, 2], [0, 1, 1, 2]]
    assert [occurrence.layer for occurrence in tree.nodes] == [3, 2, 2, 1, 1, 1, 1]
    assert tree.nodes[3].attention == pytest.approx(0.1)


def test_drawing_is_a_tree_towards_the_root() -> None:
    drawn = ComputationTree(chain(), 2).to_networkx()
    assert nx.is_arborescence(drawn.reverse())
    assert [node for node in drawn if drawn.out_degree(node) == 0] == [0]
    assert drawn.nodes[0] == {"node": 2, "depth": 0}
    assert {data["layer"] for _, _, data in drawn.edges(data=True)} == {1, 2}


def test_refuses_a_tree_above_the_limit_before_building_it() -> None:
    graph = Graph(torch.combinations(torch.arange(60), 2).T.contiguous(), 60)
    attention = Attention.from_weights(graph, [torch.ones(graph.num_edges)] * 8)
    with pytest.raises(ValueError, match=r"at most `max_nodes` = 1000 nodes, but got \d{9,}"):
        ComputationTree(attention, 59, max_nodes=1000)
    with pytest.raises(ValueError, match="`target` to be an integer in"):
        ComputationTree(attention, 60)


@settings(max_examples=25, deadline=None)
@given(cases(partial=True))
def test_a_pruned_tree_keeps_what_most_attention_passes(case: Case) -> None:
    whole = ComputationTree(case.attention, 0)
    products = sorted((math.prod(flow.attention) for flow in whole.flows()), reverse=True)
    for size in range(1, len(whole) + 1):
        tree = ComputationTree(case.attention, 0, max_nodes=size, prune=True)
        assert (len(tree), tree.size) == (size, len(whole))
        kept = sorted((math.prod(flow.attention) for flow in tree.flows()), reverse=True)
        assert kept == pytest.approx(products[: size - 1])
        assert [node.depth for node in tree.nodes] == sorted(node.depth for node in tree.nodes)
        assert all(tree.nodes[node.parent].depth == node.depth - 1 for node in tree.nodes[1:])
    if len(whole) > 1:
        with pytest.raises(ValueError, match="whole"):
            ComputationTree(case.attention, 0, max_nodes=1, prune=True).gatt()
