"""What a newcomer wants first, each in at most five lines: see the comments for the lines that count."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT
from torch_geometric.utils import from_networkx

import attree


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 60, (2, 200), generator=generator)
    y = torch.randint(0, 3, (60,), generator=generator)
    return Data(x=torch.randn(60, 8, generator=generator), edge_index=edge_index, y=y)


@pytest.fixture(scope="module")
def model() -> GAT:
    torch.manual_seed(0)
    return GAT(8, 16, 2, out_channels=3).eval()


def test_node_42_of_a_pt_file_as_a_picture(model: GAT, data: Data, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "model.pt")
    own = GAT(8, 16, 2, out_channels=3)
    own.load_state_dict(torch.load(tmp_path / "model.pt"))
    attree.explain(own, data, 42).plot().savefig(tmp_path / "42.png")
    assert (tmp_path / "42.png").read_bytes()[:4] == b"\x89PNG"


def test_own_data_from_csv_and_networkx(model: GAT, data: Data, tmp_path: Path) -> None:
    pd.DataFrame(data.edge_index.T.numpy(), columns=["source", "target"]).to_csv(tmp_path / "edges.csv", index=False)
    edges = pd.read_csv(tmp_path / "edges.csv")
    own = Data(x=data.x, edge_index=torch.tensor(edges.to_numpy()).T.contiguous())
    by_csv = attree.explain(model, own, 42).to_pandas()
    drawn = nx.MultiDiGraph()
    drawn.add_nodes_from(range(60))
    drawn.add_edges_from(data.edge_index.T.tolist())
    own = from_networkx(drawn)
    own.x = data.x
    by_networkx = attree.explain(model, own, 42).to_pandas()
    key = ["source", "destination"]
    first, second = (table.groupby(key)["effect"].sum() for table in (by_csv, by_networkx))
    assert first.to_dict() == pytest.approx(second.to_dict(), abs=1e-6)


def test_export_to_networkx_graphml_and_csv(model: GAT, data: Data, tmp_path: Path) -> None:
    explanation = attree.explain(model, data, 42)
    graph = explanation.to_networkx()
    explanation.to_graphml(tmp_path / "42.graphml")
    explanation.to_pandas().to_csv(tmp_path / "42.csv", index=False)
    assert nx.read_graphml(tmp_path / "42.graphml").number_of_edges() == graph.number_of_edges() > 0
    assert len(pd.read_csv(tmp_path / "42.csv")) == graph.number_of_edges()


def test_learned_against_uniform_attention_with_an_interval(model: GAT, data: Data) -> None:
    result = attree.evaluate(model, data, num_targets=30, methods=["gatt", "uniform"])
    low, high = result.interval("gatt", "removal", "pc_pearson")
    assert low <= result.metrics["explain/gatt/removal/pc_pearson"] <= high
    assert "uniform" in str(result).lower()


def test_a_misclassified_node(model: GAT, data: Data) -> None:
    wrong = (model(data.x, data.edge_index).argmax(-1) != data.y).nonzero().view(-1)
    explanation = attree.explain(model, data, int(wrong[0]))
    assert explanation.predicted != explanation.true_class
    assert f"truly class {explanation.true_class}" in explanation.sentence
