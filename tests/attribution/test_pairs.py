"""Evaluation pairs against PyG's subgraphs, and the scores that methods give them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.metrics import roc_auc_score
from torch_geometric.utils import k_hop_subgraph

from attree.attention import capture_attention
from attree.attribution import GAtt, Random, make_methods, subgraph_pairs
from attree.paper.networks import load_authors_gat
from helpers.random_attention import Case, cases


@settings(max_examples=60, deadline=None)
@given(cases())
def test_are_the_edges_of_the_l_hop_subgraph(case: Case) -> None:
    graph, num_layers = case.attention.graph, case.attention.num_layers
    targets = torch.arange(case.num_nodes).flip(0)
    pairs = subgraph_pairs(graph, targets, num_layers)
    tight = subgraph_pairs(graph, targets, num_layers, memory=1)
    assert torch.equal(pairs.edges, tight.edges)
    assert torch.equal(pairs.ptr, tight.ptr)
    gatt = GAtt().attribute(case.attention, targets)
    for position, target in enumerate(targets.tolist()):
        mine = pairs.owner == position
        _, _, _, inside = k_hop_subgraph(target, num_layers, graph.edge_index, num_nodes=case.num_nodes)
        assert sorted(pairs.edges[mine].tolist()) == inside.nonzero().view(-1).tolist()
        assert torch.equal(pairs.edges[mine & pairs.flow], gatt[target].edges)


@settings(max_examples=40, deadline=None)
@given(cases(partial=True))
def test_scores_are_zero_without_a_flow(case: Case) -> None:
    targets = torch.arange(case.num_nodes)
    pairs = subgraph_pairs(case.attention.graph, targets, case.attention.num_layers)
    gatt = GAtt().attribute(case.attention, targets)
    dense = torch.stack([gatt.dense(target) for target in targets.tolist()])
    torch.testing.assert_close(GAtt().score_pairs(case.attention, pairs), dense[pairs.owner, pairs.edges])
    # The searched path of `at`, whatever the order of the question.
    shuffle = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))
    asked = gatt.at(pairs.owner[shuffle], pairs.edges[shuffle])
    torch.testing.assert_close(asked, dense[pairs.owner, pairs.edges][shuffle])


@settings(max_examples=25, deadline=None)
@given(cases())
def test_methods_that_know_no_flows_score_every_pair(case: Case) -> None:
    targets = torch.arange(case.num_nodes)
    pairs = subgraph_pairs(case.attention.graph, targets, case.attention.num_layers)
    methods = make_methods(["avgatt", "random"], seed=3)
    mean = torch.tensor(case.alpha).mean(dim=0).double()
    torch.testing.assert_close(
        methods["avgatt"].score_pairs(case.attention, pairs), mean[pairs.edges], rtol=1e-6, atol=0
    )
    for method in methods.values():
        scores = method.score_pairs(case.attention, pairs)
        listed = method.attribute(case.attention, targets)
        torch.testing.assert_close(scores[pairs.flow], listed.scores)


def test_random_scores_are_uniform_reproducible_and_seeded() -> None:
    targets, edges = torch.meshgrid(torch.arange(200), torch.arange(200), indexing="ij")
    draws = {}
    for seed in (0, 1):
        for dtype in (torch.float32, torch.float64):
            draw = _random_scores(seed, targets.reshape(-1), edges.reshape(-1), dtype)
            assert draw.dtype == dtype
            assert 0.0 <= float(draw.min()) < 1e-3
            assert 0.999 < float(draw.max()) < 1.0
            assert np.histogram(draw, bins=10, range=(0, 1))[0] == pytest.approx([4000] * 10, rel=0.06)
            draws[seed, dtype] = draw
    assert abs(np.corrcoef(draws[0, torch.float64], draws[1, torch.float64])[0, 1]) < 0.02
    assert draws[0, torch.float64].unique().numel() == targets.numel()


def _random_scores(seed: int, targets: torch.Tensor, edges: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    from attree.attribution.baselines import hashed_uniform

    return hashed_uniform(seed, targets, edges, dtype)


def test_random_never_rounds_up_to_one() -> None:
    many = torch.arange(2_000_000)
    assert float(_random_scores(0, many, many, torch.float32).max()) < 1.0
    assert Random(seed=5).seed == 5


@pytest.mark.needs("gatt_paper")
@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("gat_infection_3layer.npz", {"gatt": 0.9976, "avgatt": 0.8786}),
        ("gat_ba_shapes_3layer.npz", {"gatt": 0.9591, "avgatt": 0.7977}),
    ],
)
def test_reproduces_the_papers_ground_truth_auroc(data_root: str, weights: str, expected: dict[str, float]) -> None:
    folder = f"{data_root}/gatt_paper"
    infection = "infection" in weights
    arrays = np.load(f"{folder}/{'infection_3hop' if infection else 'ba_shapes'}.npz", allow_pickle=False)
    edge_index = torch.from_numpy(arrays["edge_index"])
    attention = capture_attention(
        load_authors_gat(f"{folder}/{weights}"), torch.from_numpy(arrays["x"]).float(), edge_index
    )
    graph = attention.graph
    if infection:
        targets = torch.from_numpy(arrays["unique_nodes"])
        ptr, path = arrays["path_ptr"].tolist(), arrays["path_nodes"].tolist()
        true = {
            (position, *step)
            for position in range(len(targets))
            for step in zip(
                path[ptr[position] : ptr[position + 1] - 1], path[ptr[position] + 1 : ptr[position + 1]], strict=True
            )
        }
    else:
        motif = torch.from_numpy(arrays["node_mask"]).bool()
        targets = motif.nonzero().view(-1)
    pairs = subgraph_pairs(graph, targets, attention.num_layers)
    source, destination = graph.edge_index[:, pairs.edges]
    if infection:
        triples = zip(pairs.owner.tolist(), source.tolist(), destination.tolist(), strict=True)
        labels = [triple in true for triple in triples]
    else:
        in_motif = graph.to_original(torch.zeros(graph.num_edges)).bool() | torch.from_numpy(arrays["edge_mask"]).bool()
        on_graph = torch.zeros(graph.num_edges, dtype=torch.bool)
        on_graph[graph.position[in_motif]] = True
        on_graph[graph.num_proper_edges :] = motif
        labels = on_graph[pairs.edges].tolist()
    for name, method in make_methods(list(expected)).items():
        assert round(roc_auc_score(labels, method.score_pairs(attention, pairs)), 4) == expected[name]
