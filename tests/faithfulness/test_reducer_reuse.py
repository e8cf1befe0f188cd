"""Reducers that are used again as a network trains: after `forget`, and with what they keep between reductions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from test_exact import KINDS, assert_as_brute_force, setting
from torch import Tensor

from attree.attention import Graph, capture_attention
from attree.attribution import Pairs, subgraph_pairs
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reduction, ReductionProtocol
from attree.faithfulness.exact import changed_rows, reduction_plan
from attree.faithfulness.exact.call_plans import ChunkPlan
from attree.faithfulness.exact.reduction_plan import ReductionPlan
from helpers.graphs import NODES, randomize
from helpers.reducers import exact_pass, subject_of

MEMORY = {"whole": 2**29, "in chunks": 2**29, "not kept": 40_000}
"""Bytes of working memory for each way that a plan can be kept."""

SMALL_CHUNK = 40_000
"""Bytes that a few of the small graphs' reduced edges take."""


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time a chunk is followed through the layers."""
    calls: list[int] = []
    follow = ReductionPlan._chunk

    def count(self: ReductionPlan, begin: int, end: int, keep: bool) -> ChunkPlan:
        calls.append(end - begin)
        return follow(self, begin, end, keep)

    monkeypatch.setattr(ReductionPlan, "_chunk", count)
    return calls


def assert_same(ours: Reduction, expected: Reduction) -> None:
    torch.testing.assert_close(ours.delta_pc, expected.delta_pc, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.delta_ne, expected.delta_ne, rtol=0, atol=1e-12)
    assert torch.equal(ours.changed, expected.changed)


@pytest.mark.parametrize("kept", list(MEMORY))
@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_forgetting_follows_the_weights_and_keeps_what_is_static(
    kind: str, protocol: ReductionProtocol, kept: str, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept == "in chunks":
        monkeypatch.setattr(reduction_plan, "CHUNK_BYTES", SMALL_CHUNK)
    monkeypatch.setattr(changed_rows, "DENSE_ENTRIES", 60)  # the hub's rows become dense blocks
    net, x, edge_index = setting(kind, 3, 2, seed=4)
    net, x, graph = net.double(), x.double(), Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([10, 0, 9, 3]), 3)
    reducer = ExactReducer(subject_of(net, x, graph.original_edge_index, graph=graph), MEMORY[kept])
    first = reducer.record().reduce(pairs, protocol)
    chunks = len(followed)
    assert (chunks > 1) == (kept != "whole")

    randomize(net, 5)
    second = reducer.record().reduce(pairs, protocol, with_probability=True)
    assert len(followed) == chunks * (2 if kept == "not kept" else 1)
    assert_as_brute_force(second, net, x, graph, protocol, 1e-9)
    assert float((first.delta_pc - second.delta_pc).abs().max()) > 1e-3
    assert_same(second, exact_pass(net, x, graph.original_edge_index, graph=graph).reduce(pairs, protocol))


@pytest.mark.parametrize("kept", list(MEMORY))
def test_other_pairs_and_protocols_in_between_change_nothing(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept == "in chunks":
        monkeypatch.setattr(reduction_plan, "CHUNK_BYTES", SMALL_CHUNK)
    net, x, edge_index = setting("GATv2", 2, 3, seed=6)
    graph = Graph(edge_index, NODES)
    every = [subgraph_pairs(graph, torch.tensor(targets), 2) for targets in ([0, 10, 5], [4], [5, 0])]
    asked = [(every[number], protocol) for number in (0, 1, 0, 2, 0) for protocol in PROTOCOLS.values()]

    def fresh(pairs: Pairs, protocol: ReductionProtocol) -> Reduction:
        return exact_pass(net, x, graph.original_edge_index, graph=graph).reduce(pairs, protocol)

    reducer = ExactReducer(subject_of(net, x, graph.original_edge_index, graph=graph), MEMORY[kept])
    for seed in range(2):
        randomize(net, seed)
        recorded = reducer.record()
        for pairs, protocol in asked:
            assert_same(recorded.reduce(pairs, protocol), fresh(pairs, protocol))
    assert reducer._plans
    for plan in reducer._plans.values():
        assert (plan._kept is None) == (kept == "not kept")
        assert (len(plan._bounds) > 1) == (kept != "whole")


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_kept_rows_that_an_update_gets_wrong_are_computed_anew(
    kind: str, protocol: ReductionProtocol, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan cannot know which rows lose nearly all weight: that differs from one set of weights to the next."""
    net, x, edge_index = setting(kind, 3, 2, seed=3)
    net, x, graph = net.double(), x.double() * 3, Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.arange(NODES), 3)
    reducer = ExactReducer(subject_of(net, x, graph.original_edge_index, graph=graph))
    reducer.record().reduce(pairs, protocol)
    grouped: list[Tensor] = []
    find = ReductionPlan.groups

    def note(*args: object) -> object:
        grouped.append(args[-1])
        return find(*args)

    monkeypatch.setattr(ReductionPlan, "groups", note)
    randomize(net, 3, scale=6.0)
    reduction = reducer.record().reduce(pairs, protocol, with_probability=True)
    assert len(followed) == 1
    # Rows whose own features change were grouped the first time: these are the others, updates of which fail.
    assert sum(rows.numel() for rows in grouped) > 0
    assert_as_brute_force(reduction, net, x, graph, protocol, 1e-7)


def make_exact(net: torch.nn.Module, x: Tensor, graph: Graph) -> ExactReducer:
    return ExactReducer(subject_of(net, x, graph.original_edge_index, graph=graph))


def make_generic(net: torch.nn.Module, x: Tensor, graph: Graph) -> CopiesReducer:
    return CopiesReducer(subject_of(net, x, graph.original_edge_index, graph=graph))


MAKERS: dict[str, Callable] = {"exact": make_exact, "generic": make_generic}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_attention_is_that_of_the_pass(make: Callable) -> None:
    net, x, edge_index = setting("SuperGAT-MX", 2, 2, seed=7)
    graph = Graph(edge_index, NODES)
    old = capture_attention(net, x, edge_index)
    reducer = make(net, x, graph)
    recorded = reducer.record()
    randomize(net, 8)
    new = capture_attention(net, x, edge_index)
    torch.testing.assert_close(recorded.attention.weights, old.weights)
    torch.testing.assert_close(reducer.record().attention.weights, new.weights)
    assert float((old.weights[1] - new.weights[1]).abs().max()) > 1e-2


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
def test_the_generic_reducer_follows_the_weights(protocol: ReductionProtocol) -> None:
    net, x, edge_index = setting("GATv2", 2, 2, seed=9)
    net, x, graph = net.double(), x.double(), Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([0, 9, 3]), 2)
    reducer = CopiesReducer(subject_of(net, x, edge_index))
    first = reducer.record().reduce(pairs, protocol)
    randomize(net, 10)
    second = reducer.record().reduce(pairs, protocol, with_probability=True)
    assert_as_brute_force(second, net, x, graph, protocol, 1e-10)
    assert float((first.delta_pc - second.delta_pc).abs().max()) > 1e-3


def test_nothing_holds_a_pass_that_is_done_with() -> None:
    """With the plan, the result and the pairs still held."""
    net, x, edge_index = setting("GAT", 3, 1, seed=2)
    graph = Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.arange(NODES), 3)
    exact, generic = make_exact(net, x, graph), make_generic(net, x, graph)
    passes = [exact.record(), generic.record()]
    results = [recorded.reduce(pairs, PROTOCOLS["removal"]) for recorded in passes]
    tensors = [
        passes[0].recording.output,
        *(weight for recorded in passes for weight in recorded.attention.weights),
        passes[1].attention.output,
    ]
    for layer in passes[0].recording.layers:
        tensors += [layer.weights, layer.log_norm, layer.aggregated, *layer.states[:3]]
    references = [weakref.ref(tensor) for tensor in tensors]
    del tensors, layer
    assert all(reference() is not None for reference in references)
    passes.clear()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    assert exact.record().reduce(pairs, PROTOCOLS["removal"]).delta_pc.equal(results[0].delta_pc)
