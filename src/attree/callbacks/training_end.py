"""What a run ends with: callbacks in an order that does not matter, and the weights that were measured or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from attree.callbacks._private import exchange_callbacks
from attree.evaluation import Evaluation

Weights = dict[str, Tensor]
"""A copy of all tensors of a network, by name."""


class AfterTraining(Callback):
    """Calls a function when training has ended and all callbacks before this one have done what they do then."""

    def __init__(self, action: Callable[[Trainer, LightningModule], None]) -> None:
        self.action = action

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.action(trainer, pl_module)


def order_callbacks(trainer: Trainer, first: Callback, last: Callback) -> None:
    """Put one callback before and one behind all others of a trainer.

    Lightning's `WeightAveraging` validates averaged weights and takes them back in `on_validation_epoch_end`: to
    measure what was validated, one must come before it. It, and `StochasticWeightAveraging`, leave averaged weights in
    the network in `on_train_end`: to measure what a run ends with, one must come after them.
    """
    others = [one for one in exchange_callbacks(trainer, []) if one is not first and one is not last]
    exchange_callbacks(trainer, [first, *others, last])


def copy_weights(state: Mapping[str, Any]) -> Weights:
    """Copy the tensors of a state dict, to be able to tell later whether they are still the same."""
    return {name: value.detach().clone() for name, value in state.items() if isinstance(value, Tensor)}


def is_same(weights: Weights | None, state: Mapping[str, Any]) -> bool:
    """Whether a state dict holds these weights, to the bit, so that NaN is like NaN; None is like nothing."""
    if weights is None:
        return False
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return weights.keys() == tensors.keys() and all(
        torch.equal(_bits(value), _bits(tensors[name].to(value.device))) for name, value in weights.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def has_diverged(pl_module: LightningModule, evaluation: Evaluation) -> bool:
    """Whether some weight, or some score that the attention gave an edge at the last evaluation, is not finite."""
    scores = evaluation.pair_scores.values()
    return not all(bool(values.isfinite().all()) for values in (*pl_module.parameters(), *scores))


def any_process(trainer: Trainer, decision: bool) -> bool:
    """Whether some process decides so. To be asked in all processes, which must act alike."""
    return trainer.strategy.reduce_boolean_decision(decision, all=False)
