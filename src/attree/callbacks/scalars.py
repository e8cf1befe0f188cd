"""Log explanation metrics as scalars: under which names, where, and at which cost."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from attree.evaluation.names import FAITHFULNESS, TRUTH
from attree.models.scalars import log_scalars


def log_explanation(
    trainer: Trainer, pl_module: LightningModule, metrics: Mapping[str, float], step: int, in_bar: bool
) -> None:
    """Log metrics `explain/...`: a fit's under their names, those of `validate` and `test` behind the call's name.

    Args:
        trainer: Whose call this is.
        pl_module: Its module, in a hook that may log.
        metrics: The metrics, the same in all processes.
        step: Where a fit's curves get them.
        in_bar: Show the headline in a fit's progress bar.
    """
    stage = trainer.state.fn
    if stage is not None and stage != TrainerFn.FITTING:
        together = trainer.world_size > 1  # the mean of equal values; without it Lightning warns of unequal ones
        for name, value in metrics.items():
            pl_module.log(f"{stage.value}/{name}", value, batch_size=1, sync_dist=together)
        return
    # `LightningModule.log` takes about as long for dozens of scalars as the epoch itself. They are final and the
    # same in all processes, so they can go where it would put them: to bar and loggers and to whoever monitors them.
    shown = headline(metrics)
    if in_bar and shown is not None:
        trainer.progress_bar_metrics[shown] = metrics[shown]
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
    log_scalars(trainer, {**metrics, "epoch": trainer.current_epoch}, step)


def headline(metrics: Mapping[str, float]) -> str | None:
    """The one metric that the progress bar shows: GAtt's ground-truth AUROC, or else its faithfulness."""
    wanted = [name for name in metrics if "/gatt/" in name]
    ranked = sorted(wanted, key=lambda name: (not name.endswith(TRUTH), not name.endswith(FAITHFULNESS)))
    return ranked[0] if ranked else None
