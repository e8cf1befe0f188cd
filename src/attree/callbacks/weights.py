"""Are these the weights that were measured, and are they numbers? Averaging exchanges them, divergence ruins them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from attree.callbacks.order import exchange_callbacks
from attree.evaluation import Evaluation


def fingerprint(state: Mapping[str, Any]) -> str:
    """A digest of all tensors of a state dict, to the bit; the same for the same weights on any device."""
    digest = hashlib.blake2b()
    for name, value in state.items():
        if isinstance(value, Tensor):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def has_diverged(pl_module: LightningModule, evaluation: Evaluation) -> bool:
    """Whether some weight, or some score that the attention gave an edge at the last evaluation, is not finite."""
    scores = evaluation.pair_scores.values()
    return not all(bool(values.isfinite().all()) for values in (*pl_module.parameters(), *scores))


def any_process(trainer: Trainer, decision: bool) -> bool:
    """Whether some process decides so. To be asked in all processes, which must act alike."""
    return trainer.strategy.reduce_boolean_decision(decision, all=False)


def validate_again(trainer: Trainer, callback: Callback) -> None:
    """Run a fit's validation once more, with the weights as they are now and this callback alone.

    Other callbacks have been told that training has ended, and a progress bar or an early stopping has no use for
    another validation.
    """
    callbacks = exchange_callbacks(trainer, [callback])
    trainer.validating = True
    try:
        trainer.fit_loop.epoch_loop.val_loop.run()
    finally:
        trainer.training = True
        exchange_callbacks(trainer, callbacks)
