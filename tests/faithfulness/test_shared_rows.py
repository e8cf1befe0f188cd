"""Copies that look up what they share have the effects of one plain pass of the model for each cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, TAGConv, global_mean_pool
from torch_geometric.utils import to_dense_adj, to_dense_batch

from attree.attribution import subject_pairs
from attree.faithfulness import PROTOCOLS, CopiesReducer, key_effects, node_effects, pair_effects
from attree.faithfulness.shared_rows import SHARES
from attree.subject import Subject
from attree.subject.facts import facts_of
from helpers.graph_transformers import CLASSES, GPS, IN, WIDTH, molecules, seeded

TOLERANCE = 2e-9  # effects are multiples of 1e-9

CUT: list[tuple[int, int, int] | None] = [None]
"""The graph, query and key (-1: all queries) that the models below mask; a way in for the reference."""


def cut_mask(mask: Tensor, heads: int) -> Tensor:
    """A mask [B, n, n] of numbers for every head, with the pair that the reference cuts."""
    if CUT[0] is not None:
        graph, query, key = CUT[0]
        mask = mask.clone()
        mask[graph, slice(None) if query < 0 else query, key] = -torch.inf
    return mask.repeat_interleave(heads, 0)


class Biased(nn.Module):
    """Attention over all nodes with biases along edges (as in Graphormer), and a layer along edges beside it."""

    def __init__(self, local: nn.Module, num_layers: int, batch_first: bool = True, biases: str = "edges") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(IN, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.local, self.biases = local, biases
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first) for _ in range(num_layers)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(num_layers)
        )
        self.bias = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x)
        for attention, mlp in zip(self.attention, self.mlps, strict=True):
            dense, mask = to_dense_batch(x, batch)
            count, n = dense.shape[:2]
            if self.biases == "edges":
                bias = 0.7 * to_dense_adj(edge_index, batch).to(x.dtype).transpose(1, 2)
            elif self.biases == "places":
                bias = self.bias[:n, :n].expand(count, n, n).to(x.dtype)
            else:
                bias = x.new_zeros(count, n, n)
            if self.biases != "none" or CUT[0] is not None:
                bias = bias.masked_fill(~mask.unsqueeze(1), -torch.inf)
                masks = {"attn_mask": cut_mask(bias, 2)}
            else:
                masks = {"key_padding_mask": ~mask}
            dense = dense if attention.batch_first else dense.transpose(0, 1)
            mixed = attention(dense, dense, dense, need_weights=False, **masks)[0]
            mixed = mixed if attention.batch_first else mixed.transpose(0, 1)
            x = x + mlp(mixed[mask] + F.relu(self.local(x, edge_index)))
        return global_mean_pool(self.last(x), batch)


MODELS = {
    "biases along edges": lambda: Biased(GCNConv(WIDTH, WIDTH), 2),
    "biases by place": lambda: Biased(GCNConv(WIDTH, WIDTH), 2, biases="places"),
    "batch second, 3 layers": lambda: Biased(GATConv(WIDTH, WIDTH), 3, batch_first=False, biases="none"),
    "two hops, 1 layer": lambda: Biased(TAGConv(WIDTH, WIDTH, K=2), 1, biases="none"),
}


def plain(batch: Batch) -> Data:
    return Data(x=batch.x, edge_index=batch.edge_index, batch=batch.batch, y=batch.y)


def probability(model: nn.Module, data: Data, graph: int, without: Tensor | None = None) -> Tensor:
    stays = torch.ones(data.num_edges, dtype=torch.bool) if without is None else ~without
    with torch.no_grad():
        return model(data.x, data.edge_index[:, stays], data.batch)[graph].softmax(-1)


def effect(before: Tensor, after: Tensor) -> float:
    return float((before - after)[before.argmax()])


def shares(subject: Subject) -> set[bool]:
    """Whether copies share rows, for all kinds of cuts that were measured."""
    return set(facts_of(subject.call)[SHARES].values())


@pytest.fixture(autouse=True)
def nothing_cut() -> None:
    CUT[0] = None


@pytest.mark.parametrize("name", MODELS)
def test_pairs_keys_and_nodes_are_those_of_a_mask(name: str) -> None:
    model, data = seeded(MODELS[name]()), plain(molecules(4, 3, 6))
    subject = Subject.of_data(model, data)
    pairs, keys, nodes = (measure(subject, [0, 2]) for measure in (pair_effects, key_effects, node_effects))
    assert shares(subject) == {True}
    assert len(pairs) == 4 * 4 + 6 * 6
    before = {graph: probability(model, data, graph) for graph in (0, 2)}
    first = {0: 0, 2: 7}
    expected: dict[str, list[float]] = {"pairs": [], "keys": [], "nodes": []}
    for query, key in zip(pairs.query.tolist(), pairs.node.tolist(), strict=True):
        graph = 0 if key < 4 else 2
        CUT[0] = graph, query - first[graph], key - first[graph]
        expected["pairs"].append(effect(before[graph], probability(model, data, graph)))
    for key in keys.node.tolist():
        graph = 0 if key < 4 else 2
        CUT[0] = graph, -1, key - first[graph]
        expected["keys"].append(effect(before[graph], probability(model, data, graph)))
        without = data.edge_index[0] == key
        expected["nodes"].append(effect(before[graph], probability(model, data, graph, without)))
    CUT[0] = None
    torch.testing.assert_close(pairs.delta_pc, torch.tensor(expected["pairs"]).double(), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(keys.delta_pc, torch.tensor(expected["keys"]).double(), atol=TOLERANCE, rtol=0)
    if isinstance(model.local, TAGConv):  # GAT and GCN add self-loops, which a node also loses
        torch.testing.assert_close(nodes.delta_pc, torch.tensor(expected["nodes"]).double(), atol=TOLERANCE, rtol=0)
    assert float(pairs.delta_pc.abs().max()) > 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_edges_are_those_of_the_data_without_them(name: str) -> None:
    model, data = seeded(MODELS[name]()), plain(molecules(4, 3, 6))
    subject = Subject.of_data(model, data)
    pairs = subject_pairs(subject, "all")
    effects = CopiesReducer(subject).record().reduce(pairs, PROTOCOLS["removal"]).delta_pc
    assert shares(subject) == {True}
    largest = 0.0
    for number, (owner, edge) in enumerate(zip(pairs.owner.tolist(), pairs.edges.tolist(), strict=True)):
        if edge >= subject.graph.num_proper_edges:
            continue
        without = subject.graph.position == edge
        expected = effect(probability(model, data, owner), probability(model, data, owner, without))
        assert float(effects[number]) == pytest.approx(expected, abs=TOLERANCE)
        largest = max(largest, abs(expected))
    assert largest > 1e-6


@pytest.mark.parametrize("protocol", ["removal", "weight"])
@pytest.mark.parametrize("local", ["gine", "gat", "gcn", "none"])
def test_shared_and_separate_copies_agree(local: str, protocol: str) -> None:
    model, batch = seeded(GPS(local, num_layers=3)), molecules(4, 3, 6)
    subject = Subject.of_data(model, batch)
    measures = (pair_effects, key_effects, node_effects)
    shared = [measure(subject, "all", protocol).delta_pc for measure in measures]
    assert shares(subject) == {True}
    assert len(facts_of(subject.call)[SHARES]) == 3
    facts_of(subject.call)[SHARES] = dict.fromkeys(facts_of(subject.call)[SHARES], False)
    separate = [measure(subject, "all", protocol).delta_pc for measure in measures]
    for one, other in zip(shared, separate, strict=True):
        torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)


def test_a_softmax_of_which_little_is_left_is_computed_from_its_scores() -> None:
    model, data = seeded(MODELS["biases by place"]()), plain(molecules(4, 6))
    with torch.no_grad():
        model.bias[:, 1] = 30.0  # nearly all weight is on place 1
        model.first.weight *= 20
    subject = Subject.of_data(model, data)
    keys = key_effects(subject, [1])
    assert shares(subject) == {True}
    before = probability(model, data, 1)
    for number, key in enumerate(keys.node.tolist()):
        CUT[0] = 1, -1, key - 4
        assert float(keys.delta_pc[number]) == pytest.approx(effect(before, probability(model, data, 1)), abs=TOLERANCE)


class Reading(nn.Module):
    """A model that uses the weights which attention returns, so that copies cannot do without them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(IN, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.local, self.attention = GCNConv(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = F.relu(self.local(self.first(x), edge_index))
        dense, mask = to_dense_batch(x, batch)
        mixed, weights = self.attention(dense, dense, dense, key_padding_mask=~mask)
        x = x + mixed[mask] * weights.shape[-1] ** 0.5
        return global_mean_pool(self.last(x), batch)


def test_a_model_that_reads_the_weights_has_copies_of_its_own() -> None:
    model, data = seeded(Reading()), plain(molecules(5, 5))
    subject = Subject.of_data(model, data)
    pairs = subject_pairs(subject, "all")
    effects = CopiesReducer(subject).record().reduce(pairs, PROTOCOLS["removal"]).delta_pc
    assert shares(subject) == {False}
    for number, (owner, edge) in enumerate(zip(pairs.owner.tolist(), pairs.edges.tolist(), strict=True)):
        if edge < subject.graph.num_proper_edges:
            without = subject.graph.position == edge
            expected = effect(probability(model, data, owner), probability(model, data, owner, without))
            assert float(effects[number]) == pytest.approx(expected, abs=TOLERANCE)
