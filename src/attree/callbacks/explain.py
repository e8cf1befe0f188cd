"""ExplainCallback: follow how well a network's attention explains it, epoch by epoch."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from attree.attribution import AttributionMethod, make_methods
from attree.callbacks.board import Board
from attree.callbacks.explained_data import Subset
from attree.callbacks.final_report import FinalReport
from attree.callbacks.make_evaluator import ExplainSettings, make_evaluator
from attree.callbacks.order import AfterTraining, place
from attree.callbacks.pictures import Pictures
from attree.callbacks.run_folder import stage_folder
from attree.callbacks.scalars import log_explanation
from attree.callbacks.warn_only import warn_only
from attree.callbacks.weights import Weights, any_process, copy_weights, has_diverged, is_same, validate_again
from attree.data import GroundTruth
from attree.errors import expect
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.names import PREFIX, SECONDS
from attree.faithfulness import Protocol, protocol_names
from attree.subject import Head
from attree.subject.binding import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout


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
    `figures/`, and a page to look at it all in a browser to `page.html`; a table is printed. What cannot be shown is a
    warning: what is saved does not depend on it. `trainer.validate` and `trainer.test` log the same metrics under
    `validate/explain/...` and `test/explain/...`, and save to folders `validate` and `test` of the run's folder, so
    that a fit's curves and files stay as they are.

    The network, its gradients and the random stream of training are never touched. In a distributed run the targets
    are spread over the processes; the metrics are those of one process. Data or a network that cannot be explained is
    refused before the first epoch. Where callbacks average the weights, what is validated is what is explained, and
    what is saved is of the weights that the run ends with: these are validated once more if they were not. (The order
    of callbacks does not matter: this one puts itself first, and what it does when training has ended last.)

    Other callbacks can monitor these metrics, with `every_n_epochs` at 1, so that they are there at every validation.
    But to stop a run, monitor what it learns: `EarlyStopping("val/loss", patience=50, min_delta=0.005)`. Faithfulness
    is often highest before anything is learned, and NaN where it is undefined (no prediction changed, say).

    Args:
        methods: Attribution methods to compare: `gatt`, `gatt_sim`, `gatt_avg`, `avgatt`, `random`, or methods of one's
            own.
        protocols: Reduction protocols: `coefficient`, `weight`, `removal`, or `authors`, which is `weight` for GAT and
            `coefficient` otherwise. Empty: no faithfulness, ground truth only.
        num_targets: Targets (nodes or graphs) whose predictions are measured; chosen at random once a run.
        every_n_epochs: Epochs between two evaluations; 0 evaluates only at the last epoch.
        ground_truth: Measure against ground truth where the data has some.
        figures: How many targets are drawn as case studies, about five times in a run and at its end; 0 draws nothing,
            and writes no page.
        save: Save GAtt of all targets, figures and the page in the run's folder (the final metrics always are).
        random_draws: Draws that the statistics of `random` are averaged over; fewer cost less on large graphs.
        seed: Seed of the choice of targets and of the `random` method.
        subset: Which nodes or graphs targets are chosen from: `all`, `train`, `val` or `test`.
        data: What is explained: a PyG `Data`, or a list or dataset of them; None takes the trainer's data module
            (attree's, or PyG's `LightningNodeData` and `LightningDataset`) or loaders.
        truth: True edges of nodes; None takes those of attree's data modules.
        network: Where the network is inside the module, such as `model.backbone`; None takes the first whose outputs
            fit the labels: the module itself, then `net`, `model`, `gnn`, `network`, `backbone`, `encoder`.
        call: How to call the module instead: `call(module, data)` returns one row of outputs per node or graph.
        mode: What is predicted, in PyG's words: `multiclass_classification`, `binary_classification` or `regression`;
            None tells it from the outputs.
        return_type: What the outputs are: `raw`, `probs` or `log_probs`; None tells it from them.
        readout: Graph-level modules: how nodes become a graph, `sum`, `mean` or `max`; None takes the module's own
            `readout`, or else reads it from the model.
        name: Tells several of these callbacks apart: metrics are logged as `<name>/...` instead of `explain/...`, files
            go to a folder of that name.
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
        subset: Subset = "all",
        data: Any = None,
        truth: GroundTruth | None = None,
        network: str | None = None,
        call: Call | None = None,
        mode: Mode | None = None,
        return_type: ReturnType | None = None,
        readout: Readout | None = None,
        name: str = PREFIX,
    ) -> None:
        made = make_methods(methods, seed=seed)
        for protocol in protocols:
            known = isinstance(protocol, Protocol) or protocol in protocol_names()
            expect(known, "protocols", f"names among {', '.join(protocol_names())}", protocol)
        expect(num_targets >= 1, "num_targets", "an integer >= 1", num_targets)
        expect(every_n_epochs >= 0, "every_n_epochs", "an integer >= 0", every_n_epochs)
        expect(figures >= 0, "figures", "an integer >= 0", figures)
        expect(random_draws >= 1, "random_draws", "an integer >= 1", random_draws)
        expect(re.fullmatch(r"\w[\w.-]*", name) is not None, "name", "letters, digits and any of _ . -", name)
        expect(network is None or call is None, "call", "None where `network` is given", call)
        self.settings = ExplainSettings(
            tuple(made.values()),
            tuple(protocols),
            num_targets,
            ground_truth,
            random_draws,
            seed,
            subset,
            data,
            truth,
            network,
            call,
            Head(mode, return_type),
            readout,
        )
        self.every_n_epochs = every_n_epochs
        self.figures = figures
        self.save = save
        self.name = name
        self.targets: Tensor | None = None
        self._after_training = AfterTraining(self._finish_fit)
        self._has_layout = False
        self._has_ended = False
        self._has_diverged = False
        self._said_diverged = False
        self._evaluated_weights: Weights | None = None
        self._validated_weights: Weights | None = None
        self._evaluator: Evaluator | None = None
        self._latest: Evaluation | None = None
        self._board: Board | None = None
        self._pictures = Pictures(figures, every_n_epochs, name)

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    # Which targets were chosen is part of a run: a resumed one keeps them whatever the arguments say now.

    def state_dict(self) -> dict[str, Any]:
        return {} if self.targets is None else {"targets": self.targets.tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "targets" in state_dict:
            self.targets = torch.tensor(state_dict["targets"], dtype=torch.int64)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._evaluator = self._latest = None
        self._board = None
        self._pictures.forget()
        self._has_ended = self._has_diverged = self._said_diverged = False
        self._evaluated_weights = self._validated_weights = None
        if stage == "fit":  # a checkpoint that is resumed from is read after this
            self.targets = None
        place(trainer, self, self._after_training)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluator_of(trainer, pl_module)
        self._try_out(trainer, pl_module)
        self._board = Board.of(trainer, self.name)
        self._has_layout = False

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            self._validated_weights = copy_weights(pl_module.state_dict())
        if trainer.state.fn != TrainerFn.FITTING or self._has_ended or self._is_due(trainer):
            self._evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.enable_validation and self._is_due(trainer):
            # As a progress bar may have done in the first process alone: see LastCheckpoint.
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
        elif self._latest is not None and not self._has_diverged and self._pictures.are_due(trainer, has_ended=True):
            evaluator = self._evaluator_of(trainer, pl_module)
            self._draw(trainer, evaluator, self._latest, trainer.global_step - 1)
        self._report(trainer, pl_module)

    def _is_due(self, trainer: Trainer) -> bool:
        epoch = trainer.current_epoch + 1
        return epoch == trainer.max_epochs or (self.every_n_epochs > 0 and epoch % self.every_n_epochs == 0)

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began = perf_counter()
        evaluator = self._evaluator_of(trainer, pl_module)
        self._latest = latest = evaluator.evaluate()
        metrics = latest.metrics | {SECONDS: perf_counter() - began}
        self._evaluated_weights = copy_weights(pl_module.state_dict())
        self._has_diverged = any(map(math.isnan, metrics.values())) and has_diverged(pl_module, latest)
        if self._has_diverged:
            self._say_diverged()
        step = trainer.global_step - 1  # where this epoch's other scalars are
        log_explanation(trainer, pl_module, self._named(metrics), step, in_bar=not self._has_ended)
        if self._board is not None and not self._has_layout:
            with warn_only("TensorBoard's page of custom scalars"):
                self._board.write_layout(evaluator, trainer.callback_metrics)
            self._has_layout = True
        in_fit = trainer.state.fn == TrainerFn.FITTING and not self._has_diverged
        if in_fit and self._pictures.are_due(trainer, self._has_ended):
            self._draw(trainer, evaluator, latest, step)

    def _draw(self, trainer: Trainer, evaluator: Evaluator, evaluation: Evaluation, step: int) -> None:
        self._pictures.draw(trainer, self._board, evaluator, evaluation, step)

    def _say_diverged(self) -> None:
        if not self._said_diverged:
            rank_zero_warn(
                "The network's weights or attention are not finite (NaN or infinite): it has diverged, and statistics "
                "of its explanations are NaN. A lower learning rate may help."
            )
        self._said_diverged = True

    def _named(self, metrics: dict[str, float]) -> dict[str, float]:
        """Metrics under this callback's own name."""
        return {self.name + name.removeprefix(PREFIX): value for name, value in metrics.items()}

    def _own(self, metrics: dict[str, float], trainer: Any) -> dict[str, float]:
        """The run's metrics with this callback's under their usual names, and without those of others of its kind."""
        kin = [one for one in trainer.callbacks if isinstance(one, ExplainCallback) and one is not self]
        others = tuple(f"{one.name}/" for one in kin)
        return {
            name.replace(f"{self.name}/", f"{PREFIX}/", 1) if name.startswith(f"{self.name}/") else name: value
            for name, value in metrics.items()
            if not name.startswith(others)
        }

    def _evaluator_of(self, trainer: Trainer, pl_module: LightningModule) -> Evaluator:
        if self._evaluator is None:
            self._evaluator, self.targets = make_evaluator(trainer, pl_module, self.settings, self.targets)
        return self._evaluator

    def _try_out(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate one target, so that a network which cannot be explained is refused now, not many epochs later."""
        alone = replace(self.settings, num_targets=1, ground_truth=False, random_draws=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is to be said is said by the first evaluation
            make_evaluator(trainer, pl_module, alone, warn=False)[0].evaluate()

    def _report(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what this call of the trainer came to, then show it."""
        folder = stage_folder(trainer)  # this and the next ask all processes
        metrics = self._own({name: float(value) for name, value in trainer.callback_metrics.items()}, trainer)
        if not trainer.is_global_zero or self._latest is None:
            return
        folder = folder if folder is None or self.name == PREFIX else folder / self.name
        evaluator = self._evaluator_of(trainer, pl_module)
        report = FinalReport(evaluator, self._latest, metrics, folder)
        report.save(explanations=self.save)
        if self.save and self.figures > 0 and not self._has_diverged:
            report.draw(self.figures)
            report.write_page(trainer.loggers)
        # Lightning prints a table of its own after `validate` and `test`.
        report.show(trainer, pl_module, self._board, table=trainer.state.fn == TrainerFn.FITTING)
