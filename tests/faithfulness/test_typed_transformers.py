"""A network that attends over the nodes of all types: effects of edges are exact, and those of nodes are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

import attree
from attree.errors import UnsupportedModelError
from attree.faithfulness import key_effects, node_effects, pair_effects
from attree.subject import Subject

SIZES = {"author": 5, "paper": 4}
EDGES = {
    ("author", "writes", "paper"): torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]]),
    ("paper", "by", "author"): torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 0]]),
}


class Net(nn.Module):
    """Two layers of relations, and attention over the nodes of both types between them."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.first = nn.ModuleDict({kind: nn.Linear(4, 8) for kind in SIZES})
        layer = (lambda: GATConv((8, 8), 8, add_self_loops=False)) if attends else (lambda: SAGEConv((8, 8), 8))
        self.convs = nn.ModuleList(HeteroConv({relation: layer() for relation in EDGES}) for _ in range(2))
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        x = {kind: self.first[kind](rows) for kind, rows in x_dict.items()}
        x = {kind: rows.relu() for kind, rows in self.convs[0](x, edge_index_dict).items()}
        z = torch.cat([x[kind] for kind in SIZES]).unsqueeze(0)
        z = z + self.attention(z, z, z, need_weights=False)[0]
        x = dict(zip(SIZES, z[0].split([x[kind].shape[0] for kind in SIZES]), strict=True))
        return self.last(self.convs[1](x, edge_index_dict)["author"] + x["author"])


def graph() -> HeteroData:
    torch.manual_seed(0)
    data = HeteroData()
    for kind, size in SIZES.items():
        data[kind].x = torch.randn(size, 4, dtype=torch.float64)
    for relation, ends in EDGES.items():
        data[relation].edge_index = ends
    return data


@pytest.mark.filterwarnings("ignore:Edges of the graph")
@pytest.mark.parametrize("attends", [True, False], ids=["GAT", "SAGE"])
def test_effects_of_edges_are_those_of_the_data_without_them(attends: bool) -> None:
    data = graph()
    model = Net(attends).double().eval()
    with pytest.warns(UserWarning, match="attention over all nodes"):
        table = attree.explain(model, data, 0).to_pandas()
    shift = {"author": 0, "paper": SIZES["author"]}
    effects = {(row.source, row.destination): row.effect for row in table.itertuples()}
    with torch.no_grad():
        before = model(data.x_dict, data.edge_index_dict)[0].softmax(-1)
        for relation, ends in EDGES.items():
            for edge in range(ends.shape[1]):
                stays = torch.arange(ends.shape[1]) != edge
                after = model(data.x_dict, {**data.edge_index_dict, relation: ends[:, stays]})[0].softmax(-1)
                source, destination = ends[0, edge] + shift[relation[0]], ends[1, edge] + shift[relation[2]]
                expected = float((before - after)[before.argmax()])
                assert effects[int(source), int(destination)] == pytest.approx(expected, abs=2e-9)


@pytest.mark.parametrize("measure", [node_effects, key_effects, pair_effects])
def test_effects_of_nodes_are_refused(measure: Callable[..., object]) -> None:
    subject = Subject.of_data(Net(True).double().eval(), graph())
    with pytest.raises(UnsupportedModelError, match="several types and `attention`"):
        measure(subject, [0])
