"""Log a few scalars an epoch at little cost."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor


class FitScalars:
    """Scalars of a fit's epochs, put where `LightningModule.log` would put them, without what it costs.

    That is a tenth of a full-batch epoch on a small graph for three scalars, since it keeps sums over batches and
    processes of each. Here the values are final and the same in all processes. Whoever monitors or reads them
    (checkpoints, early stopping, schedulers, the progress bar) finds them at once. Loggers get those of a step
    together, and save at most once in `save_every` seconds: each time wakes a thread that writes, beside those that
    compute.

    Args:
        save_every: The least time between two saves, in seconds.
    """

    def __init__(self, save_every: float = 1.0) -> None:
        self.save_every = save_every
        self._waiting: dict[str, float] = {}
        self._saved = -math.inf

    def put(self, trainer: Trainer, values: Mapping[str, Tensor], in_bar: Container[str] = ()) -> None:
        """Show values to all but the loggers, which get them at the next `log`.

        Args:
            trainer: The trainer, in a hook of its fit after the step that the values belong to.
            values: The values by name, as tensors of one number.
            in_bar: Names that the progress bar shows.
        """
        numbers = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
        trainer.callback_metrics.update(values)
        trainer.logged_metrics.update(values)
        trainer.progress_bar_metrics.update({name: number for name, number in numbers.items() if name in in_bar})
        self._waiting |= numbers

    def log(self, trainer: Trainer) -> None:
        """Log what was put since the last call, before another step is made."""
        if self._waiting:
            log_scalars(trainer, {**self._waiting, "epoch": trainer.current_epoch}, max(trainer.global_step - 1, 0))
            self._waiting = {}

    def save(self, trainer: Trainer) -> None:
        """Have loggers write to disk what they were given, unless they did so a moment ago."""
        now = time.monotonic()
        if now - self._saved >= self.save_every:
            for logger in trainer.loggers:
                logger.save()
            self._saved = now

    def drop(self) -> None:
        """Forget what waits: its fit did not come to log it."""
        self._waiting = {}


def log_scalars(trainer: Trainer, values: Mapping[str, float], step: int) -> None:
    """Log scalars to all loggers of a trainer.

    TensorBoard gets them as one event: single ones, as its logger writes them, cost several times as much.
    A logger that derives from its one, and may write them otherwise, is left to do so.
    """
    for logger in trainer.loggers:
        if type(logger) is TensorBoardLogger and not logger._prefix:
            if trainer.is_global_zero:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
                logger.experiment._get_file_writer().add_summary(summary, step)
        else:
            logger.log_metrics(dict(values), step)
