"""The report at the end of a run: metrics, explanations, figures, the page, and the printed table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from matplotlib.figure import Figure
from rich.text import Text

from attree.attribution import GAtt
from attree.callbacks._private import log_step
from attree.callbacks.pictures import warn_only
from attree.callbacks.tensorboard import TensorBoardWriter
from attree.evaluation import AttentionTests, Evaluation, Evaluator, attention_tests
from attree.io.console import linked, plain_console
from attree.io.files import replacing, write_metrics
from attree.report.curves import read_curves
from attree.report.page import write_page
from attree.report.style import as_png
from attree.report.table import metrics_table
from attree.runs.run_folder import flush_logger, is_logger


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
        """Write `metrics.json` and, with `explanations`, the GAtt scores of all targets."""
        if self.folder is None:
            return
        write_metrics(self.folder / "metrics.json", self.metrics, self.intervals, self.evaluation.verdict.sentences)
        if explanations:
            scores = GAtt().attribute(self.evaluator.subject, self.evaluator.explained)
            ids = self.evaluator.labels.ids
            if ids is not None:  # the same ids as in the figures
                scores = replace(scores, targets=ids.to(scores.targets))
            saved = scores.save(self.folder / "explanations" / "gatt.npz")
            self._written.append(Text("GAtt of all targets: ") + linked(saved))

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
        own, every = self.evaluation.targets.numel(), self.evaluator.targets.numel()
        return facts if own == every else facts | {"shown": f"{own} of {every} targets, those of the first process"}

    def show(self, trainer: Trainer, pl_module: LightningModule, writer: TensorBoardWriter | None, table: bool) -> None:
        """Write TensorBoard's HParams page, print the table if `table`, and list the files that were written."""
        if writer is not None:
            with warn_only("TensorBoard's HParams page"):
                writer.write_hyperparameters(pl_module, trainer, self.metrics)
            with warn_only("TensorBoard's page of texts"):
                writer.write_results(self.metrics, log_step(trainer))
        console = plain_console(soft_wrap=True)
        if table:
            count = self.evaluator.targets.numel()
            console.print(metrics_table(self.metrics, num_targets=count, intervals=self.intervals), soft_wrap=False)
            console.print(str(self.evaluation.verdict), markup=False)
            if self.tests is not None:
                console.print(str(self.tests), markup=False)
        for line in self._written:
            console.print(line)
        if table and self.folder is None:
            console.print("Nothing was saved, as the trainer has no logger: no figures, page or explanations.")
        curves = [logger.save_dir for logger in trainer.loggers if is_logger(logger, "TensorBoardLogger")]
        if curves and table:
            console.print(f"Curves: {shlex.join(['tensorboard', '--logdir', str(curves[0])])}")
