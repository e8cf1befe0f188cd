"""Show and save explanations: pictures while a run trains, and the report at its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn
from matplotlib.figure import Figure
from rich.text import Text

from attree.attribution import AttributionMethod, GAtt, Structure
from attree.callbacks.lightning_internals import log_step
from attree.callbacks.tensorboard import TensorBoardWriter
from attree.evaluation import AttentionTests, Evaluation, Evaluator, attention_tests
from attree.evaluation.metric_names import truth_note
from attree.evaluation.tables import TableKind
from attree.faithfulness import Occlusion
from attree.io.files import replacing, write_metrics
from attree.io.terminal import linked, plain_console
from attree.report.case_study import draw_case_studies, draw_score_histograms
from attree.report.logged_metrics import print_results, read_curves
from attree.report.page import write_page
from attree.report.style import as_png
from attree.runs.run_folder import flush_logger, is_logger
from attree.subject import Subject

SHARE = 0.1
"""Largest share of a fit's time that pictures may take before its end."""

FIRST_SECONDS = 2.0
"""Assumed seconds for the first pictures, before any were timed."""

FigureSink = Callable[[str, Figure, int], None]
"""Called as `sink(name, figure, step)`."""


@contextmanager
def warn_only(what: str) -> Iterator[None]:
    """Turn any exception inside the block into a one-line warning. For pictures and dashboards, never for results."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        rank_zero_warn(f"{what} could not be made ({type(error).__name__}: {reason}); the run continues without it.")


class Pictures:
    """Draws case studies and histograms about five times while a run trains, and once at its end.

    Pictures take longer than many epochs on a small graph, so they may take at most a tenth of the run's time before
    its end. A picture that cannot be drawn or shown causes a warning.

    Args:
        count: Number of targets to draw as case studies; 0 draws nothing.
        every_n_epochs: Number of epochs between two evaluations.
        name: First word of the pictures' names in dashboards.
    """

    def __init__(self, count: int, every_n_epochs: int, name: str) -> None:
        self.count = count
        self.every_n_epochs = every_n_epochs
        self.name = name
        self._began = perf_counter()
        self._spent = 0.0
        self._last_seconds = FIRST_SECONDS

    def are_due(self, trainer: Trainer) -> bool:
        """Whether to draw after this evaluation, while training continues."""
        epoch, last, step = trainer.current_epoch + 1, trainer.max_epochs, max(self.every_n_epochs, 1)
        if self.count == 0 or last is None or last <= 0 or epoch * 5 // last <= (epoch - step) * 5 // last:
            return False
        return self._spent + self._last_seconds <= SHARE * (perf_counter() - self._began)

    def draw(self, evaluator: Evaluator, evaluation: Evaluation) -> dict[str, Figure]:
        """Draw an evaluation, and return the figures by name. If drawing fails, warn and return those drawn so far."""
        began = perf_counter()
        figures: dict[str, Figure] = {}
        with warn_only("Figures"):
            figures |= draw_case_studies(evaluator, self.count)
            figures |= draw_score_histograms(evaluation)
        self._last_seconds = perf_counter() - began
        self._spent += self._last_seconds
        return figures

    def show(
        self, figures: Mapping[str, Figure], trainer: Trainer, writer: TensorBoardWriter | None, evaluation: Evaluation
    ) -> None:
        """Send pictures to TensorBoard and to all other loggers that accept figures."""
        step = log_step(trainer)
        with warn_only("Pictures in dashboards"):
            if writer is not None:
                writer.write_scores(evaluation, step)
                writer.write_figures(figures, step)
            for sink in figure_sinks(trainer):
                for name, figure in figures.items():
                    sink(f"{self.name}/{name}", figure, step)


def figure_sinks(trainer: Trainer) -> list[FigureSink]:
    """Return a function for each logger that accepts figures, except TensorBoard's; none outside the first process."""
    if not trainer.is_global_zero:
        return []
    return [make(logger) for logger in trainer.loggers for name, make in SINKS.items() if is_logger(logger, name)]


def _wandb(logger: Any) -> FigureSink:
    def write(name: str, figure: Figure, step: int) -> None:
        import wandb

        # W&B's own step counts calls. Lightning logs the trainer's step as a metric of this name, and charts use it.
        logger.experiment.log({name: wandb.Image(figure), "trainer/global_step": step})

    return write


def _mlflow(logger: Any) -> FigureSink:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.experiment.log_figure(logger.run_id, figure, f"{name}_step_{step}.png")

    return write


SINKS: dict[str, Callable[[Any], FigureSink]] = {"WandbLogger": _wandb, "MLFlowLogger": _mlflow}
"""Functions that write figures to a logger, by the name of the logger's class."""


@dataclass
class FinalReport:
    """Saves and shows the final metrics and explanations. It runs in the first process, and waits for no other.

    Attributes:
        evaluator: The evaluator of the network.
        evaluation: Its last evaluation.
        metrics: The final metrics, by name.
        folder: Folder to save to; None saves nothing.
        prefix: Prefix of the evaluation's names among the metrics.
    """

    evaluator: Evaluator
    evaluation: Evaluation
    metrics: dict[str, float]
    folder: Path | None
    prefix: str = ""

    def __post_init__(self) -> None:
        self._written: list[Text] = []
        self.tests: AttentionTests | None = None

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % intervals of the metrics, by name."""
        return {f"{self.prefix}{name}": ends for name, ends in self.evaluation.intervals.items()}

    def save(self, explanations: bool) -> None:
        """Write `metrics.json` and, with `explanations`, scores of all targets: GAtt's, else `structure` or effects."""
        if self.folder is None:
            return
        verdict = self.evaluation.verdict
        write_metrics(self.folder / "metrics.json", self.metrics, self.intervals, verdict.sentences, verdict.headline)
        if explanations:
            method = _saved_method(self.evaluator.subject)
            scores = method.attribute(self.evaluator.subject, self.evaluator.explained)
            ids = self.evaluator.labels.ids
            if ids is not None:  # the same ids as in the figures
                scores = replace(scores, targets=ids.to(scores.targets))
            saved = scores.save(self.folder / "explanations" / f"{method.name}.npz")
            self._written.append(Text(f"{method.label} of all targets: ") + linked(saved))

    def test_attention(self) -> None:
        """Run `attree.attention_tests`. A network that these tests do not support causes a warning."""
        with warn_only("The tests of attention"):
            subject = self.evaluator.subject
            targets, labels = self.evaluator.targets, self.evaluator.labels.labels
            seed = self.evaluator.config.seed
            self.tests = attention_tests(subject.model, subject, targets, labels=labels, seed=seed)
            if self.folder is not None:
                path = write_metrics(
                    self.folder / "attention_tests.json", self.tests.to_dict(), verdict=self.tests.sentences
                )
                self._written.append(Text("Tests of attention: ") + linked(path))

    def write_figures(self, figures: Mapping[str, Figure]) -> None:
        """Write figures as PNG files by name. A figure that cannot be written causes a warning."""
        if self.folder is None or not figures:
            return
        with warn_only("Figures"):
            for name, figure in figures.items():
                with replacing(self.folder / "figures" / f"{name}.png") as path:
                    path.write_bytes(as_png(figure))
            self._written.append(Text("Figures: ") + linked(self.folder / "figures"))

    def write_page(self, loggers: Sequence[Logger]) -> None:
        """Write the page of the run's targets and curves. A page that cannot be written causes a warning."""
        if self.folder is None:
            return
        with warn_only("The page"):
            for logger in loggers:  # so that the curves are complete
                if is_logger(logger, "TensorBoardLogger", "CSVLogger"):
                    flush_logger(logger)
            path = write_page(
                self.folder / "page.html", self.evaluation, curves=read_curves(self.folder), summary=self._facts()
            )
            self._written.append(Text("Page: ") + linked(path))

    def _facts(self) -> dict[str, str]:
        """Return the facts at the top of the page."""
        facts = {"run": str(self.folder)}
        facts |= {name: f"{value:.4f}" for name, value in self.metrics.items() if name.startswith("val/")}
        if self.evaluation.num_true_targets is not None:
            facts["table"] = truth_note(self.evaluation.num_true_targets)
        num_explained, num_targets = self.evaluation.targets.numel(), self.evaluator.targets.numel()
        if num_explained == num_targets:
            return facts
        return facts | {"shown": f"{num_explained} of {num_targets} targets, those of the first process"}

    def show(
        self, trainer: Trainer, pl_module: LightningModule, writer: TensorBoardWriter | None, table: TableKind | None
    ) -> None:
        """Write TensorBoard's HParams page, print the table, and list the files that were written."""
        if writer is not None:
            with warn_only("TensorBoard's HParams page"):
                writer.write_hyperparameters(pl_module, trainer, self.metrics)
            with warn_only("TensorBoard's page of texts"):
                writer.write_results(self.metrics, log_step(trainer), self.evaluation.verdict.headline)
        console = plain_console(soft_wrap=True)
        if table:
            print_results(console, self.evaluation, self.metrics, self.intervals, table)
            if self.tests is not None:
                console.print(str(self.tests), markup=False)
        for line in self._written:
            console.print(line)
        if table and self.folder is None:
            console.print("Nothing was saved, as the trainer has no logger: no figures, page or explanations.")
        curves = [logger.save_dir for logger in trainer.loggers if is_logger(logger, "TensorBoardLogger")]
        if curves and table:
            console.print(f"Curves: {shlex.join(['tensorboard', '--logdir', str(curves[0])])}")


def _saved_method(subject: Subject) -> AttributionMethod:
    """Return the method whose scores of all targets a run keeps: the first one that the network supports."""
    if subject.layers.untraced is not None:
        return Occlusion()
    return GAtt() if subject.layers.has_attention else Structure()
