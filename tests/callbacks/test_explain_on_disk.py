"""ExplainCallback on a graph on disk logs the numbers of the same graph in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch_geometric.data import Data

from attree.callbacks import ExplainCallback
from attree.data import NodeDataModule, OnDisk, write_graph
from attree.models import GAT, NodeClassifier
from helpers.processes import WarmDDP
from helpers.time_limit import time_limit

NODES, WIDTH, CLASSES = 150, 5, 3
SAMPLING: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 32, "sampling_seed": 3}
METHODS = ("gatt", "uniform", "random", "occlusion")


def random_graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    part = torch.arange(NODES).remainder(3)
    return Data(
        x=torch.randn(NODES, WIDTH, generator=generator),
        edge_index=torch.randint(NODES, (2, 450), generator=generator),
        y=torch.randint(CLASSES, (NODES,), generator=generator),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(random_graph(), tmp_path_factory.mktemp("graphs") / "random").folder


def fitted(data: LightningDataModule, folder: Path, devices: int = 1, **options: Any) -> tuple[Trainer, Any]:
    seed_everything(0, verbose=False)
    callback = ExplainCallback(METHODS, num_targets=20, figures=0, **options)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=devices,
        strategy=WarmDDP() if devices > 1 else "auto",
        logger=TensorBoardLogger(folder, name="", version="run", default_hp_metric=False),
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with time_limit():
        trainer.fit(NodeClassifier(GAT(WIDTH, CLASSES, hidden_channels=8), lr=0.02), datamodule=data)
    return trainer, callback


def explained(trainer: Trainer) -> dict[str, float]:
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {name: value for name, value in metrics.items() if "explain/" in name and not name.endswith("seconds")}


@pytest.mark.parametrize("subset", ["all", "val"])
def test_a_fit_logs_what_it_logs_in_memory(folder: Path, tmp_path: Path, subset: Any) -> None:
    on_disk = OnDisk(str(folder), **SAMPLING)
    in_memory = NodeDataModule.from_data(on_disk.graph.to_data(), **SAMPLING)  # with edges in the same order
    memory, of_memory = fitted(in_memory, tmp_path / "memory", subset=subset)
    disk, of_disk = fitted(on_disk, tmp_path / "disk", subset=subset)
    assert torch.equal(of_disk.targets, of_memory.targets)
    assert len(explained(memory)) > 60
    assert explained(disk) == pytest.approx(explained(memory), abs=0, rel=0, nan_ok=True)
    assert str(of_disk.latest.intervals) == str(of_memory.latest.intervals)
    assert of_disk.latest.targets.tolist() == of_memory.targets.tolist()


def test_two_processes_log_what_they_log_in_memory(folder: Path, tmp_path: Path) -> None:
    on_disk = OnDisk(str(folder), **SAMPLING)
    in_memory = NodeDataModule.from_data(on_disk.graph.to_data(), **SAMPLING)
    memory, _ = fitted(in_memory, tmp_path / "memory", devices=2)
    disk, _ = fitted(on_disk, tmp_path / "disk", devices=2)
    assert explained(disk) == pytest.approx(explained(memory), abs=0, rel=0, nan_ok=True)
    logged = disk.callback_metrics
    assert logged["train/loss"] == memory.callback_metrics["train/loss"]
    assert logged["val/acc"] == memory.callback_metrics["val/acc"]
    assert float(logged["val/loss"]) == pytest.approx(float(memory.callback_metrics["val/loss"]), rel=1e-6)
