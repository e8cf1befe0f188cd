"""The statistics that the paper's recipe gives on Cora (the paper prints 0.8468 for GAT, its protocol is `weight`)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attree.attribution import make_methods, subgraph_pairs
from attree.data import Planetoid
from attree.faithfulness import resolve_protocol
from attree.metrics import faithfulness_statistics
from attree.models import GAT
from helpers.reducers import any_pass


@pytest.mark.needs("planetoid/Cora/raw")
def test_cora_as_in_the_paper(data_root: str) -> None:
    torch.manual_seed(0)
    data = Planetoid("Cora", root=data_root).graph
    net = GAT(data.num_features, 7, hidden_channels=64, num_layers=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()

    reducer = any_pass(net, data.x, data.edge_index)
    targets = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))[:100]
    pairs = subgraph_pairs(reducer.attention.graph, targets, num_layers=2)
    reduction = reducer.reduce(pairs, resolve_protocol("authors", net))
    values = {
        name: faithfulness_statistics(
            method.score_pairs(reducer.attention, pairs), reduction.delta_pc, reduction.delta_ne, reduction.changed
        )
        for name, method in make_methods(["gatt", "avgatt", "random"]).items()
    }
    assert 0.75 < float(values["gatt"]["pc_pearson"]) < 0.92
    assert float(values["avgatt"]["pc_pearson"]) < 0.35
    assert abs(float(values["random"]["pc_pearson"])) < 0.05
    assert float(values["gatt"]["p_auroc"]) > 0.95
