"""ExplainCallback: follow how well a network's attention explains it, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from attree.attribution import METHODS
from attree.callbacks.board import Board
from attree.callbacks.final_report import FinalReport
from attree.callbacks.order import AfterTraining, place
from attree.callbacks.run_folder import stage_folder
from attree.callbacks.scalars import log_explanation
from attree.callbacks.warn_only import warn_only
from attree.callbacks.weights import Weights, any_process, copy_weights, has_diverged, is_same, validate_again
from attree.errors import expect
from attree.evaluation.evaluation import Evaluation, Settings, Shard
from attree.evaluation.make_evaluation import make_evaluation, network_of
from attree.faithfulness import protocol_names, resolve_protocol


class ExplainCallback(Callback):
    """Logs explanation quality while a network trains; saves explanations and figures when it has trained.

    After each validation (in a fit, every `every_n_epochs` epochs and at the last one) each method scores the edges
    around the chosen targets, and these are logged:

    - `explain/<method>/<protocol>/pc_pearson` and six more statistics of how well the scores foretell what reducing
      an edge's attention does to the prediction, and `.../faithfulness`, their mean;
    - `explain/<method>/truth_auroc`, where the data has ground truth, over all targets that have some;
    - `explain/seconds`, what all this cost.

    When training ends, the last metrics are saved to `metrics.json` in the run's folder (what is undefined is `null`),
    GAtt of all targets to `explanations/gatt.npz` (format: see `attree.attribution.Attribution.save`), figures to
    `figures/`, and a table is printed. What cannot be shown is a warning: what is saved does not depend on it.
    `trainer.validate` and `trainer.test` log the same metrics under `validate/explain/...` and `test/explain/...`, and
    save to folders `validate` and `test` of the run's folder, so that a fit's curves and files stay as they are.

    The network, its gradients and the random stream of training are never touched. In a distributed run the targets
    are spread over the processes; the metrics are those of one process. Data or a network that cannot be explained is
    refused before the first epoch. Where callbacks average the weights, what is validated is what is explained, and
    what is saved is of the weights that the run ends with: these are validated once more if they were not. (The order
    of callbacks does not matter: this one puts itself first, and what it does when training has ended last.)

    Other callbacks can monitor these metrics, with `every_n_epochs` at 1, so that they are there at every validation.
    But to stop a run, monitor what it learns: `EarlyStopping("val/loss", patience=50, min_delta=0.005)`. Faithfulness
    is often highest before anything is learned, and NaN where it is undefined (no prediction changed, say).

    Args:
        methods: Attribution methods to compare: `gatt`, `gatt_sim`, `gatt_avg`, `avgatt`, `random`.
        protocols: Reduction protocols: `coefficient`, `weight`, `removal`, or `authors`, which is `weight` for GAT and
            `coefficient` otherwise. Empty: no faithfulness, ground truth only.
        num_targets: Targets (nodes or graphs) whose predictions are measured; chosen at random once a run.
        every_n_epochs: Epochs between two evaluations; 0 evaluates only at the last epoch.
        ground_truth: Measure against ground truth where the data has some.
        figures: How many targets are drawn as case studies, about five times in a run and at its end; 0 draws nothing.
        save: Save GAtt of all targets and figures in the run's folder (the final metrics always are).
        random_draws: Draws that the statistics of `random` are averaged over; fewer cost less on large graphs.
        seed: Seed of the choice of targets and of the `random` method.
    """

    def __init__(
        self,
        methods: Sequence[str] = ("gatt", "avgatt", "random"),
        protocols: Sequence[str] = ("authors",),
        num_targets: int = 100,
        every_n_epochs: int = 1,
        ground_truth: bool = True,
        figures: int = 1,
        save: bool = True,
        random_draws: int = 3,
        seed: int = 0,
    ) -> None:
        expect(len(methods) > 0, "methods", "at least one method", list(methods))
        for name in methods:
            expect(name in METHODS, "methods", f"names among {', '.join(METHODS)}", name)
        for name in protocols:
            expect(name in protocol_names(), "protocols", f"names among {', '.join(protocol_names())}", name)
        expect(num_targets >= 1, "num_targets", "an integer >= 1", num_targets)
        expect(every_n_epochs >= 0, "every_n_epochs", "an integer >= 0", every_n_epochs)
        expect(figures >= 0, "figures", "an integer >= 0", figures)
        expect(random_draws >= 1, "random_draws", "an integer >= 1", random_draws)
        self.settings = Settings(
            tuple(methods), tuple(protocols), num_targets, ground_truth, random_draws=random_draws, seed=seed
        )
        self.every_n_epochs = every_n_epochs
        self.figures = figures
        self.save = save
        self.targets: Tensor | None = None
        self._after_training = AfterTraining(self._finish_fit)
        self._has_ended = False
        self._has_diverged = False
        self._said_diverged = False
        self._evaluated_weights: Weights | None = None
        self._validated_weights: Weights | None = None
        self._evaluation: Evaluation | None = None
        self._board: Board | None = None

    # Which targets were chosen is part of a run: a resumed one keeps them whatever the arguments say now.

    def state_dict(self) -> dict[str, Any]:
        return {} if self.targets is None else {"targets": self.targets.tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "targets" in state_dict:
            self.targets = torch.tensor(state_dict["targets"], dtype=torch.int64)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._evaluation = None
        self._board = None
        self._has_ended = self._has_diverged = self._said_diverged = False
        self._evaluated_weights = self._validated_weights = None
        if stage == "fit":  # a checkpoint that is resumed from is read after this
            self.targets = None
        place(trainer, self, self._after_training)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation_of(trainer, pl_module)
        self._try_out(trainer, pl_module)
        self._board = Board.of(trainer)
        if self._board is not None:
            protocols = [resolve_protocol(name, network_of(pl_module)) for name in self.settings.protocols]
            with warn_only("TensorBoard's page of custom scalars"):
                self._board.write_layout(self.settings.methods, dict.fromkeys(protocol.name for protocol in protocols))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            self._validated_weights = copy_weights(pl_module.state_dict())
        if trainer.state.fn != TrainerFn.FITTING or self._has_ended or self._is_due(trainer):
            self._evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.enable_validation and self._is_due(trainer):
            # As a progress bar may have done in the first process alone: see `LastCheckpoint`.
            _ = trainer.callback_metrics
            self._evaluate(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluate(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._report(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(trainer, pl_module)

    def _finish_fit(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the network that the run ends with, unless it was, as after early stopping; then report."""
        self._has_ended = True
        weights = pl_module.state_dict()
        if any_process(trainer, not is_same(self._evaluated_weights, weights)):
            if trainer.enable_validation and any_process(trainer, not is_same(self._validated_weights, weights)):
                validate_again(trainer, self)
            else:
                self._evaluate(trainer, pl_module)
        self._report(trainer, pl_module)

    def _is_due(self, trainer: Trainer) -> bool:
        epoch = trainer.current_epoch + 1
        return epoch == trainer.max_epochs or (self.every_n_epochs > 0 and epoch % self.every_n_epochs == 0)

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began = perf_counter()
        evaluation = self._evaluation_of(trainer, pl_module)
        metrics = {name: value.item() for name, value in evaluation.evaluate().items()}
        metrics["explain/seconds"] = perf_counter() - began
        self._evaluated_weights = copy_weights(pl_module.state_dict())
        self._has_diverged = any(map(math.isnan, metrics.values())) and has_diverged(pl_module, evaluation)
        if self._has_diverged:
            self._say_diverged()
        # What is measured after training has ended is beside what was validated last, or where validated again.
        step = trainer.global_step - (0 if self._has_ended and trainer.validating else 1)
        log_explanation(trainer, pl_module, metrics, step, in_bar=not self._has_ended)
        if self._board is not None and self.figures and self._is_drawn(trainer) and not self._has_diverged:
            with warn_only("TensorBoard's pictures"):
                self._board.write_scores(evaluation, step)
                self._board.write_figures(evaluation.draw_case_studies(self.figures), step)

    def _say_diverged(self) -> None:
        if not self._said_diverged:
            rank_zero_warn(
                "The network's weights or attention are not finite (NaN or infinite): it has diverged, and statistics "
                "of its explanations are NaN. A lower learning rate may help."
            )
        self._said_diverged = True

    def _is_drawn(self, trainer: Trainer) -> bool:
        """Pictures cost more than an epoch: about five times in a run, and at the last epoch."""
        epoch, last, step = trainer.current_epoch + 1, trainer.max_epochs, max(self.every_n_epochs, 1)
        return last is not None and last > 0 and (epoch == last or epoch * 5 // last > (epoch - step) * 5 // last)

    def _evaluation_of(self, trainer: Trainer, pl_module: LightningModule) -> Evaluation:
        if self._evaluation is None:
            self._evaluation = make_evaluation(trainer, pl_module, self._share(trainer), self.targets)
            self.targets = self._evaluation.targets.cpu()
        return self._evaluation

    def _try_out(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate one target, so that a network which cannot be explained is refused now, not many epochs later."""
        alone = replace(self._share(trainer), num_targets=1, ground_truth=False, random_draws=1)
        make_evaluation(trainer, pl_module, alone).evaluate()

    def _share(self, trainer: Trainer) -> Settings:
        return replace(self.settings, shard=Shard(trainer.global_rank, trainer.world_size))

    def _report(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what this call of the trainer came to, then show it."""
        folder = stage_folder(trainer)  # this and the next ask all processes
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if not trainer.is_global_zero:
            return
        report = FinalReport(self._evaluation_of(trainer, pl_module), metrics, folder)
        report.save(explanations=self.save)
        report.draw(self.figures if self.save and not self._has_diverged else 0)
        # Lightning prints a table of its own after `validate` and `test`.
        report.show(trainer, pl_module, self._board, table=trainer.state.fn == TrainerFn.FITTING)
