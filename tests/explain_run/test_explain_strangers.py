"""`attree explain` explains runs of anyone's module on anyone's data module, if their classes are allowed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import attree
from helpers.cli import command
from helpers.plain_projects import EncoderAndHead, PlainGraphs, PlainNodes, TakesData, node_graph, small_graphs


class NodesOfOneGraph(LightningDataModule):
    """As people write it: the graph is made in `setup`, and is the only batch."""

    def setup(self, stage: str) -> None:
        self.graph = node_graph()

    def train_dataloader(self) -> DataLoader:
        return DataLoader([self.graph], batch_size=1)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([self.graph], batch_size=1)


class ManyGraphs(LightningDataModule):
    """Graphs in two lists."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(small_graphs()[:16], batch_size=4)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(small_graphs()[16:], batch_size=4)


def finished_run(folder: Path, module: type[LightningModule], data: type[LightningDataModule]) -> LightningModule:
    """What `attree fit` leaves of a run, with weights that nobody trained."""
    torch.manual_seed(3)
    made = module().eval()
    state = {"state_dict": made.state_dict(), "epoch": 1, "global_step": 1, "pytorch-lightning_version": "2.5.5"}
    (folder / "checkpoints").mkdir(parents=True)
    torch.save(state, folder / "checkpoints" / "last.ckpt")
    config = {"data": {"class_path": path_of(data)}, "model": {"class_path": path_of(module)}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return made


def path_of(one: type) -> str:
    return f"{one.__module__}.{one.__name__}"


def explain(folder: Path, module: type, data: type, *options: str) -> pd.DataFrame:
    allowed = f"--allow={path_of(module)},{path_of(data)}"
    given = ("--methods=gatt", "--protocols=removal", "--figures=0", "--show=0")
    assert command("explain", str(folder), allowed, *given, *options) == 0
    return pd.read_parquet(folder / "explain" / "scores")


@pytest.mark.parametrize("module", [PlainNodes, EncoderAndHead, TakesData])
def test_nodes_of_a_strangers_run(module: type[LightningModule], tmp_path: Path) -> None:
    made = finished_run(tmp_path, module, NodesOfOneGraph)
    table = explain(tmp_path, module, NodesOfOneGraph, "--targets=3,7")
    expected = attree.evaluate(made, node_graph(), targets=[3, 7], methods=["gatt"], protocols=["removal"])
    for column, values in (
        ("gatt", expected.pair_scores["gatt"]),
        ("dpc_removal", expected.reductions["removal"].delta_pc),
    ):
        torch.testing.assert_close(torch.tensor(table[column].to_numpy()), values)
    assert sorted(set(table["target"])) == [3, 7]


def test_misclassified_nodes_of_a_strangers_run(tmp_path: Path) -> None:
    made = finished_run(tmp_path, TakesData, NodesOfOneGraph)
    graph = node_graph()
    with torch.no_grad():
        wrong = (made(graph).argmax(-1) != graph.y).nonzero().view(-1).tolist()
    assert sorted(set(explain(tmp_path, TakesData, NodesOfOneGraph, "--targets=errors")["target"])) == wrong


def test_graphs_of_a_strangers_run(tmp_path: Path) -> None:
    made = finished_run(tmp_path, PlainGraphs, ManyGraphs)
    table = explain(tmp_path, PlainGraphs, ManyGraphs, "--targets=2,20")  # the second is the fifth of the last list
    for target in (2, 20):
        graph: Data = small_graphs()[target]
        expected = attree.evaluate(made, Batch.from_data_list([graph]), methods=["gatt"], protocols=["removal"])
        rows = table[table["target"] == target]
        torch.testing.assert_close(torch.tensor(rows["gatt"].to_numpy()), expected.pair_scores["gatt"])
        assert rows["source"].max() < int(graph.num_nodes or 0)


def test_a_class_that_is_not_allowed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path, PlainNodes, NodesOfOneGraph)
    assert command("explain", str(tmp_path), f"--allow={path_of(PlainNodes)}") == 2
    assert f"it names {path_of(NodesOfOneGraph)}" in capsys.readouterr().err
