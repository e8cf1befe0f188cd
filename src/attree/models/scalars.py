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


def publish(trainer: Trainer, values: Mapping[str, Tensor], in_bar: Container[str] = ()) -> None:
    """Put values of a fit where `LightningModule.log` would put them, without what it costs.

    That is a tenth of a full-batch epoch on a small graph for three scalars, since it keeps sums over batches and
    processes of each. Here the values are final and the same in all processes. They go to the loggers, to whoever
    monitors or reads them (checkpoints, early stopping, schedulers) and to the progress bar.

    Args:
        trainer: The trainer, in a hook of its fit after the step that the values belong to.
        values: The values by name, as tensors of one number.
        in_bar: Names that the progress bar shows.
    """
    numbers = dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
    trainer.callback_metrics.update(values)
    trainer.logged_metrics.update(values)
    trainer.progress_bar_metrics.update({name: number for name, number in numbers.items() if name in in_bar})
    log_scalars(trainer, {**numbers, "epoch": trainer.current_epoch}, max(trainer.global_step - 1, 0))


class TimedSaves:
    """Has loggers write to disk what they were given: now and then, and when the last epoch of a fit ends.

    Each time wakes a thread that writes, beside those that compute: a full-batch epoch on a small graph feels it.

    Args:
        every: The least time between two saves, in seconds.
    """

    def __init__(self, every: float = 1.0) -> None:
        self.every = every
        self._saved = -math.inf

    def save(self, trainer: Trainer) -> None:
        """Save, unless that was done a moment ago; in the hook that ends an epoch, after all others."""
        now = time.monotonic()
        # A module that was copied to another machine brings along a time of that one's clock, which may lie ahead.
        if not 0 <= now - self._saved < self.every or _may_be_last_epoch(trainer):
            for logger in trainer.loggers:
                logger.save()
            self._saved = now


def _may_be_last_epoch(trainer: Trainer) -> bool:
    steps, epochs = trainer.max_steps, trainer.max_epochs
    is_over = 0 <= steps <= trainer.global_step or (epochs is not None and 0 <= epochs <= trainer.current_epoch + 1)
    # Early stopping makes up its mind later than this.
    return is_over or trainer.should_stop or bool(trainer.early_stopping_callbacks)


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
