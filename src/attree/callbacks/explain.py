"""ExplainCallback: follow how well a network's attention explains it, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console
from torch import Tensor

from attree.attribution import AttributionMethod, GAtt, make_methods
from attree.callbacks.board import Board, log_scalars
from attree.callbacks.make_evaluator import ExplainSettings, make_evaluator
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.names import FAITHFULNESS, PREFIX, SECONDS, TRUTH
from attree.evaluation.result import metrics_json
from attree.faithfulness import Protocol, protocol_names, resolve_protocol
from attree.files import replacing, write_text
from attree.report.case_studies import draw_case_studies, draw_score_histograms
from attree.report.table import metrics_table


class ExplainCallback(Callback):
    """Logs explanation quality while a network trains; saves explanations and figures when it has trained.

    After each validation (in a fit, every `every_n_epochs` epochs and at the last one) each method scores the edges
    around the chosen targets, and these are logged:

    - `explain/<method>/<protocol>/pc_pearson` and six more statistics of how well the scores foretell what reducing
      an edge's attention does to the prediction, and `.../faithfulness`, their mean;
    - `explain/<method>/truth_auroc`, where the data has ground truth, over all targets that have some;
    - `explain/seconds`, what all this cost.

    When training ends, GAtt of all targets is saved to `explanations/gatt.npz` in the run's folder (format: see
    `attree.attribution.Attribution.save`), figures to `figures/`, the last metrics to `metrics.json`, and a table is
    printed. The network, its gradients and the random stream of training are never touched. In a distributed run the
    targets are spread over the processes; the metrics are those of one process.

    Other callbacks can monitor these metrics. A monitored metric should be there at every validation, so leave
    `every_n_epochs` at 1 then; and one that may be undefined (no prediction changed, say) is NaN in those epochs, which
    `EarlyStopping` takes only with `check_finite=False`.

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
        methods: Sequence[str | AttributionMethod] = ("gatt", "avgatt", "random"),
        protocols: Sequence[str | Protocol] = ("authors",),
        num_targets: int = 100,
        every_n_epochs: int = 1,
        ground_truth: bool = True,
        figures: int = 1,
        save: bool = True,
        random_draws: int = 3,
        seed: int = 0,
    ) -> None:
        made = make_methods(methods, seed=seed)
        for name in protocols:
            known = isinstance(name, Protocol) or name in protocol_names()
            expect(known, "protocols", f"names among {', '.join(protocol_names())}", name)
        expect(num_targets >= 1, "num_targets", "an integer >= 1", num_targets)
        expect(every_n_epochs >= 0, "every_n_epochs", "an integer >= 0", every_n_epochs)
        expect(figures >= 0, "figures", "an integer >= 0", figures)
        expect(random_draws >= 1, "random_draws", "an integer >= 1", random_draws)
        self.settings = ExplainSettings(
            tuple(made.values()), tuple(protocols), num_targets, ground_truth, random_draws, seed
        )
        self.every_n_epochs = every_n_epochs
        self.figures = figures
        self.save = save
        self.targets: Tensor | None = None
        self._evaluated_step = -1
        self._evaluator: Evaluator | None = None
        self._latest: Evaluation | None = None
        self._board: Board | None = None

    # Which targets were chosen is part of a run: a resumed one keeps them whatever the arguments say now.

    def state_dict(self) -> dict[str, Any]:
        return {} if self.targets is None else {"targets": self.targets.tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "targets" in state_dict:
            self.targets = torch.tensor(state_dict["targets"], dtype=torch.int64)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._evaluator = self._latest = None
        self._evaluated_step = -1
        if stage == "fit":  # a checkpoint that is resumed from is read after this
            self.targets = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._board = Board.of(trainer)
        if self._board is not None:
            protocols = [resolve_protocol(name, pl_module) for name in self.settings.protocols]
            self._board.write_layout(
                [method.name for method in self.settings.methods],
                dict.fromkeys(protocol.name for protocol in protocols),
            )

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or self._is_due(trainer):
            self._evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.enable_validation and self._is_due(trainer):
            self._evaluate(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finish(trainer, pl_module, self._evaluate_last(trainer, pl_module))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finish(trainer, pl_module, {})

    def _is_due(self, trainer: Trainer) -> bool:
        if trainer.sanity_checking:
            return False
        epoch = trainer.current_epoch + 1
        return epoch == trainer.max_epochs or (self.every_n_epochs > 0 and epoch % self.every_n_epochs == 0)

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began = perf_counter()
        evaluator = self._evaluator_of(trainer, pl_module)
        self._latest = evaluator.evaluate()
        self._log(trainer, pl_module, self._latest.metrics, perf_counter() - began)
        self._evaluated_step = trainer.global_step
        if (
            self._board is not None
            and self.figures
            and trainer.state.fn == TrainerFn.FITTING
            and self._is_drawn(trainer)
        ):
            step = trainer.global_step - 1  # where Lightning puts this epoch's scalars
            self._board.write_scores(self._latest, step)
            self._board.write_figures(draw_case_studies(evaluator, self.figures, self._ids), step)

    def _log(self, trainer: Trainer, pl_module: LightningModule, metrics: dict[str, float], seconds: float) -> None:
        shown = self._headline(metrics)
        together = trainer.world_size > 1  # the mean of equal values; without it Lightning warns of unequal ones
        if trainer.state.fn != TrainerFn.FITTING:
            for name, value in metrics.items():
                pl_module.log(name, value, batch_size=1, sync_dist=together)
            pl_module.log(SECONDS, seconds, batch_size=1, sync_dist=together)
            return
        # `LightningModule.log` takes about as long for dozens of scalars as the epoch itself. They are final and the
        # same in all processes, so they can go where it would put them: to the loggers and to whoever monitors them.
        if shown is not None:
            pl_module.log(shown, metrics[shown], prog_bar=True, logger=False, batch_size=1, sync_dist=together)
        values = metrics | {SECONDS: seconds}
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})
        log_scalars(trainer, values, trainer.global_step - 1)

    def _evaluate_last(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Metrics of the trained network where training ended without an evaluation, as early stopping may."""
        if self._evaluated_step == trainer.global_step:
            return {}
        self._latest = self._evaluator_of(trainer, pl_module).evaluate()
        log_scalars(trainer, self._latest.metrics, trainer.global_step - 1)
        return self._latest.metrics

    def _is_drawn(self, trainer: Trainer) -> bool:
        """Pictures cost more than an epoch: about five times in a run, and at the last epoch."""
        epoch, last, step = trainer.current_epoch + 1, trainer.max_epochs, max(self.every_n_epochs, 1)
        return last is not None and last > 0 and (epoch == last or epoch * 5 // last > (epoch - step) * 5 // last)

    @staticmethod
    def _headline(metrics: dict[str, float]) -> str | None:
        """The one metric that the progress bar shows: GAtt's ground-truth AUROC, or else its faithfulness."""
        wanted = [name for name in metrics if name.startswith(f"{PREFIX}/gatt/")]
        ranked = sorted(wanted, key=lambda name: (not name.endswith(TRUTH), not name.endswith(FAITHFULNESS)))
        return ranked[0] if ranked else None

    def _evaluator_of(self, trainer: Trainer, pl_module: LightningModule) -> Evaluator:
        if self._evaluator is None:
            self._evaluator, self.targets = make_evaluator(trainer, pl_module, self.settings, self.targets)
        return self._evaluator

    @property
    def _ids(self) -> Tensor | None:
        """What graphs are called in their dataset, where targets are positions in a batch."""
        graphs = self._evaluator is not None and self._evaluator.subject.batch is not None
        return self.targets if graphs else None

    def _finish(self, trainer: Trainer, pl_module: LightningModule, latest: dict[str, float]) -> None:
        """Save and show what the run came to; in one process, without collectives."""
        log_dir = trainer.log_dir if trainer.loggers else None  # asks all processes
        if not trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()} | latest
        console = Console(soft_wrap=True, highlight=False)
        console.print(metrics_table(metrics), soft_wrap=False)
        if self._board is not None:
            self._board.write_hyperparameters(pl_module, trainer, metrics)
        if log_dir is None:
            return
        folder = Path(log_dir)
        write_text(folder / "metrics.json", metrics_json(metrics))
        if not self.save:
            return
        evaluator = self._evaluator_of(trainer, pl_module)
        saved = GAtt().attribute(evaluator.subject, evaluator.explained).save(folder / "explanations" / "gatt.npz")
        if self.figures:
            drawn = draw_case_studies(evaluator, self.figures, self._ids)
            if self._latest is not None:
                drawn |= draw_score_histograms(self._latest)
            for name, figure in drawn.items():
                with replacing(folder / "figures" / f"{name}.png") as path:
                    figure.savefig(path, dpi=150)
        console.print(f"GAtt of all targets: {saved}")
        if self.figures:
            console.print(f"Figures: {folder / 'figures'}")
        console.print(f"Curves: tensorboard --logdir {getattr(trainer.logger, 'save_dir', None) or folder}")
