"""The table of `attree explain` calls an edge what the sentence of `attree.explain` calls it."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

import attree
from attree.explain_run.summary import top_edges_table
from attree.models import GAT


def test_a_self_loop_has_one_name_also_where_nodes_share_theirs() -> None:
    torch.manual_seed(0)
    model = GAT(3, 2, num_layers=1, hidden_channels=4).eval()
    data = Data(torch.randn(3, 3), torch.tensor([[0, 1], [2, 2]]))
    for names in (None, ["C", "C", "C"]):
        data.node_names = names
        (table,) = top_edges_table(attree.evaluate(model, data, [2], ["occlusion"], "removal"), [0])
        printed = list(table.columns[0].cells)
        assert sorted(printed) == sorted(edge.name for edge in attree.explain(model, data, 2).edges)
        assert sum(name.startswith("self-loop of ") for name in printed) == data.num_nodes
