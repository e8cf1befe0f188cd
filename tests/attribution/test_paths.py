"""The strongest paths against all walks of the computation tree, listed one by one."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv

import attree
from attree.attention import Attention, capture_attention
from attree.attribution import strongest_paths
from attree.errors import ArgumentError
from attree.subject import Subject
from helpers.effect_nets import EDGES, PAIRS, X, made
from helpers.graphs import NODES, randomize


def all_walks(attention: Attention, root: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every walk of full length into a node, with its product of attention, strongest first."""
    alphas = [weight.mean(dim=1).tolist() for weight in attention.weights]
    ends = attention.graph.edge_index.t().tolist()
    entering = {node: [edge for edge, (_, into) in enumerate(ends) if into == node] for node in range(NODES)}
    walks: list[tuple[float, int, tuple[int, ...]]] = [(1.0, root, ())]
    for alpha in reversed(alphas):
        walks = [
            (weight * alpha[edge], ends[edge][0], (*taken, edge))
            for weight, node, taken in walks
            for edge in entering[node]
            if alpha[edge] > 0
        ]
    return sorted(((weight, taken) for weight, _, taken in walks), reverse=True)


@pytest.mark.parametrize(("name", "k"), product(["gat", "gat, 3 layers, heads", "user's"], [1, 4, 1000]))
def test_equal_to_the_best_of_all_walks(name: str, k: int) -> None:
    model, kwargs = made(name)
    subject = Subject.of(model, X, EDGES, **kwargs)
    ends = subject.graph.edge_index
    for target in range(NODES):
        expected = all_walks(subject.attention, target)
        found = strongest_paths(subject, target, k)
        assert len(found) == min(k, len(expected))
        for path, (weight, _) in zip(found, expected, strict=False):
            assert path.weight == pytest.approx(weight, rel=1e-9)
            assert path.weight == pytest.approx(math.prod(path.attention), rel=1e-9)
            assert path.nodes[0] == target
            for step, edge in enumerate(path.edges):
                assert ends[:, edge].tolist() == [path.nodes[step + 1], path.nodes[step]]
        assert len({path.edges for path in found}) == len(found)


def test_pairs_of_nodes_start_at_either_end() -> None:
    model, kwargs = made("links")
    subject = Subject.of(model, X, EDGES, **kwargs)
    both = [weight for end in PAIRS[:, 0].tolist() for weight, _ in all_walks(subject.attention, end)]
    found = strongest_paths(subject, 0, 7)
    assert [path.weight for path in found] == pytest.approx(sorted(both, reverse=True)[:7])
    assert {path.nodes[0] for path in strongest_paths(subject, 0, 100)} == set(PAIRS[:, 0].tolist())


class Branches(nn.Module):
    """A layer of two convolutions on the same input whose outputs are added, then one more layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = GATConv(5, 4), GATv2Conv(5, 4), GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.one(x, edge_index) + self.two(x, edge_index), edge_index)


def test_branches_are_walked_as_they_feed_one_another() -> None:
    subject = Subject.of(randomize(Branches(), 1).double().eval(), X, EDGES)
    captured = capture_attention(subject.model, X, EDGES)
    dense = [torch.zeros(NODES, NODES, dtype=torch.float64) for _ in captured.weights]
    for matrix, weight in zip(dense, captured.weights, strict=True):
        source, destination = captured.graph.edge_index
        matrix.index_put_((destination, source), weight.mean(dim=1), accumulate=True)
    first = sum(dense[:-1], torch.zeros_like(dense[0]))  # one layer of two calls, or a layer each
    for target in range(NODES):
        reached = torch.zeros(NODES, dtype=torch.float64)
        found = strongest_paths(subject, target, 10_000)
        for path in found:
            assert len(path.edges) == 2
            reached[path.nodes[-1]] += path.weight
        assert torch.allclose(reached, (dense[-1] @ first)[target], atol=1e-12)
        assert [abs(path.weight) for path in found] == sorted((path.weight for path in found), reverse=True)


def test_graphs_start_where_they_are_read() -> None:
    model, kwargs = made("graph")
    found = strongest_paths(Subject.of(model, X, EDGES, **kwargs), 0, 1)[0]
    # The isolated node keeps all of its attention to itself, and the mean reads a share of it.
    assert found.weight == pytest.approx(1 / NODES)


def test_a_result_says_what_each_edge_of_a_path_does() -> None:
    model, _ = made("gat")
    result = attree.evaluate(model, Data(x=X, edge_index=EDGES), [3, 0], ["gatt"], ["removal", "weight"])
    effects = attree.Occlusion().attribute(Subject.of(model, X, EDGES)).dense(3)
    paths = result.paths(3, k=3)
    assert [path.edges for path in paths] == [path.edges for path in strongest_paths(result.attention, 3, 3)]
    for path in paths:
        assert set(path.effects) == {"removal", "weight"}
        assert path.effects["removal"] == pytest.approx(effects[list(path.edges)].tolist(), abs=1e-9)
        assert str(path).startswith(f"3 <- {path.nodes[1]} <- {path.nodes[2]} (")


@pytest.mark.parametrize(("target", "k"), [(NODES, 5), (-1, 5), (0, 0), ("a", 5), (0, 1.5)])
def test_bad_input_is_refused(target: Any, k: Any) -> None:
    model, _ = made("gat")
    with pytest.raises(ArgumentError):
        strongest_paths(Subject.of(model, X, EDGES), target, k)


def test_results_from_files_have_no_attention(tmp_path: Any) -> None:
    model, _ = made("gat")
    result = attree.evaluate(model, Data(x=X, edge_index=EDGES), [3], ["gatt"], [])
    result.save(tmp_path)
    with pytest.raises(ArgumentError, match="attention"):
        type(result).load(tmp_path).paths(3)
    with pytest.raises(ArgumentError, match="`target`"):
        result.paths(5)


def test_signs_do_not_hide_strong_walks() -> None:
    """Weights that reach messages may be negative where a layer multiplies them by edge weights."""
    graph = attree.attention.Graph(torch.tensor([[1, 2], [0, 0]]), num_nodes=3)
    weights = [torch.tensor([-0.9, 0.3, 0.1, 1.0, 1.0])]
    paths = strongest_paths(Attention.from_weights(graph, weights), 0, k=2)
    assert [path.weight for path in paths] == pytest.approx([-0.9, 0.3])
