"""A progress bar for training with epochs of one or few steps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from attree.attribution import method_label
from attree.evaluation.metric_names import TRUTH, WITHIN, MetricName
from attree.evaluation.tables import HEADERS
from attree.io.terminal import plain_console


class EpochProgress(ProgressBar):
    """A bar over epochs with the latest metrics, and a bar over batches if an epoch has several.

    Lightning's bars redraw on every batch, which costs more than a full-batch epoch on a small graph. This one redraws
    a few times per second. It shows all metrics that are logged with `prog_bar=True`.

    Args:
        refresh_per_second: Redraws per second.
    """

    def __init__(self, refresh_per_second: float = 4.0) -> None:
        super().__init__()
        self.refresh_per_second = refresh_per_second
        self._enabled = True
        self._progress: Progress | None = None
        self._epochs: TaskID | None = None
        self._batches: TaskID | None = None

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the progress bar over epochs when training starts."""
        if not self._enabled:
            return
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[metrics]}", markup=False),
            console=plain_console(),  # made here because it cannot be sent to a spawned process
            refresh_per_second=self.refresh_per_second,
        )
        total = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else None
        self._epochs = self._progress.add_task("epoch", total=total, completed=trainer.current_epoch, metrics="")
        self._batches = None
        self._progress.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._progress is None or self.total_train_batches <= 1:
            return
        if self._batches is None:
            self._batches = self._progress.add_task("batch", metrics="")
        total = self.total_train_batches
        self._progress.reset(self._batches, total=None if total == float("inf") else total)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._progress is not None and self._batches is not None:
            self._progress.update(self._batches, completed=batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        bar_metrics = trainer.progress_bar_metrics  # reduces over processes, so all must read it
        if self._progress is None or self._epochs is None:
            return
        metrics = "  ".join(
            f"{_label(name)} {value:.3f}" for name, value in bar_metrics.items() if isinstance(value, float)
        )
        self._progress.update(self._epochs, completed=trainer.current_epoch + 1, metrics=metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _label(name: str) -> str:
    """Return a short name for the bar: `explain/gatt/removal/within_pearson` is shown as GAtt (edge deleted)."""
    metric = MetricName.parse(name)
    if metric is None:
        return name
    if metric.statistic in (WITHIN, TRUTH):
        return f"{method_label(metric.method)} ({HEADERS.get(metric.group, metric.group)})"
    return f"{method_label(metric.method)} {metric.statistic}"
