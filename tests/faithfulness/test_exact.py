from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attree.attention import Graph
from attree.attribution import Pairs, subgraph_pairs
from attree.defaults import RESOLUTION
from attree.errors import ArgumentError
from attree.faithfulness import PROTOCOLS, Reduction, ReductionProtocol
from attree.faithfulness.exact import changed_rows
from attree.faithfulness.exact import convolution_algebra as algebras
from attree.faithfulness.exact.convolution_algebra import ALGEBRAS
from attree.models import GAT, AttentionNet, GATv2, SuperGAT
from helpers.brute_force import forward, measures, probabilities
from helpers.graphs import NODES, messy_graph, randomize
from helpers.reducers import any_pass, copies_pass, exact_pass

KINDS = {
    "GAT": lambda *args, **options: GAT(*args, **options),
    "GATv2": lambda *args, **options: GATv2(*args, **options),
    "SuperGAT-MX": lambda *args, **options: SuperGAT(*args, attention_type="MX", **options),
    "SuperGAT-SD": lambda *args, **options: SuperGAT(*args, attention_type="SD", **options),
}


def setting(kind: str, layers: int, heads: int, seed: int, concat: bool = True) -> tuple[AttentionNet, Tensor, Tensor]:
    net = randomize(KINDS[kind](4, 3, 5, layers, heads, concat=concat), seed)
    x = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(seed + 1))
    return net, x, messy_graph(seed)


def assert_as_brute_force(
    reduction: Reduction, net: AttentionNet, x: Tensor, graph: Graph, protocol: ReductionProtocol, tolerance: float
) -> None:
    edges = list(zip(*graph.edge_index.tolist(), strict=True))
    before = probabilities(forward(net, x, edges, None, protocol))
    after = {
        edge: probabilities(forward(net, x, edges, edge, protocol)) for edge in reduction.pairs.edges.unique().tolist()
    }
    targets = reduction.pairs.targets[reduction.pairs.owner].tolist()
    for pair, (target, edge) in enumerate(zip(targets, reduction.pairs.edges.tolist(), strict=True)):
        p, q = before[target], after[edge][target]
        assert reduction.probability is not None
        np.testing.assert_allclose(reduction.probability[pair].numpy(), q, atol=tolerance)
        pc, ne, changed = measures(p, q)
        # Effects are rounded to multiples of the resolution.
        assert float(reduction.delta_pc[pair]) == pytest.approx(pc, abs=tolerance + RESOLUTION / 2)
        assert float(reduction.delta_ne[pair]) == pytest.approx(ne, abs=4 * tolerance + RESOLUTION / 2)
        top = np.sort(q)[-2:]
        if top[1] - top[0] > 2 * tolerance:
            assert bool(reduction.changed[pair]) == changed


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=4, deadline=None)
@given(
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 3]),
    concat=st.booleans(),
    double=st.booleans(),
    memory=st.sampled_from([1, 20_000, 2**29]),
    seed=st.integers(0, 10_000),
)
def test_all_pairs_are_as_one_forward_pass_each(
    kind: str, protocol: ReductionProtocol, layers: int, heads: int, concat: bool, double: bool, memory: int, seed: int
) -> None:
    net, x, edge_index = setting(kind, layers, heads, seed, concat)
    if double:
        net, x = net.double(), x.double()
    graph = Graph(edge_index, NODES)
    # In no order; the hub, the leaf and the isolated node are always among them.
    targets = torch.tensor([10, 0, 9, seed % 8 + 1])
    reduction = exact_pass(net, x, graph.original_edge_index, graph=graph, memory=memory).reduce(
        subgraph_pairs(graph, targets, layers), protocol, with_probability=True
    )
    assert_as_brute_force(reduction, net, x, graph, protocol, 1e-9 if double else 1e-5)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("dense", [False, True])
def test_listed_and_dense_rows_are_as_one_forward_pass_each(
    kind: str, protocol: ReductionProtocol, layers: int, heads: int, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_rows, "DENSE_ENTRIES", 1 if dense else 10**9)
    monkeypatch.setattr(changed_rows, "DENSE_DEGREE", 2)
    monkeypatch.setattr(changed_rows, "BLOCK_BYTES", 400)
    net, x, edge_index = setting(kind, layers, heads, seed=layers + heads)
    graph = Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([3, 0]), layers)
    reduction = exact_pass(net.double(), x.double(), graph.original_edge_index, graph=graph).reduce(
        pairs, protocol, with_probability=True
    )
    assert_as_brute_force(reduction, net, x, graph, protocol, 1e-9)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_extreme_scores_neither_overflow_nor_lose_digits(kind: str, protocol: ReductionProtocol) -> None:
    net, x, edge_index = setting(kind, 3, 2, seed=3)
    net, x = randomize(net, 3, scale=6.0).double(), x.double() * 3
    graph = Graph(edge_index, NODES)
    reducer = exact_pass(net, x, graph.original_edge_index, graph=graph)
    # The point of this test: some weights leave next to nothing for the others.
    assert float(reducer.recording.layers[1].weights.max()) > 1 - 1e-12
    reduction = reducer.reduce(subgraph_pairs(graph, torch.arange(NODES), 3), protocol, with_probability=True)
    assert_as_brute_force(reduction, net, x, graph, protocol, 1e-7)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
def test_the_only_entering_edge_of_a_node_and_edges_into_the_target(protocol: ReductionProtocol) -> None:
    net, x, _ = setting("GAT", 2, 1, seed=5)
    graph = Graph(torch.tensor([[0, 1], [1, 2]]), NODES)
    loop_of_source, loop_of_target, into_target = 2, 4, 1
    pairs = Pairs(
        torch.tensor([2, 0]),
        torch.tensor([0, 3, 4]),
        torch.tensor([loop_of_source, loop_of_target, into_target, loop_of_source]),
        torch.ones(4, dtype=torch.bool),
        graph,
        2,
    )
    reduction = exact_pass(net.double(), x.double(), graph.original_edge_index, graph=graph).reduce(
        pairs, protocol, with_probability=True
    )
    assert_as_brute_force(reduction, net, x, graph, protocol, 1e-12)
    # Alone in its softmax, a loop keeps all weight when its score becomes 0; otherwise the node receives nothing.
    assert (abs(float(reduction.delta_pc[3])) < 1e-12) == (protocol is PROTOCOLS["coefficient"])


def test_given_pairs_are_a_choice_of_all_pairs() -> None:
    net, x, edge_index = setting("GATv2", 3, 3, seed=8)
    graph = Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([4, 0, 2]), 3)
    reducer = exact_pass(net, x, graph.original_edge_index, graph=graph)
    whole = reducer.reduce(pairs, PROTOCOLS["removal"])
    kept = torch.rand(len(pairs), generator=torch.Generator().manual_seed(0)) < 0.3
    part = reducer.reduce(pairs.only(kept), PROTOCOLS["removal"])
    torch.testing.assert_close(part.delta_pc, whole.delta_pc[kept], rtol=0, atol=1e-12)
    torch.testing.assert_close(part.delta_ne, whole.delta_ne[kept], rtol=0, atol=1e-12)


def test_pairs_said_to_carry_a_flow_that_none_reaches_change_nothing() -> None:
    net, x, edge_index = setting("GAT", 1, 1, seed=2)
    graph = Graph(edge_index, NODES)
    far = (graph.destination == 0).nonzero().view(-1)[:1]
    pairs = Pairs(torch.tensor([3]), torch.tensor([0, 1]), far, torch.tensor([True]), graph, 1)
    for reducer in (
        exact_pass(net, x, graph.original_edge_index, graph=graph),
        copies_pass(net.double(), x.double(), edge_index),
    ):
        assert abs(float(reducer.reduce(pairs, PROTOCOLS["removal"]).delta_pc)) < 1e-12


def test_no_pairs() -> None:
    net, x, edge_index = setting("GAT", 2, 1, seed=2)
    graph = Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.zeros(0, dtype=torch.int64), 2)
    for reducer in (exact_pass(net, x, graph.original_edge_index, graph=graph), copies_pass(net, x, edge_index)):
        assert reducer.reduce(pairs, PROTOCOLS["weight"], with_probability=True).delta_pc.shape == (0,)


def test_progress_counts_every_pair_with_a_flow() -> None:
    net, x, edge_index = setting("GAT", 2, 1, seed=2)
    graph = Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.arange(NODES), 2)
    for reducer in (
        exact_pass(net, x, graph.original_edge_index, graph=graph, memory=10_000),
        copies_pass(net, x, edge_index, memory=10_000),
    ):
        calls: list[tuple[int, int]] = []
        reducer.reduce(pairs, PROTOCOLS["weight"], progress=lambda done, total, to=calls: to.append((done, total)))
        total = int(pairs.flow.sum())
        assert len(calls) > 1
        assert calls == sorted(calls)
        assert calls[-1] == (total, total)


def test_arguments_are_checked() -> None:
    net, x, edge_index = setting("GAT", 2, 1, seed=2)
    graph = Graph(edge_index, NODES)
    with pytest.raises(ArgumentError, match="memory"):
        exact_pass(net, x, graph.original_edge_index, graph=graph, memory=0)
    with pytest.raises(ArgumentError, match="the graph of `edge_index`"):
        any_pass(net, x, edge_index[:, 1:], graph=graph)


@pytest.mark.parametrize("piece", [1, 2**9, 2**30])
@pytest.mark.parametrize("kind", list(KINDS))
def test_scores_of_all_with_all_are_those_of_each_with_each(
    kind: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algebras, "PIECE_BYTES", piece)
    net, x, _ = setting(kind, 1, 2, seed=5)
    algebra = ALGEBRAS[type(net.convs[0])](net.convs[0], torch.float64)
    states = algebra.project(x.double())
    source, target = states.source[:4], states.target[4:9]
    expected = [[algebra.score(s.unsqueeze(0), t.unsqueeze(0))[0].tolist() for s in source] for t in target]
    ours = algebra.score_all(source, target)
    torch.testing.assert_close(ours.transpose(1, 2), torch.tensor(expected, dtype=torch.float64))
