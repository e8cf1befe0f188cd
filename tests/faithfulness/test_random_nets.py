"""Reductions against one forward pass per reduced edge, for random networks on random graphs."""

from __future__ import annotations

import warnings

import pytest
import torch
from _pytest.mark import ParameterSet

from attree.attention import Graph
from attree.attribution import graph_pairs, subgraph_pairs
from attree.faithfulness import PROTOCOLS, ExactReducer
from attree.faithfulness.exact import changed_rows, reduction_plan
from attree.subject import Head
from helpers.no_warnings import no_warnings
from helpers.one_pass_each import reduced_outputs
from helpers.random_nets import random_case
from helpers.reducers import any_pass

NETS, PER_TEST = 360, 15
LOGITS = Head("multiclass_classification", "raw")  # outputs of one small graph may look like something else


def check(seed: int) -> bool:
    """Compare all pairs of one random network; say whether the exact engine served it."""
    case = random_case(seed)
    graph = Graph(case.edge_index, case.x.shape[0])
    with no_warnings():
        warnings.filterwarnings("ignore", message=".*several self-loops at one node, of different edge features.*")
        reducer = any_pass(case.net, case.x, case.edge_index, graph=graph, head=LOGITS, **case.kwargs)
    with torch.no_grad():
        before = case.net(case.x, case.edge_index, **case.kwargs)
    torch.testing.assert_close(reducer.attention.output, before, rtol=0, atol=1e-9, msg=f"seed {seed}")
    if "batch" in case.kwargs:
        pairs = graph_pairs(graph, case.kwargs["batch"])
    else:
        pairs = subgraph_pairs(graph, torch.arange(graph.num_nodes), case.net.depth)
    for name, protocol in PROTOCOLS.items():
        reduction = reducer.reduce(pairs, protocol, with_probability=True)
        after = reduced_outputs(case.net, graph.edge_index, name, case.x, case.edge_index, **case.kwargs)
        expected = torch.stack(after).softmax(-1)[pairs.edges, pairs.targets[pairs.owner]]
        assert reduction.probability is not None
        difference = float((reduction.probability - expected).abs().max()) if len(pairs) else 0.0
        assert difference < 1e-8, f"seed {seed}, {name}: {difference}"
    return isinstance(reducer.engine_for(PROTOCOLS["weight"]), ExactReducer)


def some_slow(firsts: range, quick: int) -> list[ParameterSet]:
    """Seeds to begin with; those after the first few are left to the slow tests."""
    return [pytest.param(first, marks=[] if place < quick else pytest.mark.slow) for place, first in enumerate(firsts)]


@pytest.mark.parametrize("first", some_slow(range(0, NETS, PER_TEST), quick=4))
def test_random_networks_as_one_forward_pass_each(first: int) -> None:
    exact = [check(seed) for seed in range(first, first + PER_TEST)]
    # One in ten may have self-loops of one node with different edge features, which only copies can tell apart.
    assert sum(exact) >= PER_TEST - 2


@pytest.mark.long
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("first", some_slow(range(NETS, NETS + 60, PER_TEST), quick=1))
def test_the_same_in_small_chunks(first: int, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction_plan, "CHUNK_BYTES", 4_000)
    monkeypatch.setattr(changed_rows, "DENSE_ENTRIES", 1 if dense else 10**9)
    monkeypatch.setattr(changed_rows, "DENSE_DEGREE", 3)
    monkeypatch.setattr(changed_rows, "BLOCK_BYTES", 200)
    for seed in range(first, first + PER_TEST, 2):
        check(seed)
