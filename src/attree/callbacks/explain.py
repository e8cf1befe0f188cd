"""ExplainCallback: log how well a network's attention explains it, epoch by epoch."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from attree.attribution import AttributionMethod
from attree.callbacks.call_state import (
    AfterTraining,
    CallState,
    WeightsHash,
    any_process,
    expect_equal_metrics,
    has_diverged,
    hash_weights,
    monitors_of,
    order_callbacks,
    warn_of_monitors,
)
from attree.callbacks.lightning_internals import log_step, validate_again
from attree.callbacks.reporting import FinalReport, Pictures, warn_only
from attree.callbacks.tensorboard import TensorBoardWriter
from attree.data import GroundTruth
from attree.data.random_state import unchanged_random_states
from attree.defaults import NUM_TARGETS, RANDOM_DRAWS, SEED
from attree.errors import expect, expect_bool, expect_int
from attree.evaluation import Evaluation, EvaluationConfig, Evaluator
from attree.evaluation.config import Shard
from attree.evaluation.metric_names import PREFIX, SECONDS
from attree.evaluation.on_disk import explained_in_disk_fit
from attree.evaluation.tables import TableKind
from attree.faithfulness import DEFAULT_PROTOCOLS, ReductionProtocol
from attree.runs.run_folder import stage_folder
from attree.source import Drawn, Reading, Subset, disk_source_of, explained_in_fit
from attree.source.from_lightning import of_trainer
from attree.subject import Head
from attree.subject.arguments_from_data import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout


class ExplainCallback(Callback):
    """Logs how well attention explains a network while it trains, and saves explanations and figures at the end.

    After each validation (in a fit, every `every_n_epochs` epochs and after the last one), each method scores the edges
    around the targets. The callback logs:

    - `explain/<method>/<protocol>/pc_pearson` and six more statistics: how well the scores predict the effect of
      reducing an edge's attention on the prediction; and `.../faithfulness`, their mean;
    - `explain/<method>/truth_auroc` over all targets with ground truth, if the data has any;
    - `explain/seconds`, the duration of the evaluation.

    When training ends, it writes to the run directory: the final metrics to `metrics.json` (undefined ones are `null`),
    GAtt scores of all targets to `explanations/gatt.npz` (format: see `attree.attribution.Attribution.save`), figures
    to `figures/`, and an HTML page to `page.html`. It prints a table. If a figure or page cannot be made, it warns, and
    saves the rest. `trainer.validate` and `trainer.test` log the same metrics as `validate/explain/...` and
    `test/explain/...`, and write to the subfolders `validate` and `test`, so that they do not change a fit's files.

    The callback does not change the network, its gradients or the random numbers of training. It opens no loader again,
    and reads only the graphs that are explained. In a distributed run, the processes share the targets; the metrics are
    those of a single process. Data or a network that cannot be explained is refused before the first epoch. With weight
    averaging (SWA, EMA), the averaged weights are explained. The final report is of the final weights, which are
    validated once more if necessary. The order of callbacks does not matter: this one evaluates before all others, and
    reports after them.

    Other callbacks can monitor these metrics. With `every_n_epochs=1` each validation has its own value; otherwise they
    see the last value again in between. To stop a run early, monitor a validation metric instead:
    `EarlyStopping("val/loss", patience=50, min_delta=0.005)`. Faithfulness is often highest before the network has
    learned anything, and NaN if it is undefined (for example, if no prediction changed).

    Args:
        methods: Attribution methods to compare, by name or as objects. None compares `gatt`, `avgatt`, `uniform` and
            `random`, and also `occlusion` if `removal` is measured by exact updates, which makes it cheap. (Occlusion
            is compared with ground truth only at the end.)
        protocols: Reduction protocols: `coefficient`, `weight`, `removal`, or `authors`, which is `weight` for GAT and
            `coefficient` otherwise (as in the paper's tables). Empty: no faithfulness, ground truth only.
        num_targets: Number of targets (nodes, pairs or graphs) to evaluate, drawn at random once per run.
        every_n_epochs: Number of epochs between two evaluations; 0 evaluates only after the last epoch.
        ground_truth: Compare with ground truth if the data has any.
        figures: Number of targets to draw as case studies, at the end of a run and about five times before (in at most
            a tenth of its time); 0 draws nothing and writes no page.
        save: Save GAtt scores of all targets, figures and the page (the final metrics are always saved).
        random_draws: Number of draws that the final statistics of `random` are averaged over; before, they are of one.
        seed: Seed of the choice of targets and of the `random` method.
        subset: The subset of nodes or graphs that targets are drawn from: `all`, `train`, `val` or `test`.
        data: The data to explain: a PyG `Data` or `HeteroData`, a list or dataset of `Data`, or an `OnDiskGraph`. None
            takes the trainer's data module (attree's, or PyG's `LightningNodeData`, `LightningLinkData` and
            `LightningDataset`) or the trainer's loaders.
        truth: True edges of nodes; None takes those of attree's data modules.
        network: Path of the network inside the module, such as `model.backbone`. None takes the first whose outputs fit
            the labels: the module itself, then `net`, `model`, `gnn`, `network`, `backbone`, `encoder`.
        call: A function instead of `network`: `call(module, data)` returns one row of outputs per node or graph.
        mode: PyG's mode of the model: `multiclass_classification`, `binary_classification` or `regression`; None infers
            it from the outputs.
        return_type: PyG's return type of the model: `raw`, `probs` or `log_probs`; None infers it from the outputs.
        readout: For graph-level modules, how nodes become a graph: `sum`, `mean` or `max`; None takes the module's
            `readout`, or infers it from the model.
        name: Name of the callback, if there are several: metrics are logged as `<name>/...` instead of `explain/...`,
            and files are written to a subfolder of that name.
        tests: When training ends, also test whether attention is an explanation of this network, see
            `attree.attention_tests`; written to `attention_tests.json`.
        table: What is printed at the end: `short` for the headline and a few numbers of each method, `full` for every
            statistic and every finding.
    """

    def __init__(
        self,
        methods: Sequence[str | AttributionMethod] | None = None,
        protocols: Sequence[str | ReductionProtocol] = DEFAULT_PROTOCOLS,
        num_targets: int = NUM_TARGETS,
        every_n_epochs: int = 1,
        ground_truth: bool = True,
        figures: int = 1,
        save: bool = True,
        random_draws: int = RANDOM_DRAWS,
        seed: int = SEED,
        subset: Subset = "all",
        data: Any = None,
        truth: GroundTruth | None = None,
        network: str | None = None,
        call: Call | None = None,
        mode: Mode | None = None,
        return_type: ReturnType | None = None,
        readout: Readout | None = None,
        name: str = PREFIX,
        tests: bool = False,
        table: TableKind = "short",
    ) -> None:
        config = EvaluationConfig(methods, protocols, num_targets, ground_truth, random_draws, seed)
        expect_int(every_n_epochs, "every_n_epochs", 0)
        expect_int(figures, "figures", 0)
        expect(subset in ("all", "train", "val", "test"), "subset", "'all', 'train', 'val' or 'test'", subset)
        expect(re.fullmatch(r"\w[\w.-]*", name) is not None, "name", "letters, digits and any of _ . -", name)
        expect(network is None or call is None, "call", "None if `network` is given", call)
        expect(table in ("short", "full"), "table", "'short' or 'full'", table)
        self.config = config
        self.reading = Reading(call, None, None, readout, Head(mode, return_type), network)
        self.data, self.subset, self.truth = data, subset, truth
        self.every_n_epochs, self.name = every_n_epochs, name
        self.figures, self.save, self.table = figures, save, table
        self.tests = expect_bool(tests, "tests")
        self._state = CallState(Pictures(figures, every_n_epochs, name), AfterTraining(self._finish_fit))

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    @property
    def targets(self) -> Tensor | None:
        """The chosen targets: node ids, or positions of graphs in their dataset; None before they are chosen."""
        return None if self._state.drawn is None else self._state.drawn.targets

    @property
    def latest(self) -> Evaluation | None:
        """The last evaluation of the last call of the trainer; None if there was none."""
        return self._state.latest

    # A resumed run keeps its targets, whatever the arguments say now, unless its data has changed.

    def state_dict(self) -> dict[str, Any]:
        drawn = self._state.drawn
        return {} if drawn is None else {"targets": drawn.targets.tolist(), "data": drawn.data}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "targets" in state_dict:
            targets = torch.tensor(state_dict["targets"], dtype=torch.int64)
            self._state.drawn = Drawn(targets, state_dict.get("data", ""))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        former = self._state
        drawn = None if stage == "fit" else former.drawn  # the checkpoint of a resumed run is read after this
        pictures = Pictures(self.figures, self.every_n_epochs, self.name)
        self._state = CallState(pictures, former.after_training, drawn)
        order_callbacks(trainer, self, former.after_training)
        expect_equal_metrics(self.name)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier: only now has the fit opened its loaders, so that they need not be opened again.
        evaluator = self._evaluator(trainer, pl_module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first evaluation repeats these warnings
            evaluator.try_out()
        self._state.writer = TensorBoardWriter.of(trainer, self.name)
        warn_of_monitors(trainer, self.name, self.every_n_epochs)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_layout(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        in_fit, weights = trainer.state.fn == TrainerFn.FITTING, None
        if in_fit:
            self._state.validated = weights = hash_weights(pl_module.state_dict())
        if not in_fit or self._state.has_ended or self._is_due(trainer):
            self._evaluate(trainer, pl_module, weights)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.enable_validation and self._is_due(trainer):
            # All processes must read the metrics if one has: see `LastCheckpoint._save`.
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
        """Evaluate the final weights if they have not been evaluated yet, then report."""
        state, weights = self._state, hash_weights(pl_module.state_dict())
        state.has_ended = True
        if any_process(trainer, not (state.is_final and state.evaluated == weights)):
            if trainer.enable_validation and any_process(trainer, state.validated != weights):
                with unchanged_random_states(trainer.val_dataloaders):
                    validate_again(trainer, self)
            else:
                self._evaluate(trainer, pl_module)
        self._write_layout(trainer)
        self._report(trainer, pl_module)

    def _is_due(self, trainer: Trainer) -> bool:
        epoch = trainer.current_epoch + 1
        if epoch == trainer.max_epochs or (self.every_n_epochs > 0 and epoch % self.every_n_epochs == 0):
            return True
        return self._state.latest is None and bool(monitors_of(trainer, self.name))

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule, weights: WeightsHash | None = None) -> None:
        """Evaluate the explanations of the module's current weights, and log the metrics.

        Args:
            trainer: The trainer.
            pl_module: The module.
            weights: The hash of its weights, if it is known.
        """
        began, state, in_fit = perf_counter(), self._state, trainer.state.fn == TrainerFn.FITTING
        # `validate` and `test` run in inference mode, but readouts and some methods need gradients.
        with torch.inference_mode(False), torch.no_grad():
            evaluator = self._evaluator(trainer, pl_module)
            state.is_final = not in_fit or state.has_ended or trainer.current_epoch + 1 == trainer.max_epochs
            state.latest = latest = evaluator.evaluate(final=state.is_final)
        metrics = latest.metrics | {SECONDS: perf_counter() - began}
        weights = hash_weights(pl_module.state_dict()) if weights is None else weights
        state.is_logged = state.has_ended and state.evaluated == weights
        state.evaluated = weights
        state.has_diverged = any(map(math.isnan, metrics.values())) and has_diverged(pl_module, latest)
        if state.has_diverged:
            state.warn_diverged()
        state.log(trainer, pl_module, metrics, self.name)
        if in_fit:
            state.show_progress(trainer, evaluator, latest, self.save)
            if state.writer is not None:
                with warn_only("TensorBoard's first group of curves"):
                    state.writer.write_headline(latest.metrics, log_step(trainer))

    def _write_layout(self, trainer: Trainer) -> None:
        """Write the layout of TensorBoard's Custom Scalars page, once the metrics are known."""
        state = self._state
        if state.latest is None or state.evaluator is None or state.has_layout:
            return
        state.has_layout = True
        metrics = self._reported(trainer)  # all processes must call this
        if state.writer is not None:
            with warn_only("TensorBoard's page of custom scalars"):
                state.writer.write_layout(state.evaluator, metrics)

    def _reported(self, trainer: Any) -> dict[str, float]:
        """Return all metrics of the run under the names that reports use, without those of other ExplainCallbacks."""
        siblings = [
            callback for callback in trainer.callbacks if isinstance(callback, ExplainCallback) and callback is not self
        ]
        others = {name for callback in siblings for name in callback._state.names}
        report_names = self._state.names
        logged = trainer.callback_metrics.items()
        return {
            report_names.get(name, name): float(value)
            for name, value in logged
            if name in report_names or name not in others
        }

    def _evaluator(self, trainer: Trainer, pl_module: LightningModule) -> Evaluator:
        """Return the evaluator of this call of the trainer; the first time, find what to explain."""
        state, config = self._state, self.config
        if state.evaluator is None:
            on_disk = disk_source_of(trainer if self.data is None else self.data, self.subset)
            if on_disk is None:
                source = of_trainer(trainer, self.data, self.subset, config.seed)
                explained = explained_in_fit(
                    pl_module,
                    source,
                    self.reading,
                    config.num_targets,
                    config.seed,
                    pl_module.device,
                    state.drawn,
                    self.truth,
                )
            else:
                expect(self.truth is None, "truth", "None for a graph on disk", "ground truth")
                explained, config = explained_in_disk_fit(pl_module, on_disk, self.reading, config, state.drawn)
            shard = Shard(trainer.global_rank, trainer.world_size)
            state.evaluator = Evaluator(
                explained.subject, explained.targets, config, explained.truth, labels=explained.labels, shard=shard
            )
            state.drawn = explained.drawn
        return state.evaluator

    @unchanged_random_states()  # links and figures may draw random numbers
    def _report(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the results of this call of the trainer, then show them."""
        folder, state = stage_folder(trainer), self._state  # all processes must call this and the next two
        metrics = self._reported(trainer)
        evaluator = state.evaluator
        if state.latest is not None and evaluator is not None:
            state.latest = evaluator.with_certainty(state.latest)
        if not trainer.is_global_zero or state.latest is None or evaluator is None:
            return
        folder = folder if folder is None or self.name == PREFIX else folder / self.name
        stage, in_fit = trainer.state.fn, trainer.state.fn == TrainerFn.FITTING
        prefix = "" if stage is None or in_fit else f"{stage.value}/"
        report = FinalReport(evaluator, state.latest, metrics, folder, prefix)
        with torch.inference_mode(False), torch.no_grad():
            report.save(explanations=self.save)
            if self.tests:
                report.test_attention()
        is_saved = self.save and folder is not None
        if self.figures > 0 and not state.has_diverged and (is_saved or (in_fit and state.is_shown(trainer))):
            figures = state.pictures.draw(evaluator, state.latest)
            if in_fit:
                state.pictures.show(figures, trainer, state.writer, state.latest)
            if is_saved:
                report.write_figures(figures)
                report.write_page(trainer.loggers)
        # Lightning prints a table of its own after `validate` and `test`.
        report.show(trainer, pl_module, state.writer, self.table if in_fit else None)
