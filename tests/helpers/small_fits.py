"""Fits of a second on a small Infection graph, and what they leave in their folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.callbacks import LastCheckpoint
from attree.data import Infection
from attree.models import GAT, NodeClassifier


def infection() -> Infection:
    return Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)


def classifier(data: Infection, net: type = GAT, **options: Any) -> NodeClassifier:
    seed_everything(0)
    return NodeClassifier(net(data.num_features, data.num_classes, num_layers=2, **options), lr=0.01)


def trainer(folder: Path, callbacks: list[Any], epochs: int = 4, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "logger": TensorBoardLogger(folder, name="run", default_hp_metric=False),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint | LastCheckpoint) for one in callbacks),
        "accelerator": "cpu",
        "log_every_n_steps": 1,
    }
    return Trainer(max_epochs=epochs, callbacks=callbacks, **{**settings, **options})


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
