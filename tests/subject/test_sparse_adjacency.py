"""A model that takes a sparse adjacency matrix is explained on the list of its edges, if it returns the same for it."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
import torch_geometric
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import attree
from attree.defaults import RESOLUTION
from attree.errors import AttreeError
from attree.subject import Subject

NODES, CHANNELS = 14, 6
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(NODES, CHANNELS, generator=GENERATOR).double()
EDGES = torch.randint(0, NODES, (2, 40), generator=GENERATOR)
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
EDGES = EDGES[:, torch.randperm(EDGES.shape[1], generator=GENERATOR)]


def adjacency(edges: Tensor, layout: torch.layout) -> Tensor:
    matrix = torch.zeros(NODES, NODES).double()
    matrix[edges[1], edges[0]] = 1
    return matrix.to_sparse(layout=layout)


class Net(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.first, self.second = layer(CHANNELS, CHANNELS), layer(CHANNELS, 3)

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return self.second(self.first(x, adj_t).relu(), adj_t)


class ByProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GATConv(CHANNELS, CHANNELS), nn.Linear(CHANNELS, 3).double()

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return self.head(self.conv(adj_t @ x, adj_t))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.parametrize("layer", [GATConv, GCNConv, SAGEConv])
@pytest.mark.parametrize("has_list", [False, True])
def test_removal_deletes_the_entry_of_the_matrix(layer: Any, layout: torch.layout, has_list: bool) -> None:
    torch.manual_seed(0)
    model = Net(layer).double().eval()
    data = Data(X, EDGES if has_list else None, adj_t=adjacency(EDGES, layout))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(model, data, targets=[1, 4], protocols=["removal"], methods=["occlusion"])
    pairs, sizes = result.pairs, []
    edges = pairs.graph.original_edge_index
    assert torch.equal(edges, EDGES) if has_list else edges.shape == EDGES.shape
    with torch.no_grad():
        before = model(X, data.adj_t).softmax(-1)
        for owner, edge, effect in zip(
            pairs.owner.tolist(), pairs.edges.tolist(), result.reductions["removal"].delta_pc.tolist(), strict=True
        ):
            if edge < EDGES.shape[1]:
                target = int(pairs.targets[owner])
                keep = torch.arange(EDGES.shape[1]) != edge
                after = model(X, adjacency(edges[:, keep], layout)).softmax(-1)
                expected = float((before - after)[target, before[target].argmax()])
                assert effect == pytest.approx(expected, abs=RESOLUTION)
                sizes.append(abs(expected))
    assert max(sizes) > 1e-3


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_a_list_cannot_replace_is_refused() -> None:
    with pytest.raises(AttreeError, match=r"`adj_t` is a sparse matrix.*`data.edge_index`"):
        Subject.of_data(ByProduct().double(), Data(X, adj_t=adjacency(EDGES, torch.sparse_csr)))
    weighted = adjacency(EDGES, torch.sparse_csr) * 0.5
    with pytest.raises(AttreeError, match=r"sparse matrix.*`data.edge_weight = .*\[1\]`"):
        Subject.of_data(Net(GCNConv).double(), Data(X, adj_t=weighted))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_way_out_for_a_matrix_with_values_keeps_them() -> None:
    class Weighted(Net):
        def forward(self, x: Tensor, adj_t: Tensor, edge_weight: Tensor | None = None) -> Tensor:
            return self.second(self.first(x, adj_t, edge_weight).relu(), adj_t, edge_weight)

    torch.manual_seed(0)
    model, data = Weighted(GCNConv).double().eval(), Data(X, adj_t=adjacency(EDGES, torch.sparse_csr) * 0.5)
    with pytest.raises(AttreeError) as refusal:
        Subject.of_data(model, data)
    lines = re.findall(r"`(data\.[^`]*|call=[^`]*)`", str(refusal.value))
    scope: dict[str, Any] = {"data": data, "torch_geometric": torch_geometric}
    for line in lines:
        exec(line, scope)
    subject = Subject.of_data(model, data, call=scope["call"])
    torch.testing.assert_close(subject.output, model(X, data.adj_t).detach())
