from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from attree.data import Infection
from attree.models import GAT, NodeClassifier
from attree.models.scalars import FitScalars


class Notebook(Logger):
    """Keeps what it is told to log, and counts its saves."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.saves = 0

    name = version = "notebook"

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def save(self) -> None:
        self.saves += 1


def fit(model: NodeClassifier, epochs: int, folder: Path, **arguments: Any) -> None:
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = Infection(num_nodes=60, edge_probability=0.05, num_layers=2, num_val=10)
    Trainer(**quiet | arguments, max_epochs=epochs, accelerator="cpu", default_root_dir=folder).fit(model, data)


def saved_in_four_epochs(save_every: float, folder: Path) -> Notebook:
    torch.manual_seed(0)
    model, logger = NodeClassifier(GAT(2, 4)), Notebook()
    model.scalars = FitScalars(save_every=save_every)
    fit(model, 4, folder, logger=logger)
    return logger


def test_loggers_get_an_epoch_at_once_and_save_as_often_as_asked(tmp_path: Path) -> None:
    always, once = saved_in_four_epochs(0.0, tmp_path), saved_in_four_epochs(1e9, tmp_path)
    assert always.rows == once.rows
    assert [step for step, _ in once.rows] == [0, 1, 2, 3]
    for epoch, (_, row) in enumerate(once.rows):
        assert set(row) == {"train/loss", "val/loss", "val/acc", "epoch"}
        assert row["epoch"] == epoch
    assert always.saves - once.saves == 3  # Lightning saves too when a fit begins and ends


def test_without_validation_the_training_loss_is_logged_all_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    logger = Notebook()
    fit(NodeClassifier(GAT(2, 4)), 2, tmp_path, logger=logger, limit_val_batches=0)
    assert [(step, set(row)) for step, row in logger.rows] == [(epoch, {"train/loss", "epoch"}) for epoch in (0, 1)]


class FirstEpochOnDisk(Callback):
    """Reads, from within the second epoch, which scalars TensorBoard would find on disk."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1:
            (path,) = Path(trainer.loggers[0].log_dir or "").glob("events.*")
            events = EventFileLoader(str(path)).Load()
            self.names = {value.tag for event in events for value in event.summary.value}


def test_the_first_epoch_is_on_disk_before_the_second_ends(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reader = FirstEpochOnDisk()
    logger = TensorBoardLogger(tmp_path, default_hp_metric=False)
    fit(NodeClassifier(GAT(2, 4)), 2, tmp_path, logger=logger, callbacks=[reader])
    assert {"train/loss", "val/loss", "val/acc"} <= reader.names


class Breaks(Callback):
    """Ends a fit in its first validation after training."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            raise RuntimeError("broken")


def test_a_loss_that_a_broken_fit_left_is_not_logged_by_the_next(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, logger = NodeClassifier(GAT(2, 4)), Notebook()
    with pytest.raises(RuntimeError, match="broken"):
        fit(model, 1, tmp_path, logger=False, callbacks=[Breaks()])
    model.on_train_epoch_start()  # as the next fit begins
    trainer = Trainer(logger=logger, accelerator="cpu", default_root_dir=tmp_path)
    model.scalars.log(trainer)
    assert logger.rows == []
