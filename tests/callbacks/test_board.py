"""What `log_scalars` leaves in the files of every logger."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.callbacks.scalars import log_scalars

EPOCHS = {
    4: {"explain/gatt/weight/faithfulness": 0.25, "explain/random/weight/p_auroc": math.nan, "explain/seconds": 3e-7},
    9: {"explain/gatt/weight/faithfulness": -1.0, "explain/random/weight/p_auroc": 0.5, "explain/seconds": 1e7},
}


class Doubling(TensorBoardLogger):
    """A user's logger that writes what it is given in its own way."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        super().log_metrics({f"twice/{name}": 2 * value for name, value in metrics.items()}, step)


def run(folder: Path, *loggers: Logger) -> None:
    trainer = Trainer(accelerator="cpu", logger=list(loggers), default_root_dir=folder, enable_checkpointing=False)
    for step, values in EPOCHS.items():
        log_scalars(trainer, values, step)
    for logger in loggers:
        logger.finalize("success")


def board(logger: TensorBoardLogger) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(logger.log_dir).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def assert_curves(found: dict[str, list[tuple[int, float]]], prefix: str = "", factor: float = 1.0) -> None:
    names = next(iter(EPOCHS.values()))
    assert set(found) == {f"{prefix}{name}" for name in names}
    for name in names:
        steps, values = zip(*found[f"{prefix}{name}"], strict=True)
        assert list(steps) == list(EPOCHS)
        expected = [factor * epoch[name] for epoch in EPOCHS.values()]
        assert list(values) == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_every_logger_gets_all_scalars_at_their_step(tmp_path: Path) -> None:
    plain = TensorBoardLogger(tmp_path / "plain")
    prefixed = TensorBoardLogger(tmp_path / "prefixed", prefix="mine")
    doubling = Doubling(tmp_path / "doubling")
    table = CSVLogger(tmp_path / "table")
    run(tmp_path, plain, prefixed, table, doubling)
    assert_curves(board(plain))
    assert_curves(board(prefixed), "mine-")
    assert_curves(board(doubling), "twice/", 2.0)
    with (Path(table.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert_curves({name: [(int(row["step"]), float(row[name])) for row in rows] for name in EPOCHS[4]})


def test_no_logger_gets_nothing(tmp_path: Path) -> None:
    run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_scalars_of_one_step_are_one_event(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    written: list[int] = []
    writer = logger.experiment._get_file_writer()
    add = writer.add_event

    def count(event: object, *args: object, **kwargs: object) -> None:
        written.append(len(event.summary.value))
        add(event, *args, **kwargs)

    writer.add_event = count
    run(tmp_path, logger)
    assert written == [3, 3]
