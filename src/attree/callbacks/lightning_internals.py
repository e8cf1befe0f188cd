"""All uses of private members of Lightning and TensorBoard; tests fail when one changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary
from torch.utils.tensorboard import SummaryWriter


def log_step(trainer: Trainer) -> int:
    """Return the step at which Lightning logs the scalars of an epoch: the number of batches with an optimiser step.

    `global_step` differs: it counts the steps of every optimiser.
    """
    stepped = trainer.fit_loop.epoch_loop._batches_that_stepped
    return max(stepped if trainer.validating else stepped - 1, 0)


def validate_again(trainer: Trainer, callback: Callback) -> None:
    """Run the validation of a fit once more with the current weights. Only the hooks of this callback are called.

    For other callbacks, training has already ended: a progress bar or early stopping must not see another validation.
    """
    callbacks, loop = exchange_callbacks(trainer, [callback]), trainer.fit_loop.epoch_loop
    trainer.validating = True
    loop._batches_that_stepped -= 1
    try:
        loop.val_loop.run()
    finally:
        loop._batches_that_stepped += 1
        trainer.training = True
        exchange_callbacks(trainer, callbacks)


def log_after_training(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Log metrics after training has ended, when `LightningModule.log` raises. All processes have the same values.

    They go where `log` would put them: to the loggers, at the step of the last epoch, and to `trainer.callback_metrics`
    and `trainer.logged_metrics`. There is no public way to write to these two after training; without it, code that
    reads them after `fit` would see the metrics of earlier weights.
    """
    values = {name: torch.tensor(value) for name, value in metrics.items()}
    trainer.callback_metrics.update(values)
    trainer.logged_metrics.update(values)
    epoch = max(trainer.current_epoch - 1, 0)  # it counts the epochs that are over
    for logger in trainer.loggers:
        logger.log_metrics({**metrics, "epoch": epoch}, log_step(trainer))
        logger.save()


def exchange_callbacks(trainer: Any, callbacks: list[Callback]) -> list[Callback]:
    """Replace a trainer's callbacks and return the former ones. Lightning sets this attribute without declaring it."""
    former, trainer.callbacks = trainer.callbacks, callbacks
    return former


def add_summary(writer: SummaryWriter, summary: Any, step: int | None = None) -> None:
    """Write a summary to TensorBoard's event file, unchanged."""
    writer._get_file_writer().add_summary(summary, step)


def describe_scalars(writer: SummaryWriter, describe: Callable[[str], str]) -> None:
    """Add descriptions to scalars that are written from now on. TensorBoard takes them from the first point of a tag.

    Lightning writes a module's scalars itself, without descriptions.

    Args:
        writer: The writer of Lightning's logger.
        describe: Returns the description of a tag; an empty string for none.
    """
    events = writer._get_file_writer()
    add, seen = events.add_summary, set[str]()

    def add_described(summary: Summary, *details: Any, **named: Any) -> None:
        for value in summary.value:
            if value.HasField("simple_value") and value.tag not in seen:
                seen.add(value.tag)
                if text := describe(value.tag):
                    value.metadata.plugin_data.plugin_name = "scalars"
                    value.metadata.data_class = DATA_CLASS_SCALAR
                    value.metadata.summary_description = text
        add(summary, *details, **named)

    events.add_summary = add_described
