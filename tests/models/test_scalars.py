from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from attree.data import Infection
from attree.models import GAT, NodeClassifier
from attree.models.scalars import TimedSaves


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


def saved_in_four_epochs(every: float, folder: Path, **arguments: Any) -> Notebook:
    torch.manual_seed(0)
    model, logger = NodeClassifier(GAT(2, 4)), Notebook()
    model.saves = TimedSaves(every)
    fit(model, 4, folder, logger=logger, **arguments)
    return logger


def test_loggers_save_as_often_as_asked(tmp_path: Path) -> None:
    always, seldom = saved_in_four_epochs(0.0, tmp_path), saved_in_four_epochs(1e9, tmp_path)
    assert always.rows == seldom.rows
    assert {name for _, row in seldom.rows for name in row} == {"train/loss", "val/loss", "val/acc", "epoch"}
    assert [step for step, row in seldom.rows if "val/acc" in row] == [0, 1, 2, 3]
    assert always.saves - seldom.saves == 2  # the first epoch and the last are saved whatever was asked


def test_a_time_of_another_machines_clock_is_no_reason_to_wait(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, logger = NodeClassifier(GAT(2, 4)), Notebook()
    model.saves = TimedSaves(1e9)
    model.saves._saved = time.monotonic() + 1e6
    fit(model, 4, tmp_path, logger=logger)
    assert logger.saves == saved_in_four_epochs(1e9, tmp_path).saves


class RowsAtTheEnd(Callback):
    """Counts the rows of a CSV file as training ends."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        lines = Path(trainer.loggers[0].log_dir or "", "metrics.csv").read_text().splitlines()
        self.epochs = {line.split(",")[lines[0].split(",").index("epoch")] for line in lines[1:]}


@pytest.mark.parametrize(
    ("arguments", "last"),
    [({}, 5), ({"max_steps": 3}, 2), ({"callbacks": [EarlyStopping("val/acc", 1e9, patience=2)]}, 2)],
)
def test_all_is_on_disk_when_training_ends(arguments: dict[str, Any], last: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    reader = RowsAtTheEnd()
    callbacks = [*arguments.pop("callbacks", []), reader]
    fit(NodeClassifier(GAT(2, 4)), 6, tmp_path, logger=CSVLogger(tmp_path), callbacks=callbacks, **arguments)
    assert reader.epochs == {str(epoch) for epoch in range(last + 1)}


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


def test_the_loss_of_an_epoch_whose_validation_fails_is_logged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    logger = Notebook()
    with pytest.raises(RuntimeError, match="broken"):
        fit(NodeClassifier(GAT(2, 4)), 1, tmp_path, logger=logger, callbacks=[Breaks()])
    assert [set(row) for _, row in logger.rows] == [{"train/loss", "epoch"}]


class EndsOnItsOwn(NodeClassifier):
    """A subclass whose hook leaves out its parent's."""

    def on_train_epoch_end(self) -> None:
        pass


def test_a_subclass_that_overrides_the_last_hook_loses_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    logger = Notebook()
    fit(EndsOnItsOwn(GAT(2, 4)), 3, tmp_path, logger=logger, limit_val_batches=0)
    assert [step for step, _ in logger.rows] == [0, 1, 2]
