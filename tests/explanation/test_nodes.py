"""The nodes of an explanation, and the pairs of attention over all nodes, against plain matrices."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.attribution import attribute_nodes
from attree.faithfulness import node_effects
from attree.subject import Subject
from helpers.graph_transformers import (
    CLASSES,
    GPS,
    IN,
    WIDTH,
    inputs_of,
    molecule,
    molecules,
    multihead_weights,
    seeded,
)

pytestmark = pytest.mark.filterwarnings("ignore:Edges of the graph of")


def test_nodes_have_the_methods_score_and_the_exact_effect() -> None:
    torch.manual_seed(0)
    data = molecule(8)
    data = Data(x=data.x.float(), edge_index=data.edge_index)
    model = GAT(IN, WIDTH, 2, CLASSES)
    subject = Subject.of_data(model, data)
    expected, effects = attribute_nodes(subject, 3).dense(3), node_effects(subject, 3)
    nodes = attree.explain(model, data, 3, method="gatt").nodes
    assert [node.node for node in nodes] == sorted(effects.node.tolist(), key=lambda node: -float(expected[node]))
    for node in nodes:
        assert node.score == pytest.approx(float(expected[node.node]))
        assert node.effect == pytest.approx(float(effects.delta_pc[effects.node == node.node]))
    by_effect = attree.explain(model, data, 3).nodes
    assert [node.score for node in by_effect] == [node.effect for node in by_effect]
    assert [abs(node.effect) for node in by_effect] == sorted((abs(node.effect) for node in by_effect), reverse=True)


def test_pairs_beyond_the_edges_and_attention_by_hops() -> None:
    batch = molecules(5, 6)
    model = seeded(GPS("gine"))
    modules = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    run = lambda: model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)  # noqa: E731
    states = inputs_of(model, run, nn.MultiheadAttention)
    matrices = [multihead_weights(module, x[1]).detach() for module, x in zip(modules, states, strict=True)]
    local = torch.zeros(6, 6, dtype=torch.float64)
    ends = batch.edge_index[:, batch.edge_index[0] >= 5] - 5
    local[ends[1], ends[0]] = 1.0
    last = torch.ones(6, dtype=torch.float64)  # the sum over the nodes of the graph
    first = last @ (local + matrices[1])
    scores = last.unsqueeze(1) * matrices[1] + first.unsqueeze(1) * matrices[0]
    hops = dict(nx.all_pairs_shortest_path_length(nx.from_edgelist(ends.t().tolist())))
    found = attree.explain(model, batch, 1, method="gatt").global_pairs(4)
    assert found is not None
    beyond = {(i, j): float(scores[i, j]) for i in range(6) for j in range(6) if hops[i][j] > 1}
    strongest = sorted(beyond.items(), key=lambda item: -item[1])[:4]
    pairs = list(zip((found.query - 5).tolist(), (found.key - 5).tolist(), strict=True))
    assert pairs == [pair for pair, _ in strongest]
    assert found.score.tolist() == pytest.approx([score for _, score in strongest], rel=1e-5)
    share = dict.fromkeys(range(6), 0.0)
    for i in range(6):
        for j in range(6):
            share[hops[i][j]] += float(scores[i, j] / scores.sum())
    measured = dict(zip(found.hops.tolist(), found.share.tolist(), strict=True))
    assert measured == pytest.approx({hop: value for hop, value in share.items() if value}, rel=1e-5)


def test_the_text_names_nodes_pairs_and_hops() -> None:
    explanation = attree.explain(seeded(GPS("gine")), molecules(5, 6), 1, method="gatt")
    lines = str(explanation).splitlines()
    assert lines[-1].startswith("attention over all nodes by hops: 0: ")
    assert lines[-2].startswith("strongest attention beyond the edges: ")
    first = explanation.nodes[0]
    assert any(line.startswith(f"{first.name} ") and f"{first.score:.3g}" in line for line in lines)
    assert int(first.name) == first.node - 5  # the nodes of a graph in a batch are numbered from 0


def test_a_network_without_local_layers_names_its_first_node() -> None:
    explanation = attree.explain(seeded(GPS("none")), molecules(5, 6), 1)
    assert explanation.edges == []
    assert explanation.sentence.endswith(f"of the nodes that it reads, {explanation.nodes[0].name} is first.")


def test_a_network_without_global_attention_has_no_such_pairs() -> None:
    data = molecule(5)
    data = Data(x=data.x.float(), edge_index=data.edge_index)
    explanation = attree.explain(GAT(IN, WIDTH, 2, CLASSES), data, 0)
    assert explanation.global_pairs() is None
    assert "by hops" not in str(explanation)
