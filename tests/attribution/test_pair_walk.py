"""Walks that are found once and walked again: their scores against the definitions, and against walking anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attree.attention import Attention, Graph
from attree.attribution import METHODS, EdgeBlock, FlowMethod, GAtt, Pairs, make_methods, subgraph_pairs
from attree.attribution.flows import Frontier, Walk, walk_back
from attree.attribution.pairs import PairWalk
from attree.errors import ArgumentError
from attree.subject import Roots
from helpers.random_attention import Case, cases
from reference import attribution_by_flows

FLOW_METHODS = ("gatt", "gatt_sim", "gatt_avg")
ATTENTION_METHODS = [name for name, method in METHODS.items() if issubclass(method, FlowMethod)]


def with_new_weights(case: Case, seed: int) -> Case:
    """The same graph, with other attention that uses all edges."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.rand(weight.shape, generator=generator).double() for weight in case.attention.weights]
    return replace(case, attention=Attention.from_weights(case.attention.graph, weights))


def scores_by_definition(case: Case, pairs: Pairs, name: str) -> list[float]:
    by_target = {
        target: attribution_by_flows(case.looped, case.alpha, target, case.used)[name]
        for target in pairs.targets.tolist()
    }
    targets = pairs.targets[pairs.owner].tolist()
    return [by_target[target].get(edge, 0.0) for target, edge in zip(targets, pairs.edges.tolist(), strict=True)]


def pairs_of(case: Case, targets: list[int]) -> Pairs:
    pairs = subgraph_pairs(case.attention.graph, torch.tensor(targets, dtype=torch.int64), case.attention.num_layers)
    assert pairs.walk is not None
    return pairs


def without_walk(pairs: Pairs) -> Pairs:
    """The same pairs, whose walks are too large to be kept."""
    other = replace(pairs)
    other.__dict__["walk"] = None
    return other


def walk_of(pairs: Pairs, memory: int) -> PairWalk | None:
    assert pairs.num_layers is not None
    return PairWalk.of(pairs.graph, pairs.targets, pairs.flow, pairs.edges, pairs.num_layers, memory)


@settings(max_examples=40, deadline=None)
@given(case=cases(partial=True), data=st.data())
def test_scores_are_those_of_the_definitions_however_often_attention_changes(case: Case, data: st.DataObject) -> None:
    """The first attention may lack self-loops in some layers, which no kept walk knows of; the later ones lack none."""
    targets = data.draw(st.lists(st.integers(0, case.num_nodes - 1), unique=True))
    pairs = pairs_of(case, targets)
    for number in range(3):
        now = with_new_weights(case, number) if number else case
        for name, method in make_methods(ATTENTION_METHODS, seed=2).items():
            scores = method.score_pairs(now.attention, pairs)
            anew = method.score_pairs(now.attention, without_walk(pairs))
            torch.testing.assert_close(scores, anew, rtol=1e-12, atol=1e-12)
            if name in FLOW_METHODS:
                assert scores.tolist() == pytest.approx(scores_by_definition(now, pairs, name), abs=1e-9, rel=1e-9)


class CarriesFlow(FlowMethod):
    """Scores all that it is given alike: it is given only edges that carry a flow."""

    name = "carries_flow"

    def score(self, block: EdgeBlock) -> Tensor:
        return torch.ones(block.edges.numel())


@settings(max_examples=25, deadline=None)
@given(cases(partial=True))
def test_only_edges_that_carry_a_flow_are_scored(case: Case) -> None:
    """Which they are depends on the layers' own edges: pairs and walks are made for layers that have all."""
    pairs = pairs_of(case, list(range(case.num_nodes)))
    known = {
        target: attribution_by_flows(case.looped, case.alpha, target, case.used) for target in pairs.targets.tolist()
    }
    expected = [
        float(edge in known[target]["gatt"])
        for target, edge in zip(pairs.targets[pairs.owner].tolist(), pairs.edges.tolist(), strict=True)
    ]
    assert CarriesFlow().score_pairs(case.attention, pairs).tolist() == expected


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_head_is_read_alone_and_single_precision_kept(case: Case) -> None:
    pairs = pairs_of(case, list(range(case.num_nodes)))
    heads = [weight.shape[1] - 1 for weight in case.attention.weights]
    alone = Attention.from_weights(case.attention.graph, [weight[:, -1] for weight in case.attention.weights])
    single = Attention.from_weights(case.attention.graph, [weight.float() for weight in case.attention.weights])
    for name in FLOW_METHODS:
        chosen = METHODS[name].make(heads).score_pairs(case.attention, pairs)
        assert chosen.tolist() == pytest.approx(METHODS[name]().score_pairs(alone, pairs).tolist(), rel=1e-12)
        scores = METHODS[name]().score_pairs(single, pairs)
        assert scores.dtype == torch.float32
        assert scores.tolist() == pytest.approx(METHODS[name]().score_pairs(case.attention, pairs).tolist(), rel=1e-5)


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_no_targets(num_nodes: int) -> None:
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64), num_nodes)
    pairs = subgraph_pairs(graph, torch.zeros(0, dtype=torch.int64), 2)
    assert walk_of(pairs, memory=1) is not None
    for method in make_methods(ATTENTION_METHODS).values():
        attention = Attention.from_weights(graph, [torch.ones(num_nodes)] * 2)
        assert method.score_pairs(attention, pairs).shape == (0,)


def test_walks_that_are_too_large_are_not_kept() -> None:
    """The bound is what the walks take, not more: a chain's three targets pass few of its nodes."""
    chain = Graph(torch.stack([torch.arange(999), torch.arange(1, 1000)]), 1000)
    pairs = subgraph_pairs(chain, torch.tensor([5, 900, 500]), 2)
    assert walk_of(pairs, memory=1) is None
    walk = walk_of(pairs, memory=10_000)
    assert walk is not None
    held = [walk.entry, walk.place, walk.edges, walk.pair, walk.walk.owner, walk.walk.node, *walk.walk.places]
    held += [tensor for step in walk.walk.steps for tensor in (step.entry, step.edges, step.reached)]
    assert sum(tensor.numel() * tensor.element_size() for tensor in held) <= 10_000


def test_pairs_of_another_graph_or_depth_are_refused() -> None:
    graph, other = (Graph(torch.tensor([[0, 1], [1, node]]), 3) for node in (2, 0))
    attention = Attention.from_weights(graph, [torch.ones(5)] * 2)
    for depth in (1, 3):
        with pytest.raises(ArgumentError, match="pairs of a network of 2 layers"):
            GAtt().score_pairs(attention, subgraph_pairs(graph, 2, depth))
    for method in make_methods(ATTENTION_METHODS).values():
        with pytest.raises(ArgumentError, match="pairs of the model's graph"):
            method.score_pairs(attention, subgraph_pairs(other, 2, 2))


def levels_by_matrices(case: Case, start: Roots, weights: list[Tensor]) -> np.ndarray:
    """r_m of every target and node, [L, T, N], first layer first: rows times matrices, from the last layer down."""
    r = np.zeros((start.targets.numel(), case.num_nodes))
    np.add.at(r, (start.owner.numpy(), start.node.numpy()), start.weight.numpy())
    levels = [r]
    for weight in reversed(weights[1:]):
        matrix = np.zeros((case.num_nodes, case.num_nodes))
        for value, (i, j) in zip(weight.tolist(), case.looped, strict=True):
            matrix[j, i] += value
        levels.append(levels[-1] @ matrix)
    return np.stack(levels[::-1])


def dense(frontier: Frontier, values: Tensor, num_nodes: int) -> np.ndarray:
    result = np.zeros((values.shape[0], frontier.targets.numel(), num_nodes))
    result[:, frontier.owner.numpy(), frontier.node.numpy()] = values.numpy()
    return result


@settings(max_examples=40, deadline=None)
@given(case=cases(partial=True), data=st.data())
def test_a_walk_pulled_again_is_a_product_of_matrices_each_time(case: Case, data: st.DataObject) -> None:
    """Also from several nodes a target, as readouts start; every pull is read only after the last one."""
    graph, num_layers = case.attention.graph, case.attention.num_layers
    node = st.integers(0, case.num_nodes - 1)
    chosen = data.draw(st.lists(st.sets(node, min_size=1), max_size=3))
    entries = [(position, member) for position, members in enumerate(chosen) for member in sorted(members)]
    owner, nodes = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).T
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(len(entries), generator=generator, dtype=torch.float64)
    start = Roots(torch.arange(len(chosen)), owner, nodes, share)
    walk = Walk.of(graph, start, num_layers)
    ones = replace(start, weight=torch.ones_like(share))
    used = [torch.tensor(layer).double() for layer in case.used]
    draws = [[torch.rand(graph.num_edges, generator=generator).double() for _ in used] for _ in range(2)]
    pulls = [(weights, counts, walk.pull(weights, counts)) for weights in draws for counts in (used, None)]
    for weights, counts, pulled in pulls:
        expected = levels_by_matrices(case, start, weights)
        np.testing.assert_allclose(dense(pulled, pulled.weight, case.num_nodes), expected, atol=1e-12)
        at_once = walk_back(graph, start, weights, counts)
        torch.testing.assert_close(pulled.weight, at_once.weight, rtol=1e-12, atol=1e-12)
        assert torch.equal(pulled.owner * case.num_nodes + pulled.node, at_once.owner * case.num_nodes + at_once.node)
        if counts is None:
            assert pulled.count is None
        else:
            assert pulled.count is not None
            flows = levels_by_matrices(case, ones, counts)
            np.testing.assert_allclose(dense(pulled, pulled.count, case.num_nodes), flows)
