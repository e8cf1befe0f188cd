"""Heterogeneous graphs: methods that copy neighbourhoods refuse them by name, methods that follow attention do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv

from attree.attribution import METHODS, strongest_paths
from attree.errors import UnsupportedModelError
from attree.subject import Subject

TO, BACK = ("a", "to", "b"), ("b", "to", "a")


class Net(nn.Module):
    """Two layers of attention between two types of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HeteroConv({kind: GATConv((4, 4), 4, add_self_loops=False) for kind in (TO, BACK)}) for _ in range(2)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return x_dict["a"]


@pytest.fixture(scope="module")
def subject() -> Subject:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.eye(4), torch.eye(4)[:3]
    data[TO].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]])
    data[BACK].edge_index = torch.tensor([[0, 1, 2, 0], [0, 1, 2, 3]])
    return Subject.of_data(Net().eval(), data)


@pytest.mark.parametrize(
    "name", ["attention_gradient", "saliency", "guided_backprop", "gnn_explainer", "pg_explainer", "fastdnx"]
)
def test_refused_by_name(subject: Subject, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{METHODS[name].label}.*node types a, b"):
        METHODS[name]().attribute(subject, [0])


def test_paths_go_through_types(subject: Subject) -> None:
    # Nodes of type b are numbered after the four of type a.
    found = {path.nodes for path in strongest_paths(subject, 3)}
    assert found == {(3, 4, 0), (3, 4, 1)}
