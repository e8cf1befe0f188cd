"""How often one evaluation runs the model on the whole graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import GATConv

import attree
from attree.models import GAT

NODES = 60


class Stranger(nn.Module):
    """Two layers as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(8, 8), GATConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize(
    ("model", "most"),
    [
        # The pass that the subject records, and the one that the exact engine records.
        (GAT(8, 3, num_layers=2), 2),
        (PyGGAT(8, 16, 2, out_channels=3, heads=2), 2),
        # Not known beforehand: which nodes the output reads, and what goes around each layer.
        (Stranger(), 5),
    ],
    ids=["attree", "pyg", "stranger"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_model_runs_on_the_whole_graph_a_few_times(model: nn.Module, most: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, 8, generator=generator)
    graph = Data(x=x, edge_index=torch.randint(0, NODES, (2, 2 * NODES), generator=generator))
    passes: list[int] = []

    def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passes.append((args[0] if args else kwargs["x"]).shape[0])

    model.eval()
    attree.evaluate(model, graph, num_targets=5, methods=["gatt"], protocols=["weight"])  # finds out what lasts
    model.register_forward_pre_hook(count, with_kwargs=True)
    attree.evaluate(model, graph, num_targets=5, methods=["gatt"], protocols=["weight"])
    assert 1 <= passes.count(NODES) <= most
