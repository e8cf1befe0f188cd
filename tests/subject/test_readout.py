"""The weights of nodes that are read from a model's forward pass, against pools written out graph by graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv
from torch_geometric.utils import scatter, to_dense_batch

import attree
from attree.attribution import GAtt
from attree.subject import Subject
from helpers.no_warnings import FOREIGN, no_warnings

BATCH = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double()
EDGES = torch.tensor([[0, 1, 2, 3, 5, 6, 7, 8, 5], [1, 2, 0, 4, 6, 7, 8, 5, 7]])
COUNT = torch.tensor([3.0, 3, 3, 2, 2, 4, 4, 4, 4]).double()
MEAN, SUM = 1 / COUNT, torch.ones(9).double()


class Pooled(nn.Module):
    """Two layers, something of each node, a pool, and a head."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], width: int = 5) -> None:
        super().__init__()
        self.first, self.second = GATConv(4, 4), GATConv(4, 5)
        self.pool, self.head = pool, nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 2))

    def rows(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return F.elu(self.second(F.elu(self.first(x, edge_index)), edge_index))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(self.pool(self.rows(x, edge_index), batch))


def by_hand_max(rows: Tensor, batch: Tensor) -> Tensor:
    weights = torch.zeros(len(rows), dtype=torch.float64)
    for graph in range(3):
        members = (batch == graph).nonzero().view(-1)
        for node in rows[members].argmax(dim=0).tolist():
            weights[members[node]] += 1 / rows.shape[1]
    return weights


GATE = nn.Linear(5, 1).double()


def by_hand_attention(rows: Tensor, batch: Tensor) -> Tensor:
    raised = GATE(rows).view(-1).exp()
    return torch.stack([raised[node] / raised[batch == batch[node]].sum() for node in range(len(rows))])


def by_hand_softmax(rows: Tensor, batch: Tensor) -> Tensor:
    raised = rows.exp()
    return torch.stack([raised[node] / raised[batch == batch[node]].sum(0) for node in range(len(rows))]).mean(1)


def manual_mean(rows: Tensor, batch: Tensor) -> Tensor:
    return rows.new_zeros(3, rows.shape[1]).index_add_(0, batch, rows) / batch.bincount().unsqueeze(1)


def sigmoid_gate(rows: Tensor, batch: Tensor) -> Tensor:
    return pyg.global_add_pool(GATE(rows).sigmoid() * rows, batch)


CASES = {
    "sum": (pyg.global_add_pool, lambda rows, batch: SUM),
    "mean": (pyg.global_mean_pool, lambda rows, batch: MEAN),
    "max": (pyg.global_max_pool, by_hand_max),
    "scatter": (lambda rows, batch: scatter(rows, batch, 0, reduce="mean"), lambda rows, batch: MEAN),
    "index_add": (manual_mean, lambda rows, batch: MEAN),
    "module": (pyg.MeanAggregation(), lambda rows, batch: MEAN),
    "attention": (pyg.AttentionalAggregation(GATE), by_hand_attention),
    "softmax": (pyg.SoftmaxAggregation(), by_hand_softmax),
    "gate": (sigmoid_gate, lambda rows, batch: GATE(rows).sigmoid().view(-1)),
    "mean and max": (
        lambda rows, batch: torch.cat([pyg.global_mean_pool(rows, batch), pyg.global_max_pool(rows, batch)], 1),
        lambda rows, batch: (MEAN + by_hand_max(rows, batch)) / 2,
    ),
    "norm over graphs before a sum": (
        lambda rows, batch: pyg.global_add_pool(rows - pyg.global_mean_pool(rows, batch)[batch], batch),
        lambda rows, batch: SUM,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error", FOREIGN)
def test_weights_of_nodes(name: str) -> None:
    torch.manual_seed(0)
    pool, expected = CASES[name]
    model = Pooled(pool, 10 if "and" in name else 5).double().eval()
    subject = Subject.of(model, X, EDGES, BATCH)
    weights = expected(model.rows(X, EDGES), BATCH).detach()
    torch.testing.assert_close(subject.node_weights, weights)
    # GAtt of a graph is that of its nodes, weighted so.
    nodes = GAtt().attribute(subject.attention)
    graphs = GAtt().attribute(subject)
    for graph in range(3):
        members = (graph == BATCH).nonzero().view(-1).tolist()
        by_nodes = sum(weights[node] * nodes.dense(node) for node in members)
        torch.testing.assert_close(graphs.dense(graph), by_nodes)


def test_one_graph_without_a_batch() -> None:
    torch.manual_seed(0)
    for pool, expected in (
        (lambda rows, _: rows.mean(dim=0, keepdim=True), torch.full((3,), 1 / 3)),
        (lambda rows, _: rows.sum(0).unsqueeze(0), torch.ones(3)),
        (lambda rows, _: rows.sum(0, keepdim=True) / len(rows), torch.full((3,), 1 / 3)),
        (lambda rows, _: pyg.global_mean_pool(rows, None), torch.full((3,), 1 / 3)),
        (lambda rows, batch: pyg.global_mean_pool(rows, batch), torch.full((3,), 1 / 3)),
    ):
        subject = Subject.of(Pooled(pool).double(), X[:3], EDGES[:, :3], BATCH[:3])
        torch.testing.assert_close(subject.node_weights, expected.double())


@pytest.mark.parametrize(
    "pool",
    [
        lambda rows, batch: to_dense_batch(rows, batch)[0].amax(dim=1),
        lambda rows, batch: pyg.global_mean_pool(rows, batch) + rows[[0, 3, 5]],
        lambda rows, batch: rows.new_zeros(3, 5).index_add_(0, batch.flip(0), rows),
    ],
    ids=["dense", "roots as well", "another assignment"],
)
def test_what_cannot_be_read_is_said(pool: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.warns(UserWarning, match="Argument `readout` sets it"):
        weights = Subject.of(Pooled(pool).double(), X, EDGES, BATCH).node_weights
    torch.testing.assert_close(weights, SUM)
    with no_warnings():
        said = Subject.of(Pooled(pool).double(), X, EDGES, BATCH, readout="mean").node_weights
    torch.testing.assert_close(said, MEAN)


def test_what_cannot_be_read_is_said_once_a_call() -> None:
    model = Pooled(lambda rows, batch: to_dense_batch(rows, batch)[0].amax(dim=1))
    graphs = [Data(X[:3].float(), EDGES[:, (EDGES < 3).all(dim=0)]) for _ in range(3)]
    for call in (lambda: attree.evaluate(model, graphs), lambda: attree.explain(model, graphs, 1)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call()
        assert sum("Argument `readout` sets it" in str(warning.message) for warning in said) == 1


def test_evaluate_reads_the_pool() -> None:
    """A mean is not a sum: graphs of different sizes are pooled in one statistic."""
    torch.manual_seed(0)
    model = Pooled(pyg.global_mean_pool).double()
    graphs = [
        Data(X[graph == BATCH], EDGES[:, BATCH[EDGES[0]] == graph] - int((graph > BATCH).sum())) for graph in range(3)
    ]
    read, said, other = (
        attree.evaluate(model, Batch.from_data_list(graphs), "all", ["gatt"], ["weight"], readout=readout)
        for readout in (None, "mean", "sum")
    )
    name = "explain/gatt/weight/pc_pearson"
    assert read.metrics[name] == pytest.approx(said.metrics[name])
    assert read.metrics[name] != pytest.approx(other.metrics[name])
