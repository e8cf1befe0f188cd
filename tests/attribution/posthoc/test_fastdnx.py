"""FastDnX against its formulas written with dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv

from attree.attribution import FastDnX, subject_pairs
from attree.errors import AttreeError
from attree.models import GAT
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize

X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def dense_adjacency(edges: Tensor) -> Tensor:
    """Row v: the edges that enter v and its self-loop, over the square roots of both entering degrees."""
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    for source, destination in edges.T.tolist():
        if source != destination:
            matrix[destination, source] += 1
    matrix += torch.eye(NODES, dtype=torch.float64)
    degree = matrix.sum(dim=1)
    return matrix / degree.sqrt().unsqueeze(0) / degree.sqrt().unsqueeze(1)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_scores_are_those_of_dense_matrices(num_layers: int) -> None:
    edges = messy_graph(0)
    subject = Subject.of(randomize(GAT(5, 3, 4, num_layers), 1).double(), X, edges)
    method = FastDnX(epochs=20)
    pairs = subject_pairs(subject)
    scores = method.score_pairs(subject, pairs)
    fitted = method.fitted(subject)
    power = torch.linalg.matrix_power(dense_adjacency(edges), num_layers)
    assert torch.allclose(fitted.outputs, power @ fitted.values)
    nodes = power * (fitted.outputs @ fitted.values.T)
    assert torch.allclose(nodes.sum(dim=1), fitted.outputs.square().sum(dim=1))
    owner = pairs.targets[pairs.owner]
    source, destination = pairs.graph.edge_index[:, pairs.edges]
    assert torch.allclose(scores, nodes[owner, source] + nodes[owner, destination])


def test_the_surrogate_learns_the_model() -> None:
    """A model that is linear in its neighbourhood is distilled exactly."""
    edges = messy_graph(0)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = torch.linalg.matrix_power(dense_adjacency(edges), 2) @ X @ weight
    method = FastDnX(train_share=1.0, epochs=3000, lr=0.05, weight_decay=0.0)
    subject = Subject.of(GAT(5, 3, 4).double(), X, edges)
    attention = subject.attention
    object.__setattr__(attention, "output", logits)
    fitted = method.fitted(subject)
    shifted = fitted.outputs - fitted.outputs.mean(dim=1, keepdim=True)
    # Only differences of logits are seen, and a bias is free.
    wanted = logits - logits.mean(dim=1, keepdim=True)
    assert torch.allclose(shifted - shifted.mean(dim=0), wanted - wanted.mean(dim=0), atol=0.05)


def test_refusals() -> None:
    class GraphNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(5, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return torch.zeros(int(batch.max()) + 1, 3).double().index_add(0, batch, self.conv(x, edge_index))

    batch = Batch.from_data_list([Data(x=X, edge_index=messy_graph(k)) for k in range(2)])
    with pytest.raises(AttreeError, match="outputs of nodes, but got one with outputs of graphs"):
        FastDnX().attribute(Subject.of_data(GraphNet().double(), batch), 0)
