"""The order of callbacks: what is measured must not depend on where a user put the callback that measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class AfterTraining(Callback):
    """Calls a function when training has ended and all callbacks before this one have done what they do then."""

    def __init__(self, action: Callable[[Trainer, LightningModule], None]) -> None:
        self.action = action

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.action(trainer, pl_module)


def place(trainer: Trainer, first: Callback, last: Callback) -> None:
    """Put one callback before and one behind all others of a trainer.

    Lightning's `WeightAveraging` validates averaged weights and takes them back in `on_validation_epoch_end`: to
    measure what was validated, one must come before it. It, and `StochasticWeightAveraging`, leave averaged weights in
    the network in `on_train_end`: to measure what a run ends with, one must come after them.
    """
    others = [one for one in exchange_callbacks(trainer, []) if one is not first and one is not last]
    exchange_callbacks(trainer, [first, *others, last])


def exchange_callbacks(trainer: Any, callbacks: list[Callback]) -> list[Callback]:
    """Give a trainer other callbacks and return those it had, an attribute that Lightning sets but does not declare."""
    former, trainer.callbacks = trainer.callbacks, callbacks
    return former
