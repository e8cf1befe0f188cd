"""A resumed run draws in every process what the unbroken one would have drawn there."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import LastCheckpoint
from attree.data import Infection
from attree.data.random_state import collect_random_states, restore_random_states
from attree.models import GAT, NodeClassifier
from helpers.processes import WarmDDP
from helpers.time_limit import time_limit


def draw() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), float(np.random.randn()), random.random(), random.gauss()]


class Draws(Callback):
    """Seeds each process differently; writes what it draws in each epoch, and keeps the checkpoint of the second."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.drawn: dict[int, list[float]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seed_everything(self.seed + trainer.global_rank)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for _ in range(1 + trainer.global_rank):
            self.drawn[trainer.current_epoch] = draw()
        last = self.folder / "checkpoints" / "last.ckpt"
        if trainer.current_epoch == 2 and trainer.is_global_zero and last.exists():
            shutil.copy(last, self.folder / "kept.ckpt")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(self.drawn))


def fit(folder: Path, seed: int, ckpt_path: Path | None = None) -> None:
    data = Infection(num_nodes=100, edge_probability=0.02, num_layers=2)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=WarmDDP(),
        max_epochs=4,
        limit_val_batches=0,
        logger=TensorBoardLogger(folder.parent, name="", version=folder.name),
        enable_model_summary=False,
        callbacks=[Draws(folder, seed), LastCheckpoint(every_n_epochs=2)],
    )
    model = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2, dropout=0.5))
    with time_limit():
        trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)


def test_each_of_two_processes_goes_on_with_its_own_draws(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    fit(whole, seed=0)
    fit(resumed, seed=50, ckpt_path=whole / "kept.ckpt")
    drawn = [[json.loads((run / f"{rank}.json").read_text()) for rank in range(2)] for run in (whole, resumed)]
    for unbroken, found in zip(*drawn, strict=True):
        assert list(found) == ["2", "3"]
        for epoch, values in found.items():
            assert values == unbroken[epoch]
    assert not set(drawn[0][0]["2"]) & set(drawn[0][1]["2"])
    # Each process has dropout of its own: the averaged gradients are the same only if both go on.
    expected, found = (
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in (whole, resumed)
    )
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.fixture
def states() -> list[dict[str, Any]]:
    collected = []
    for seed in range(2):
        seed_everything(seed)
        collected += collect_random_states(world_size=1)
    return collected


def drawn_after(states: list[dict[str, Any]], rank: int, world_size: int) -> list[float]:
    seed_everything(99)
    restore_random_states(states, rank, world_size)
    return draw()


def drawn_from(seed: int) -> list[float]:
    seed_everything(seed)
    return draw()


def test_equally_many_processes_continue_their_own(states: list[dict[str, Any]]) -> None:
    for rank in range(2):
        assert drawn_after(states, rank, 2) == drawn_from(rank)


@pytest.mark.parametrize(("saved", "world_size"), [(2, 1), (1, 3), (2, 3)])
def test_more_or_fewer_processes_draw_apart_and_again_the_same(
    states: list[dict[str, Any]], saved: int, world_size: int
) -> None:
    drawn = [drawn_after(states[:saved], rank, world_size) for rank in range(world_size)]
    assert drawn[0] == drawn_from(0)
    assert len({value for one in drawn for value in one}) == sum(map(len, drawn))
    assert [drawn_after(states[:saved], rank, world_size) for rank in range(world_size)] == drawn
