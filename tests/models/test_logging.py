"""What the modules log is what Lightning logs, also in subclasses; checkpoints load without arguments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGGAT

from attree.data import Infection
from attree.errors import ArgumentError
from attree.models import GAT, Classifier, GATv2, GraphClassifier, NodeClassifier, SuperGAT
from helpers.small_fits import curves


class Notebook(Logger):
    """Keeps what it is told to log."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    name = version = "notebook"

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


def fit(model: NodeClassifier, epochs: int, folder: Path, **arguments: Any) -> None:
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = Infection(num_nodes=60, edge_probability=0.05, num_layers=2, num_val=10)
    Trainer(**quiet | arguments, max_epochs=epochs, accelerator="cpu", default_root_dir=folder).fit(model, data)


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


class OwnHooks(NodeClassifier):
    """A subclass whose hooks leave out its parent's."""

    def on_train_epoch_end(self) -> None:
        pass

    def on_validation_epoch_start(self) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        pass


class OwnStep(NodeClassifier):
    """A subclass that validates in its own way, under the names that are its own business."""

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        logits, y = self.examples(batch, "val")
        self.log("val/loss", F.cross_entropy(logits, y), batch_size=1)
        self.log("val/acc", (logits.argmax(-1) == y).float().mean(), batch_size=1)


@pytest.mark.parametrize("kind", [NodeClassifier, OwnHooks, OwnStep])
def test_subclasses_that_override_hooks_log_right_numbers(kind: type[NodeClassifier], tmp_path: Path) -> None:
    """Several validations, a sanity check before: each epoch's accuracy is that of its own weights."""
    torch.manual_seed(0)
    model, logger, seen = kind(GAT(2, 4), lr=0.05), Notebook(), Validated()
    stop = EarlyStopping("val/loss", patience=50)
    fit(model, 5, tmp_path, logger=logger, callbacks=[seen, stop])
    logged = [(row["val/acc"], row["val/loss"]) for _, row in logger.rows if "val/acc" in row]
    assert len(logged) == len(seen.measured) == 5
    for found, measured in zip(logged, seen.measured, strict=True):
        assert found == pytest.approx(measured, rel=1e-5)
    assert [step for step, row in logger.rows if "train/loss" in row] == [0, 1, 2, 3, 4]


class Validated(Callback):
    """Measures the network itself at the end of each validation."""

    def __init__(self) -> None:
        self.measured: list[tuple[float, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            graph = trainer.datamodule.graph  # type: ignore[attr-defined]
            with torch.no_grad():
                logits, y = pl_module(graph.x, graph.edge_index)[graph.val_mask], graph.y[graph.val_mask]
            accuracy = float((logits.argmax(-1) == y).float().mean())
            self.measured.append((accuracy, float(F.cross_entropy(logits, y))))


def test_nothing_to_validate_is_undefined_and_not_zero(tmp_path: Path) -> None:
    data = Infection(num_nodes=60, edge_probability=0.05, num_layers=2, num_val=10)
    data.graph.val_mask[:] = False
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    (measured,) = trainer.validate(NodeClassifier(GAT(2, 4)), data, verbose=False)
    assert math.isnan(measured["val/acc"])
    assert math.isnan(measured["val/loss"])


def test_a_prefix_and_a_replaced_logger_get_what_lightning_gives_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, logger = Notebook(), TensorBoardLogger(tmp_path, default_hp_metric=False, prefix="mine")
    fit(NodeClassifier(GAT(2, 4)), 2, tmp_path, logger=[first, logger], log_every_n_steps=1)
    assert {"mine-train/loss", "mine-val/loss", "mine-val/acc", "mine-epoch"} == set(curves(Path(logger.log_dir)))


CLASSIFIERS: dict[str, tuple[type[Classifier], nn.Module, dict[str, Any]]] = {
    "nodes": (NodeClassifier, GAT(2, 4, heads=3, attention_dropout=[0.1, 0.2]), {"lr": 0.02}),
    "GATv2": (NodeClassifier, GATv2(2, 4, hidden_channels=5, concat=False), {"weight_decay": 0.1}),
    "SuperGAT": (NodeClassifier, SuperGAT(2, 4, attention_type="SD", last_heads=2, heads=2), {}),
    "graphs": (GraphClassifier, GAT(2, 4), {"readout": "max", "bias": False}),
}


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_checkpoint_is_loaded_without_arguments(kind: str, tmp_path: Path) -> None:
    cls, net, options = CLASSIFIERS[kind]
    model = cls(net, **options)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    torch.load(tmp_path / "model.ckpt", weights_only=True)
    loaded = cls.load_from_checkpoint(tmp_path / "model.ckpt")
    assert type(loaded.net) is type(net)
    assert {**loaded.hparams} == {**model.hparams}
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert loaded.lr == model.lr
    assert cls.load_from_checkpoint(tmp_path / "model.ckpt", lr=0.5).lr == 0.5


def test_a_checkpoint_of_a_foreign_network_asks_for_it(tmp_path: Path) -> None:
    model = NodeClassifier(PyGGAT(2, 8, 2, 4))
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    with pytest.raises(ArgumentError, match="`net` to be the network"):
        NodeClassifier.load_from_checkpoint(tmp_path / "model.ckpt")
    loaded = NodeClassifier.load_from_checkpoint(tmp_path / "model.ckpt", net=PyGGAT(2, 8, 2, 4))
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
