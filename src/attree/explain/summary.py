"""What people look at of a call with few targets: metrics, figures, a table and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement

from attree.evaluation import Evaluation, Evaluator
from attree.explain.explained import Explained
from attree.explain.figures import draw_figures
from attree.explain.load_run import FinishedRun
from attree.explain.top_edges import top_edges_table
from attree.faithfulness import reduce_attention
from attree.files import replacing
from attree.metrics_file import read_metrics
from attree.report.curves import read_curves
from attree.report.page import write_page
from attree.report.page.content import MAX_TARGETS
from attree.report.table import metrics_table

MOST_TARGETS = MAX_TARGETS
"""Targets up to which there is a summary: as many as a page shows."""

FORMATS = (".png", ".svg")
OWN_FILES = ("metrics.json", "methods.json", "evaluation.npz", "page.html", "scores_*.npz")


class Summary:
    """Writes and prints what few targets come to.

    Args:
        run: The run.
        explained: What is explained of it.
        evaluation: What the methods say.
        evaluator: What evaluated it.
    """

    def __init__(self, run: FinishedRun, explained: Explained, evaluation: Evaluation, evaluator: Evaluator) -> None:
        self.run = run
        self.explained = explained
        self.evaluation = evaluation
        self.evaluator = evaluator

    def write(self, out: Path, figures: int) -> None:
        """Write metrics, scores, figures of the first few targets, and the page."""
        self.evaluation.save(out)
        for name, scores in self.evaluation.scores.items():
            scores.save(out / f"scores_{name}.npz")
        for name, figure in draw_figures(self.explained, self.evaluator, self.evaluation, figures).items():
            for suffix in FORMATS:
                with replacing(out / "figures" / f"{name}{suffix}") as path:
                    figure.savefig(path, dpi=150)
        self._write_page(out / "page.html")

    def show(self, console: Console, count: int) -> None:
        """Print the metrics, and the strongest edges of the first few targets."""
        if self.evaluation.metrics:
            console.print(metrics_table(self.evaluation.metrics), soft_wrap=False)
        explained = self.explained
        tables = top_edges_table(
            self.evaluation, explained.ids, explained.labels, count, explained.first_nodes, explained.class_names
        )
        for table in tables:
            # Wider than the terminal rather than with numbers cut off.
            wanted = Measurement.get(console, console.options.update(width=1000), table).maximum
            console.print(table, soft_wrap=False, crop=False, width=max(wanted, 40))

    def _write_page(self, path: Path) -> None:
        subject = self.explained.subject
        inputs = subject.inputs
        reductions = {
            name: reduce_attention(
                subject.model,
                inputs.x,
                inputs.edge_index,
                self.evaluation.pairs,
                name,
                *inputs.args,
                graph=subject.graph,
                head=subject.head,
                with_probability=True,
                **inputs.kwargs,
            )
            for name in self.evaluation.reductions
        }
        metrics_file = self.run.folder / "metrics.json"
        metrics = read_metrics(metrics_file) if metrics_file.is_file() else {}
        accuracy = {name: f"{value:.4f}" for name, value in metrics.items() if name == "val/acc"}
        write_page(
            path,
            replace(self.evaluation, reductions=reductions),
            curves=read_curves(self.run.folder),
            summary={"run": str(self.run.folder)} | accuracy,
        )


def clear_summary(out: Path) -> None:
    """Remove what an earlier call wrote to its folder, beside its dataset."""
    for pattern in OWN_FILES:
        for path in out.glob(pattern):
            path.unlink(missing_ok=True)
    for suffix in FORMATS:
        for path in (out / "figures").glob(f"*{suffix}"):
            path.unlink(missing_ok=True)
