"""AttentionPenaltyCallback: add penalties on attention to the loss of any LightningModule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from attree.data.ground_truth import GroundTruth
from attree.errors import UnsupportedModelError, expect
from attree.penalties.registry import PenaltiesArgument
from attree.penalties.regularizer import AttentionPenalties, WatchedPass


class AttentionPenaltyCallback(Callback):
    """Adds penalties on attention to the loss that a LightningModule's `training_step` returns.

    During a fit, the callback wraps the module's `training_step`. It finds the attention convolutions that the loss
    depends on, and adds the penalties on their attention to the loss before Lightning sees it. So mixed precision,
    accumulated gradients, clipping and distributed strategies treat the sum like any loss. The unweighted penalties are
    logged as `train/attention_<name>`, as means over the steps and processes of an epoch. A module with manual
    optimisation is refused: it must add `AttentionPenalties` to its loss itself.

    .. code-block:: python

        Trainer(callbacks=[attree.AttentionPenaltyCallback({"entropy": 0.1})])

    Args:
        penalties: Penalties, or a mapping of names to strengths: see `attree.penalties.make_penalties`.
        truth: The true edges of targets, for `true_edges`; None takes `trainer.datamodule.truth` if it exists.
    """

    def __init__(self, penalties: PenaltiesArgument, truth: GroundTruth | None = None) -> None:
        self.penalties = AttentionPenalties(penalties)
        expect(bool(self.penalties.by_name), "penalties", "at least one penalty", penalties)
        self.truth = truth
        self._module: LightningModule | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wrap the training step."""
        if not self.penalties:
            return
        if not pl_module.automatic_optimization:
            raise UnsupportedModelError(
                f"Expected {type(pl_module).__name__} to use automatic optimisation, but it optimises manually: add "
                "`attree.penalties.AttentionPenalties` to its loss in `training_step`."
            )
        self._module = pl_module
        vars(pl_module)["training_step"] = self._penalized(trainer, pl_module, pl_module.training_step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the module's own training step."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the module's own training step."""
        self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the module's own training step."""
        self._restore()

    def _restore(self) -> None:
        if self._module is not None:
            vars(self._module).pop("training_step", None)
            self._module = None

    def _penalized(
        self, trainer: Trainer, module: LightningModule, training_step: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the training step of a module with penalties added to its loss."""

        @wraps(training_step)
        def penalized(batch: Any, *args: Any, **kwargs: Any) -> Any:
            """Run the module's training step, and return the result with the penalties added to the loss."""
            with self.penalties.watch(module, trainer.fit_loop.total_batch_idx) as watched:
                returned = training_step(batch, *args, **kwargs)
            loss = returned.get("loss") if isinstance(returned, Mapping) else returned
            if loss is None:  # Lightning skips the step
                return returned
            expect(isinstance(loss, Tensor), "training_step", "one that returns a loss", type(loss).__name__)
            data = getattr(trainer, "datamodule", None)
            truth = getattr(data, "truth", None) if self.truth is None else self.truth
            truth = truth if isinstance(truth, GroundTruth) else None
            total = loss + watched.penalty(loss, batch, truth)
            log_penalties(module, watched)
            return {**returned, "loss": total} if isinstance(returned, Mapping) else total

        return penalized


def log_penalties(module: LightningModule, watched: WatchedPass) -> None:
    """Log each penalty of a step as `train/attention_<name>`, a mean over the epoch's steps and all processes."""
    for name, value in watched.values.items():
        module.log(f"train/attention_{name}", value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
