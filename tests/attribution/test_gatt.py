"""GAtt and its ablations against their definitions, on random graphs and on the paper's own."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings

from attree.attention import Attention, Graph
from attree.attribution import METHODS, Attribution, FlowMethod, GAtt, GAttAvg, GAttSim, Random, make_methods
from helpers.random_attention import Case, cases
from reference import attribution_by_flows, gatt_by_matrices

NAMES = ("gatt", "gatt_sim", "gatt_avg")

ATTENTION_METHODS = [name for name, method in METHODS.items() if issubclass(method, FlowMethod)]


def as_dicts(result: Attribution) -> dict[int, dict[int, float]]:
    return {target: dict(zip(edges.tolist(), scores.tolist(), strict=True)) for target, edges, scores in result}


def assert_equals_definition(case: Case) -> None:
    results = {name: as_dicts(method.attribute(case.attention)) for name, method in make_methods(NAMES).items()}
    for target in range(case.num_nodes):
        expected = attribution_by_flows(case.looped, case.alpha, target, case.used)
        for name in NAMES:
            assert results[name][target] == pytest.approx(expected[name], abs=1e-9, rel=1e-9), name


@settings(max_examples=60, deadline=None)
@given(cases())
def test_equal_the_sum_over_flows(case: Case) -> None:
    assert_equals_definition(case)


@settings(max_examples=60, deadline=None)
@given(cases(partial=True))
def test_layers_without_self_loops_have_no_flows_through_them(case: Case) -> None:
    assert_equals_definition(case)


@settings(max_examples=60, deadline=None)
@given(cases(partial=True))
def test_equals_the_matrix_form(case: Case) -> None:
    result = GAtt().attribute(case.attention)
    dense = torch.stack([result.dense(target) for target in range(case.num_nodes)])
    np.testing.assert_allclose(dense.numpy(), gatt_by_matrices(case.looped, case.num_nodes, case.alpha), atol=1e-9)


@pytest.mark.parametrize("memory", [2_000, 20_000])
def test_streamed_parts_fit_into_the_memory(memory: int) -> None:
    generator = torch.Generator().manual_seed(1)
    graph = Graph(torch.randint(0, 60, (2, 900), generator=generator), 60)
    attention = Attention.from_weights(graph, [torch.rand(graph.num_edges, generator=generator) for _ in range(2)])
    parts = list(GAtt().stream(attention, memory=memory))
    sizes = [part.edges.nbytes + part.scores.nbytes for part in parts]
    assert torch.cat([part.targets for part in parts]).tolist() == list(range(60))
    assert sum(sizes) > 2 * memory  # not all fits at once
    assert len(parts) > 2
    assert all(size <= memory for part, size in zip(parts, sizes, strict=True) if len(part) > 1)
    assert memory == 2_000 or any(len(part) > 1 for part in parts)


def test_draws_of_random_differ_and_are_uniform() -> None:
    graph = Graph(torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(1)), 60)
    attention = Attention.from_weights(graph, [torch.ones(graph.num_edges, dtype=torch.float64)] * 2)
    draws = [draw.attribute(attention).scores.numpy() for draw in Random(seed=3).draws(3)]
    for first, second in itertools.combinations(draws, 2):
        # Independent: a correlation of n pairs has the standard deviation 1/sqrt(n); 5 of them are one in two million.
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(first.size)
    for draw in draws:
        assert scipy.stats.kstest(draw, "uniform").pvalue > 1e-6
    assert (Random(seed=3).attribute(attention).scores.numpy() == draws[0]).all()
    other = Random(seed=4).attribute(attention).scores.numpy()
    assert not (other == draws[0]).any()


@pytest.mark.parametrize("name", ATTENTION_METHODS)
@settings(max_examples=40, deadline=None)
@given(case=cases(partial=True))
def test_targets_and_memory_budget_do_not_change_scores(name: str, case: Case) -> None:
    (method,) = make_methods([name]).values()
    together = method.attribute(case.attention)
    tight = method.attribute(case.attention, memory=1)
    streamed = list(method.stream(case.attention, memory=1))
    assert [len(part) for part in streamed] == [1] * case.num_nodes
    alone = [method.attribute(case.attention, target) for target in range(case.num_nodes)]
    for other in (tight, Attribution.concat(streamed), Attribution.concat(alone)):
        assert torch.equal(other.targets, together.targets)
        assert torch.equal(other.ptr, together.ptr)
        assert torch.equal(other.edges, together.edges)
        assert torch.equal(other.scores, together.scores)


@settings(max_examples=25, deadline=None)
@given(cases())
def test_a_head_is_read_alone(case: Case) -> None:
    heads = [weight.shape[1] - 1 for weight in case.attention.weights]
    alone = Attention.from_weights(case.attention.graph, [weight[:, -1] for weight in case.attention.weights])
    for method in (GAtt, GAttSim, GAttAvg):
        assert as_dicts(method(heads).attribute(case.attention)) == as_dicts(method().attribute(alone))


def test_many_blocks_equal_the_matrix_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and chunks, with one node whose row alone exceeds a block."""
    monkeypatch.setattr("attree.attribution.gatt.CPU_BLOCK", 50)
    generator = torch.Generator().manual_seed(0)
    num_nodes = 60
    hub = torch.stack([torch.randint(num_nodes, (80,), generator=generator), torch.zeros(80).long()])
    rest = torch.randint(num_nodes, (2, 200), generator=generator)
    graph = Graph(torch.cat([hub, rest], dim=1), num_nodes)
    alphas = [torch.rand(graph.num_edges, generator=generator, dtype=torch.float64) for _ in range(3)]
    result = GAtt().attribute(Attention.from_weights(graph, alphas), memory=10**5)
    edges = list(zip(*graph.edge_index.tolist(), strict=True))
    expected = gatt_by_matrices(edges, num_nodes, [alpha.tolist() for alpha in alphas])
    dense = np.stack([result.dense(target).numpy() for target in range(num_nodes)])
    np.testing.assert_allclose(dense, expected, rtol=1e-9, atol=1e-12)


def test_single_precision_attention_is_accurate_to_single_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    graph = Graph(torch.randint(40, (2, 200), generator=generator), 40)
    alphas = [torch.rand(graph.num_edges, generator=generator) for _ in range(4)]
    single = GAtt().attribute(Attention.from_weights(graph, alphas))
    double = GAtt().attribute(Attention.from_weights(graph, [alpha.double() for alpha in alphas]))
    assert single.scores.dtype == torch.float32
    torch.testing.assert_close(single.scores.double(), double.scores, rtol=1e-6, atol=0)


def test_half_precision_attention_is_widened() -> None:
    graph = Graph(torch.tensor([[1], [0]]), 2)
    result = GAtt().attribute(Attention.from_weights(graph, [torch.full((3,), 0.5, dtype=torch.float16)] * 2))
    assert result.scores.dtype == torch.float32
    assert result.dense(0).tolist() == [0.75, 0.75, 0.25]


def test_empty_graphs_and_empty_target_lists() -> None:
    nothing = Graph(torch.zeros(2, 0, dtype=torch.int64), 0)
    lonely = Graph(torch.zeros(2, 0, dtype=torch.int64), 3)
    for name, method in make_methods(ATTENTION_METHODS).items():
        result = method.attribute(Attention.from_weights(nothing, [torch.zeros(0)] * 2))
        assert (len(result), result.scores.numel(), result.ptr.tolist()) == (0, 0, [0])
        assert list(method.stream(Attention.from_weights(nothing, [torch.zeros(0)]))) == []
        loops = Attention.from_weights(lonely, [torch.ones(3)] * 3)
        assert len(method.attribute(loops, [])) == 0
        isolated = method.attribute(loops)
        assert [edges.tolist() for _, edges, _ in isolated] == [[0], [1], [2]]
        if name != "random":
            assert set(isolated.scores.tolist()) == {
                3.0 if name in ("gatt", "gatt_sim", "uniform", "structure") else 1.0
            }


def test_rejects_what_is_no_target() -> None:
    attention = Attention.from_weights(Graph(torch.tensor([[0], [1]]), 2), [torch.ones(3)])
    for targets, wanted in (
        (2, r"node ids in \[0, 2\)"),
        ([0, -1], r"node ids in \[0, 2\)"),
        ([0, 0], "distinct"),
        ("some", "'all'"),
        (torch.tensor([0.5]), "integers"),
        (torch.tensor([True]), "a mask of 2 nodes"),
    ):
        with pytest.raises(ValueError, match=wanted):
            GAtt().attribute(attention, targets)
    with pytest.raises(ValueError, match="memory"):
        GAtt().attribute(attention, memory=0)
    with pytest.raises(ValueError, match="heads"):
        GAtt(heads=[1]).attribute(attention)
    with pytest.raises(ValueError, match="heads"):
        GAtt(heads=[0, 0]).attribute(attention)
    with pytest.raises(ValueError, match="names among gatt"):
        make_methods(["gradients"])
    assert GAtt().attribute(attention, torch.tensor([False, True])).targets.tolist() == [1]
