"""Layers on other nodes or edges than those of the data: pooling between layers, dense adjacencies, readouts by layers.

Effects are compared with deleting the edge from the data and running the user's model, in float64.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    ASAPooling,
    AttentiveFP,
    DenseGATConv,
    DenseGCNConv,
    DenseSAGEConv,
    EdgePooling,
    GATConv,
    GCNConv,
    GraphConv,
    GraphUNet,
    SAGPooling,
    TopKPooling,
    dense_diff_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import to_dense_adj, to_dense_batch

import attree
from attree.attribution import METHODS, GAtt, Structure
from attree.attribution.posthoc import GraphMask
from attree.errors import UnsupportedModelError
from attree.faithfulness import Reducer
from attree.subject import Subject

WIDTH, HIDDEN, CLASSES, NODES = 6, 8, 3, 9


def graph(seed: int, nodes: int = NODES) -> Data:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, 18), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    edges = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1)
    x = torch.randn(nodes, WIDTH, generator=generator, dtype=torch.float64)
    return Data(x, edges, edge_attr=torch.randn(edges.shape[1], 4, generator=generator, dtype=torch.float64))


def batch() -> Batch:
    return Batch.from_data_list([graph(seed, NODES + seed) for seed in range(3)])


class Hierarchy(nn.Module):
    """PyG's examples of TopKPooling and SAGPooling: a readout after each pooling."""

    def __init__(self, conv: type[nn.Module], pool: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = conv(WIDTH, HIDDEN), conv(HIDDEN, HIDDEN)
        self.pools, self.head = nn.ModuleList([pool(), pool()]), nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        readouts = []
        for conv, pool in zip((self.first, self.second), self.pools, strict=True):
            x, edge_index, _, batch, *_ = pool(conv(x, edge_index).relu(), edge_index, None, batch)
            readouts.append(torch.cat([global_max_pool(x, batch), global_mean_pool(x, batch)], dim=1))
        return self.head(readouts[0] + readouts[1]).log_softmax(-1)


class Clustered(nn.Module):
    """Nodes are merged: by ASAPooling or EdgePooling."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.first, self.pool, self.second = GCNConv(WIDTH, HIDDEN), pool, GCNConv(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, weights = self.first(x, edge_index).relu(), None
        if isinstance(self.pool, EdgePooling):
            x, edge_index, batch, _ = self.pool(x, edge_index, batch)
        else:
            x, edge_index, weights, batch, _ = self.pool(x, edge_index, x.new_ones(edge_index.shape[1]), batch)
        return global_mean_pool(self.second(x, edge_index, weights), batch)


class Dense(nn.Module):
    """Layers on a dense adjacency matrix, for nodes."""

    def __init__(self, conv: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = conv(WIDTH, HIDDEN), conv(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adj = to_dense_adj(edge_index, max_num_nodes=x.shape[0]).to(x.dtype)
        return self.second(self.first(x.unsqueeze(0), adj).relu(), adj)[0]


class DiffPool(nn.Module):
    """Soft clusters by `dense_diff_pool`, after a layer along edges or not."""

    def __init__(self, first: nn.Module | None = None) -> None:
        super().__init__()
        self.first = first
        self.assign, self.embed, self.last = DenseSAGEConv(WIDTH, 4), DenseSAGEConv(WIDTH, HIDDEN), DenseSAGEConv(8, 8)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = x if self.first is None else self.first(x, edge_index).relu()
        adj, (h, mask) = to_dense_adj(edge_index, batch).to(x.dtype), to_dense_batch(x, batch)
        z, adj, *_ = dense_diff_pool(self.embed(h, adj, mask).relu(), adj, self.assign(h, adj, mask), mask)
        return self.head(self.last(z, adj).relu().mean(dim=1))


class Unet(nn.Module):
    """PyG's graph U-Net, for nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GraphUNet(WIDTH, HIDDEN, CLASSES, depth=2, pool_ratios=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)


POOLED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data]]] = {
    "TopK, GCN": (lambda: Hierarchy(GCNConv, lambda: TopKPooling(HIDDEN, 0.6)), batch),
    "TopK, GAT": (lambda: Hierarchy(GATConv, lambda: TopKPooling(HIDDEN, 0.6)), batch),
    "SAG, GraphConv": (lambda: Hierarchy(GraphConv, lambda: SAGPooling(HIDDEN, 0.6)), batch),
    "SAG by GAT, GAT": (lambda: Hierarchy(GATConv, lambda: SAGPooling(HIDDEN, 0.6, GNN=GATConv)), batch),
    "ASA": (lambda: Clustered(ASAPooling(HIDDEN, 0.6)), batch),
    "EdgePooling": (lambda: Clustered(EdgePooling(HIDDEN)), batch),
    "GraphUNet": (Unet, lambda: graph(0)),
    "DenseGAT": (lambda: Dense(DenseGATConv), lambda: graph(0)),
    "DenseGCN": (lambda: Dense(DenseGCNConv), lambda: graph(0)),
    "DiffPool": (DiffPool, batch),
    "GAT, then DiffPool": (lambda: DiffPool(GATConv(WIDTH, WIDTH)), batch),
}


def made(name: str) -> tuple[nn.Module, Data]:
    torch.manual_seed(1)
    make, data = POOLED[name]
    return make().double().eval(), data()


def run(model: nn.Module, data: Data) -> Tensor:
    return model(data.x, data.edge_index, *(() if data.batch is None else (data.batch,))).softmax(-1)


@torch.no_grad()
def effects_of_deletion(model: nn.Module, data: Data, target: int) -> dict[tuple[int, int], float]:
    before, effects = run(model, data)[target], {}
    predicted = before.argmax()
    for column, ends in enumerate(data.edge_index.T.tolist()):
        without = copy.copy(data)
        without.edge_index = data.edge_index[:, torch.arange(data.num_edges) != column]
        effects[ends[0], ends[1]] = float(before[predicted] - run(model, without)[target][predicted])
    return effects


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", POOLED)
def test_effects_are_those_of_deleting_the_edge(name: str) -> None:
    model, data = made(name)
    result = attree.evaluate(model, data, [0, 1])
    assert list(result.pair_scores) == ["occlusion", "random"]
    assert list(result.reductions) == ["removal"]
    assert re.search(
        rf"^2 (of \d+ )?{'nodes' if data.batch is None else 'graphs'}, \d+ pairs$", str(result), re.MULTILINE
    )
    ends, pairs = result.pairs.graph.edge_index, result.pairs
    for position, target in enumerate((0, 1)):
        expected = effects_of_deletion(model, data, target)
        measured = {
            tuple(ends[:, edge].tolist()): effect
            for edge, effect, owner in zip(
                pairs.edges.tolist(), result.reductions["removal"].delta_pc.tolist(), pairs.owner.tolist(), strict=True
            )
            if owner == position
        }
        of_target = {
            pair: effect for pair, effect in expected.items() if data.batch is None or data.batch[pair[0]] == target
        }
        assert of_target.keys() == measured.keys()
        assert max(map(abs, of_target.values())) > 1e-6
        assert measured == pytest.approx(of_target, abs=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["TopK, GAT", "GraphUNet", "DenseGAT", "DiffPool"])
def test_one_prediction_is_explained(name: str) -> None:
    model, data = made(name)
    explanation, expected = attree.explain(model, data, 1), effects_of_deletion(model, data, 1)
    shown = {(edge.source, edge.destination): edge.effect for edge in explanation.edges}
    assert shown == pytest.approx({pair: expected[pair] for pair in shown}, abs=1e-7)
    assert str(explanation).startswith("The network predicts")
    assert explanation.plot().axes
    with pytest.raises(UnsupportedModelError, match="for effects of nodes"):
        _ = explanation.nodes


@pytest.mark.filterwarnings("ignore")
def test_log_probabilities_of_a_model_that_pools_are_known_as_such() -> None:
    model, data = made("TopK, GCN")
    assert Subject.of_data(model, data).head.return_type == "log_probs"


REFUSALS = {
    "TopK, GAT": r"`second` \(GATConv\) to take features of all \d+ nodes.*`occlusion`",
    "DenseGAT": r"`first` \(DenseGATConv\) runs on a dense adjacency matrix.*GATConv for DenseGATConv.*`occlusion`",
    "GAT, then DiffPool": r"`assign` \(DenseSAGEConv\) runs on a dense adjacency matrix",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSALS)
def test_methods_that_walk_the_tree_are_refused_by_name(name: str) -> None:
    model, data = made(name)
    subject = Subject.of_data(model, data)
    for method in (GAtt(), Structure()):
        with pytest.raises(UnsupportedModelError, match=REFUSALS[name]):
            method.attribute(subject, [0])
    with pytest.raises(UnsupportedModelError, match=REFUSALS[name]):
        attree.evaluate(model, data, [0], ["gatt"], "removal")
    with pytest.raises(UnsupportedModelError, match=r"for the protocol `weight`.*use `removal`"):
        attree.explain(model, data, 0, protocol="weight")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["saliency", "gnn_explainer", "message_gradient", "graph_mask", "pg_explainer"])
@pytest.mark.parametrize("name", ["TopK, GAT", "GraphUNet", "DenseGAT"])
def test_methods_that_mask_messages_are_refused_by_name(name: str, method: str) -> None:
    model, data = made(name)
    label = METHODS[method].label
    with pytest.raises(UnsupportedModelError, match=rf"on the nodes and edges of the data for {label}.*`occlusion`"):
        attree.evaluate(model, data, [0], [method], "removal")


def test_warnings_say_what_is_left_out_and_why() -> None:
    model, data = made("TopK, GAT")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attree.evaluate(model, data, [0])
    said = " ".join(str(warning.message) for warning in caught)
    assert "GAtt and other methods that walk the computation tree do not apply to Hierarchy" in said
    assert "Only `removal` is measured: `weight` reduces an edge in every layer" in said


def test_a_model_that_reads_no_edges_is_still_refused() -> None:
    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(x)

    with pytest.raises(UnsupportedModelError, match="Mlp, which has none"):
        attree.evaluate(Mlp().double(), graph(0), [0])


def fingerprint(layers: int = 2) -> tuple[nn.Module, Data]:
    torch.manual_seed(2)
    return AttentiveFP(WIDTH, HIDDEN, CLASSES, 4, layers, 2).double().eval(), batch()


def fingerprint_run(model: nn.Module, data: Data) -> Tensor:
    return model(data.x, data.edge_index, data.edge_attr, data.batch).softmax(-1)


def test_a_readout_that_cannot_be_read_is_said_once_a_call() -> None:
    model, data = fingerprint()
    for run in (lambda: attree.evaluate(model, data, [0]), lambda: attree.explain(model, data, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        assert sum("readout could not be read" in str(warning.message) for warning in caught) == 1


@pytest.mark.filterwarnings("ignore")
def test_attentive_fp_deletes_and_silences_edges_in_its_layers_of_atoms() -> None:
    model, data = fingerprint()
    subject = Subject.of_data(model, data)
    result = attree.evaluate(model, data, [0], ["gatt", "occlusion", "message_gradient", "saliency"])
    ends, pairs = result.pairs.graph.edge_index, result.pairs
    silenced: list[int] = []

    def silence(conv: Any, inputs: Any, messages: Tensor) -> Tensor:
        count = messages.shape[0]
        if count < data.num_edges:  # the readout: one message a node
            return messages
        return messages.index_fill(0, torch.tensor(silenced), 0.0)

    with torch.no_grad():
        before = fingerprint_run(model, data)[0]
        for edge, removed, weighed in zip(
            pairs.edges.tolist(),
            result.reductions["removal"].delta_pc.tolist(),
            result.reductions["weight"].delta_pc.tolist(),
            strict=True,
        ):
            if edge >= subject.graph.num_proper_edges:
                continue
            column = int((data.edge_index == ends[:, edge : edge + 1]).all(dim=0).nonzero())
            keep = torch.arange(data.num_edges) != column
            without = Data(data.x, data.edge_index[:, keep], edge_attr=data.edge_attr[keep], batch=data.batch)
            after = fingerprint_run(model, without)[0]
            assert removed == pytest.approx(float((before - after)[before.argmax()]), abs=1e-7)
            silenced[:] = [column]
            handles = [
                conv.register_message_forward_hook(silence)
                for conv in (model.gate_conv, *model.atom_convs, model.mol_conv)
            ]
            after = fingerprint_run(model, data)[0]
            assert weighed == pytest.approx(float((before - after)[before.argmax()]), abs=1e-7)
            for handle in handles:
                handle.remove()


@pytest.mark.filterwarnings("ignore")
def test_attentive_fp_is_explained_by_methods_that_mask_and_gate_messages() -> None:
    model, data = fingerprint()
    methods = ["gnn_explainer", GraphMask(epochs=2), "attention_gradient", "integrated_gradients"]
    result = attree.evaluate(model, data, [0, 1], methods, "removal")
    for scores in result.pair_scores.values():
        assert bool(scores.isfinite().all())
        assert float(scores.abs().max()) > 0


@pytest.mark.filterwarnings("ignore")
def test_attentive_fp_is_walked_through_its_layers_of_atoms() -> None:
    model, data = fingerprint(3)
    subject = Subject.of_data(model, data, readout="sum")
    graph_, attention = subject.graph, subject.attention
    assert len(attention.weights) == 3
    assert list(attention.layout.calls) == [0, 1, 2]
    alphas = [
        torch.zeros(graph_.num_nodes, graph_.num_nodes, dtype=torch.float64).index_put(
            (graph_.destination, graph_.source), weights.mean(dim=1), accumulate=True
        )
        for weights in attention.weights
    ]
    r = (data.batch == 1).double()
    expected = torch.zeros(graph_.num_edges, dtype=torch.float64)
    for alpha in reversed(alphas):
        expected += r[graph_.destination] * alpha[graph_.destination, graph_.source]
        r = r @ alpha
    scores = GAtt().attribute(subject, [1])
    found = torch.zeros_like(expected).index_add_(0, scores.edges, scores.scores.double())
    torch.testing.assert_close(found, expected)


def test_the_engine_for_graphs_that_are_pooled_runs_on_copies_and_for_nodes_on_the_whole_graph() -> None:
    for name, way in {"TopK, GCN": "copies", "GraphUNet": "whole graph"}.items():
        model, data = made(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = Reducer(Subject.of_data(model, data)).record().engine
        assert way in engine.way
