from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch_geometric.utils import coalesce

from attree.attention import Graph, hook_softmax
from attree.attribution import GAtt
from attree.evaluation import evaluate
from attree.metrics.functional import pearson
from attree.paper.cells import (
    CALCULATIONS,
    Calculation,
    CellContext,
    Explanation,
    FaithfulnessCell,
    HeadSelection,
    paper_targets,
)
from attree.paper.cells.faithfulness import _correlations
from attree.paper.networks import Net
from attree.paper.printed_numbers import printed
from helpers.graphs import NODES, messy_graph


@pytest.fixture
def context(data_root: str, tmp_path: Path) -> CellContext:
    return CellContext(data_root, tmp_path / "cells")


@pytest.mark.needs("gatt_paper")
@pytest.mark.parametrize("dataset", ["Infection", "BA-Shapes"])
@pytest.mark.parametrize("method", ["gatt", "avgatt"])
def test_explanation_accuracy_with_the_authors_weights_is_the_printed_one(
    context: CellContext, dataset: str, method: str
) -> None:
    rows = printed("explanation").set_index(["dataset", "model", "method"])["paper"]
    result = Explanation(Net(dataset, "GAT", 3, weights="authors"), method).result(context)
    assert f"{result['auroc']:.4f}" == f"{rows[dataset, 'GAT', method]:.4f}"
    assert result["targets"] == {"Infection": 974, "BA-Shapes": 400}[dataset]


@pytest.mark.needs("gatt_paper")
def test_saliency_with_self_loops_masked_is_the_printed_one(context: CellContext) -> None:
    net = Net("BA-Shapes", "GAT", 3, weights="authors")
    auroc = Explanation(net, "saliency", self_loops=True).result(context)["auroc"]
    assert auroc == pytest.approx(0.9563, abs=0.001)
    assert Explanation(net, "saliency").result(context)["auroc"] < 0.85


def test_targets_are_the_authors() -> None:
    legacy = np.random.RandomState(0)
    assert paper_targets(500).tolist() == sorted(legacy.choice(500, 100, replace=False).tolist())
    assert paper_targets(5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.needs("webkb/texas")
def test_faithfulness_is_what_evaluate_says_and_is_measured_once(context: CellContext) -> None:
    net = Net("Texas", "GAT", 2, epochs=3)
    cell = FaithfulnessCell(net, ("weight",), targets=60)
    result = cell.result(context)
    model, accuracy = context.model(net)
    graph = context.node_data(Net("Texas")).graph
    expected = evaluate(model, graph, paper_targets(graph.num_nodes, 60), ["gatt", "random"], ["weight"])
    for name, value in expected.metrics.items():
        assert result["metrics"][name] == pytest.approx(value, abs=1e-6)
    assert result["accuracy"] == accuracy
    assert result["changed"] == {"weight": expected.num_changed("weight")}
    assert result["pairs"] == len(expected.pairs)
    low, high = result["intervals"]["explain/gatt/weight/pc_kendall"]
    assert low < result["metrics"]["explain/gatt/weight/pc_kendall"] < high

    fresh = CellContext(context.root, context.cache.folder)
    assert (
        cell.result(fresh)["metrics"]["explain/gatt/weight/p_auroc"] == expected.metrics["explain/gatt/weight/p_auroc"]
    )
    assert cell.cached(fresh) is not None
    assert FaithfulnessCell(net, ("weight",), targets=11).cached(fresh) is None
    torch.testing.assert_close(fresh.model(net)[0].state_dict(), model.state_dict())


@pytest.mark.needs("webkb/texas")
def test_the_authors_dpc_is_that_of_the_most_probable_class(context: CellContext) -> None:
    """Against one forward pass per edge, its weight set to 0 in both layers."""
    net = Net("Texas", "GAT", 2, epochs=3)
    result = FaithfulnessCell(net, ("weight",), targets=3).result(context)
    model, _ = context.model(net)
    graph = context.node_data(Net("Texas")).graph
    found = evaluate(model, graph, paper_targets(graph.num_nodes, 3), ["gatt"], ["weight"])
    pairs, deltas = found.pairs, []
    with torch.no_grad():
        before = model(graph.x, graph.edge_index).softmax(dim=-1)
        for owner, edge in zip(pairs.owner.tolist(), pairs.edges.tolist(), strict=True):

            def mute(conv: object, scores: Tensor, softmax: Callable[[Tensor], Tensor], edge: int = edge) -> Tensor:
                weights = softmax(scores).clone()
                weights[edge] = 0.0
                return weights

            with hook_softmax(model, mute):
                after = model(graph.x, graph.edge_index).softmax(dim=-1)
            target = int(pairs.targets[owner])
            deltas.append(float(before[target].max() - after[target].max()))
    expected = np.corrcoef(found.pair_scores["gatt"].numpy(), np.array(deltas))[0, 1]
    assert result["metrics"]["explain/gatt/weight/most_probable_pearson"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.needs("webkb/texas")
def test_single_heads_are_scored_against_the_whole_networks_reductions(context: CellContext) -> None:
    net = Net("Texas", "GAT", 2, heads=3, epochs=2)
    result = HeadSelection(net, targets=10).result(context)
    assert set(result["pearson"]) == {"0,0", "1,0", "2,0"}
    model, _ = context.model(net)
    graph = context.node_data(Net("Texas")).graph
    found = evaluate(model, graph, paper_targets(graph.num_nodes, 10), [GAtt((1, 0))], ["weight"])
    expected = pearson(found.pair_scores["gatt"], found.reductions["weight"].delta_pc)
    assert result["pearson"]["1,0"] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.needs("gatt_paper")
@pytest.mark.parametrize("name", list(CALCULATIONS))
def test_all_calculations_of_gatt_agree(context: CellContext, name: str) -> None:
    result = Calculation(Net("BA-Shapes", "GAT", 3, weights="authors"), name, targets=2).result(context)
    assert result["largest_gap"] < 1e-5
    assert (result["targets"], result["of"]) == (2, 400)


@pytest.mark.parametrize("layers", [2, 3])
def test_proximity_against_paths_and_distances_of_networkx(layers: int) -> None:
    looped = Graph(coalesce(messy_graph(5)), NODES)
    found = _correlations(looped, torch.arange(NODES), layers)
    edges = looped.edge_index.t().tolist()
    network = nx.DiGraph(edges)
    adjacency = nx.to_numpy_array(network, nodelist=range(NODES))
    for target in range(NODES):
        hops = dict(nx.single_target_shortest_path_length(network, target))
        near, often = [], []
        for source, destination in edges:
            if max(hops.get(source, layers + 1), hops.get(destination, layers + 1)) <= layers:
                near.append((hops[source] + hops[destination]) / 2)
                # Walks from where the edge ends to the target, of every length that still fits.
                walks = [np.linalg.matrix_power(adjacency, length)[destination, target] for length in range(layers)]
                often.append(sum(walks))
        defined = len(set(near)) > 1 and len(set(often)) > 1
        expected = float(spearmanr(near, often).statistic) if defined else math.nan
        assert found[target] == pytest.approx(expected, nan_ok=True)
