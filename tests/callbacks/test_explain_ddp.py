"""Two processes must log what one does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import ExplainCallback, LastCheckpoint
from attree.data import Infection
from attree.models import GAT, NodeClassifier


def validate(devices: int, num_targets: int, folder: Path) -> dict[str, float]:
    seed_everything(0)
    data = Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)
    model = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2))
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp_spawn" if devices > 1 else "auto",
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        callbacks=[ExplainCallback(num_targets=num_targets, protocols=["weight", "removal"])],
    )
    (metrics,) = trainer.validate(model, datamodule=data, verbose=False)
    return {name: value for name, value in metrics.items() if name != "explain/seconds"}


@pytest.mark.parametrize("num_targets", [101, 1])
def test_two_processes_log_what_one_does(tmp_path: Path, num_targets: int) -> None:
    one, two = validate(1, num_targets, tmp_path), validate(2, num_targets, tmp_path)
    assert set(one) == set(two)
    assert sum(name.startswith("explain/") for name in one) == 3 * (2 * 8 + 1)
    for name, value in one.items():
        assert two[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name


def test_a_fit_of_two_processes_saves_what_one_does(tmp_path: Path) -> None:
    found = []
    for devices in (1, 2):
        seed_everything(0)
        data = Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)
        model = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2))
        folder = tmp_path / str(devices)
        Trainer(
            accelerator="cpu",
            devices=devices,
            strategy="ddp_spawn" if devices > 1 else "auto",
            max_epochs=3,
            logger=TensorBoardLogger(folder, name="", version="run", default_hp_metric=False),
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            callbacks=[ExplainCallback(num_targets=21, every_n_epochs=2, figures=0), LastCheckpoint(every_n_epochs=2)],
        ).fit(model, datamodule=data)
        assert (folder / "run" / "checkpoints" / "last.ckpt").is_file()
        assert (folder / "run" / "explanations" / "gatt.npz").is_file()
        found.append(json.loads((folder / "run" / "metrics.json").read_text()))
    one, two = found
    # Both processes train on the whole graph, so their averaged gradients are those of one.
    for name, value in one.items():
        if name.startswith("explain/") and name != "explain/seconds":
            assert two[name] == pytest.approx(value, abs=1e-5, nan_ok=True), name
