"""The exact engine against one forward pass per reduced edge, for random networks on random graphs."""

from __future__ import annotations

import pytest
import torch

from attree.attention import LoopedGraph
from attree.attribution import graph_pairs, subgraph_pairs
from attree.faithfulness import PROTOCOLS, ExactReducer
from helpers.one_pass_each import reduced_outputs
from helpers.random_nets import random_case

NETS, PER_TEST = 360, 15


@pytest.mark.parametrize("first", range(0, NETS, PER_TEST))
def test_reductions_are_as_one_forward_pass_each(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        case = random_case(seed)
        graph = LoopedGraph(case.edge_index, case.x.shape[0])
        reducer = ExactReducer(case.net, case.x, case.edge_index, graph=graph, **case.kwargs)
        with torch.no_grad():
            before = case.net(case.x, case.edge_index, **case.kwargs)
        torch.testing.assert_close(reducer.attention.output, before, rtol=0, atol=1e-9, msg=f"seed {seed}")
        if "batch" in case.kwargs:
            pairs = graph_pairs(graph, case.kwargs["batch"])
        else:
            pairs = subgraph_pairs(graph, torch.arange(graph.num_nodes), reducer.attention.num_layers)
        for name, protocol in PROTOCOLS.items():
            reduction = reducer.reduce(pairs, protocol, with_probability=True)
            after = torch.stack(
                reduced_outputs(case.net, graph.edge_index, name, case.x, case.edge_index, **case.kwargs)
            )
            expected = after.softmax(-1)[pairs.edges, pairs.targets[pairs.owner]]
            torch.testing.assert_close(
                reduction.probability,
                expected,
                rtol=0,
                atol=1e-8,
                msg=lambda text, at=f"seed {seed}, {name}: ": at + text,
            )
