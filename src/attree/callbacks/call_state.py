"""The state of ExplainCallback in one call of the trainer, and the hash that tells whether weights changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from attree.callbacks.lightning_internals import exchange_callbacks, log_after_training, log_step
from attree.callbacks.reporting import Pictures, figure_sinks, warn_only
from attree.callbacks.tensorboard import TensorBoardWriter
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.metric_names import PREFIX, SECONDS, TRUTH, WITHIN
from attree.source import Drawn

WeightsHash = dict[str, int]
"""A hash of each tensor of a network, by name."""

CHUNK = 2**22
"""Number of entries that are hashed at a time, so that a large tensor takes little memory."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by their size in bytes."""


def hash_weights(state: Mapping[str, Any]) -> WeightsHash:
    """Return a hash of the tensors of a state dict, computed where the tensors are.

    Each is the sum of its entries' bits, each times an odd number that depends on the place, modulo 2**64. So one
    changed entry always changes the hash, and several leave it unchanged with a probability of about 2**-64. NaN equals
    NaN, and 0 differs from -0. A sum of integers does not depend on the order, so a hash is the same every time.
    """
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    sums = {name: _hash(value) for name, value in tensors.items()}
    by_device: dict[torch.device, list[str]] = {}
    for name, value in sums.items():
        by_device.setdefault(value.device, []).append(name)
    numbers: dict[str, int] = {}
    for names in by_device.values():  # one message per device, not one per tensor
        numbers |= dict(zip(names, torch.stack([sums[name] for name in names]).tolist(), strict=True))
    # The shape too, because an empty tensor has no entries, and dtypes of one size could hold the same bits.
    return {name: hash((numbers[name], str(value.dtype), tuple(value.shape))) for name, value in tensors.items()}


def _hash(tensor: Tensor) -> Tensor:
    """Return the hash of one tensor as a 0-d integer tensor on its device."""
    values = tensor.detach().contiguous().reshape(-1)
    values = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    bits = values.view(INTEGERS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for begin in range(0, len(bits), CHUNK):
        part = bits[begin : begin + CHUNK].long()
        place = torch.arange(begin, begin + len(part), device=values.device) * -7046029254386353131
        place = (place ^ (place >> 29)) * -4658895280553007687
        total += (part * (place ^ (place >> 32) | 1)).sum()
    return total


class AfterTraining(Callback):
    """Calls a function when training has ended, after all callbacks that come before this one."""

    def __init__(self, action: Callable[[Trainer, LightningModule], None]) -> None:
        self.action = action

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.action(trainer, pl_module)


@dataclass
class CallState:
    """The state of ExplainCallback in one call of the trainer (`fit`, `validate`, `test`); `setup` makes a new one.

    Attributes:
        pictures: Draws pictures, and knows when they are due.
        after_training: The callback that reports after all others.
        drawn: The targets, once they are drawn; those of a fit are kept for `validate` and `test`.
        evaluator: The evaluator of the module, once it is found.
        latest: The last evaluation.
        names: Logged names of the metrics, each with the name that reports use.
        writer: The TensorBoard writer, in the process that has one.
        is_final: Whether the last evaluation included everything that the final report needs.
        evaluated: Hash of the weights of the last evaluation.
        validated: Hash of the weights of the last validation.
        is_logged: Whether an earlier evaluation of the same weights was logged.
        has_layout: Whether the layout of TensorBoard's charts is written.
        has_ended: Whether training has ended.
        has_diverged: Whether the last evaluation found NaN or infinite values.
        warned_diverged: Whether the user was warned about them.
    """

    pictures: Pictures
    after_training: AfterTraining
    drawn: Drawn | None = None
    evaluator: Evaluator | None = None
    latest: Evaluation | None = None
    names: dict[str, str] = field(default_factory=dict)
    writer: TensorBoardWriter | None = None
    is_final: bool = False
    evaluated: WeightsHash | None = None
    validated: WeightsHash | None = None
    is_logged: bool = False
    has_layout: bool = False
    has_ended: bool = False
    has_diverged: bool = False
    warned_diverged: bool = False

    def log(self, trainer: Trainer, pl_module: LightningModule, metrics: Mapping[str, float], prefix: str) -> None:
        """Log metrics: in a fit as `<prefix>/...`, in `validate` and `test` as `validate/<prefix>/...` and so on.

        Args:
            trainer: The trainer.
            pl_module: The module, which logs the metrics until training has ended.
            metrics: The metrics, by names that start with `explain/`.
            prefix: Replaces `explain` in these names.
        """
        stage = trainer.state.fn
        in_fit = stage is None or stage == TrainerFn.FITTING
        # If these weights were logged before, only metrics of the final evaluation are new.
        logged = set(self.names) if self.is_logged else set()
        named = {prefix + name.removeprefix(PREFIX): name for name in metrics}
        if stage is not None and not in_fit:
            staged = [f"{stage.value}/{name}" for name in named]
            named = dict(zip(staged, staged, strict=True))
        self.names = named
        values = dict(zip(self.names, metrics.values(), strict=True))
        if in_fit and self.has_ended and not trainer.validating:
            log_after_training(trainer, {name: value for name, value in values.items() if name not in logged})
            return
        name_in_bar = shown_in_bar(values) if in_fit else None
        for name, value in values.items():
            # All processes have the same metrics, but each has taken its own time.
            is_per_process = name.endswith(SECONDS.removeprefix(PREFIX)) and trainer.world_size > 1
            pl_module.log(name, value, prog_bar=name == name_in_bar, batch_size=1, sync_dist=is_per_process)

    def is_shown(self, trainer: Trainer) -> bool:
        """Whether this process has a logger that accepts pictures."""
        return self.writer is not None or bool(figure_sinks(trainer))

    def show_progress(
        self,
        trainer: Trainer,
        evaluator: Evaluator,
        evaluation: Evaluation,
        save: bool,
    ) -> None:
        """Send pictures and explanations of an evaluation during a fit to the loggers, if they are due.

        Args:
            trainer: The trainer.
            evaluator: The evaluator.
            evaluation: Its last evaluation.
            save: Write explanations for TensorBoard's tab.
        """
        goes_on = not self.has_ended and not self.has_diverged
        if goes_on and self.pictures.are_due(trainer) and self.is_shown(trainer):
            figures = self.pictures.draw(evaluator, evaluation)
            self.pictures.show(figures, trainer, self.writer, evaluation)
            if save and self.writer is not None:
                with warn_only("The explanations of this step"):
                    self.writer.write_explanations(evaluation, log_step(trainer))

    def warn_diverged(self) -> None:
        """Warn once that the network has diverged."""
        if not self.warned_diverged:
            rank_zero_warn(
                "The network has diverged: its weights or attention are NaN or infinite, so statistics of its "
                "explanations are NaN. A lower learning rate may help."
            )
        self.warned_diverged = True


def shown_in_bar(metrics: Mapping[str, float]) -> str | None:
    """Return the metric that the progress bar shows: GAtt's leading statistic, or else its AUROC."""
    of_gatt = [name for name in metrics if "/gatt/" in name]
    ranked = sorted(of_gatt, key=lambda name: (not name.endswith(WITHIN), not name.endswith(TRUTH)))
    return ranked[0] if ranked else None


def expect_equal_metrics(prefix: str) -> None:
    """Ignore Lightning's advice to average metrics `<prefix>/...` over processes: all processes have the same."""
    for start in (prefix, rf"\w+/{prefix}"):
        warnings.filterwarnings("ignore", rf"It is recommended to use `self\.log\('{start}/.*sync_dist=True")


def monitors_of(trainer: Any, prefix: str) -> list[str]:
    """Return the class names of the callbacks and schedulers that monitor a metric `<prefix>/...`."""
    watching = [(type(callback).__name__, getattr(callback, "monitor", None)) for callback in trainer.callbacks]
    watching += [(type(config.scheduler).__name__, config.monitor) for config in trainer.lr_scheduler_configs]
    return [who for who, metric in watching if isinstance(metric, str) and metric.startswith(f"{prefix}/")]


def warn_of_monitors(trainer: Trainer, prefix: str, every_n_epochs: int) -> None:
    """Warn if a metric `<prefix>/...` is monitored more often than it is measured."""
    monitors = monitors_of(trainer, prefix)
    if monitors and every_n_epochs != 1:
        rank_zero_warn(
            f"{monitors[0]} monitors a metric of ExplainCallback, which is evaluated at the first validation and "
            f"then as `every_n_epochs={every_n_epochs}` says: in between, {monitors[0]} sees the last value again. Set "
            "`every_n_epochs=1` to evaluate at each validation."
        )


def order_callbacks(trainer: Trainer, first: Callback, last: Callback) -> None:
    """Make one callback of a trainer the first and another the last.

    Lightning's `WeightAveraging` validates averaged weights and removes them in `on_validation_epoch_end`, so the
    evaluation of validated weights must come before it. It and `StochasticWeightAveraging` put averaged weights into
    the network in `on_train_end`, so the evaluation of final weights must come after them.
    """
    others = [callback for callback in exchange_callbacks(trainer, []) if callback not in (first, last)]
    exchange_callbacks(trainer, [first, *others, last])


def has_diverged(pl_module: LightningModule, evaluation: Evaluation) -> bool:
    """Whether a weight of the network, or a score of the last evaluation, is NaN or infinite."""
    scores = evaluation.pair_scores.values()
    return not all(bool(values.isfinite().all()) for values in (*pl_module.parameters(), *scores))


def any_process(trainer: Trainer, decision: bool) -> bool:
    """Whether the decision is True in at least one process. All processes must call this together."""
    return trainer.strategy.reduce_boolean_decision(decision, all=False)
