"""The paper's Table 2 from the authors' own weights and graphs, to all printed digits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attree.attention import Graph, capture_attention
from attree.attribution import make_methods, subgraph_pairs
from attree.data import BAShapes, Infection, NodeDataModule
from attree.errors import MissingDataError
from attree.metrics import TruthAUROC
from attree.paper.networks import load_authors_gat


@pytest.mark.needs("gatt_paper")
@pytest.mark.parametrize(
    ("dataset", "weights", "gatt", "avgatt", "accuracy"),
    [
        (Infection, "gat_infection_3layer.npz", "0.9976", "0.8786", 0.92),
        (BAShapes, "gat_ba_shapes_3layer.npz", "0.9591", "0.7977", 0.95),
    ],
)
def test_printed_numbers(
    data_root: str, dataset: type[NodeDataModule], weights: str, gatt: str, avgatt: str, accuracy: float
) -> None:
    data = dataset(source="authors", root=data_root)
    graph, truth = data.graph, data.truth
    net = load_authors_gat(Path(data_root, "gatt_paper", weights))
    with torch.no_grad():
        predicted = net(graph.x, graph.edge_index).argmax(dim=-1)
    assert float((predicted == graph.y).float().mean()) > accuracy

    looped = Graph(graph.edge_index, graph.num_nodes)
    attention = capture_attention(net, graph.x, graph.edge_index, graph=looped)
    pairs = subgraph_pairs(looped, truth.targets, num_layers=3)
    source, destination = looped.edge_index[:, pairs.edges]
    labels = truth.labels(pairs.owner, source, destination)
    printed = {}
    for name, method in make_methods(["gatt", "avgatt"]).items():
        printed[name] = f"{float(TruthAUROC()(method.score_pairs(attention, pairs), labels)):.4f}"
    assert printed == {"gatt": gatt, "avgatt": avgatt}


def test_absent_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"nowhere.npz does not exist. Set `path` to one of .* authors' weights"):
        load_authors_gat(tmp_path / "nowhere.npz")
