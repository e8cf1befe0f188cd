"""Write a metric to a file during a run, so that a sweep can stop a bad trial early."""

from __future__ import annotations

import math
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer


class ReportMetric(Callback):
    """Writes the epoch and the value of a metric to a file after each validation that logged it.

    Each line of the file is `epoch,value`. A sweep reads the file during the run, reports the values to Optuna, and
    stops the run if the pruner decides so. The fit itself does not use Optuna.

    Args:
        metric: Name of the metric, as it is logged.
        file: The file; lines are appended to it.
    """

    def __init__(self, metric: str, file: str) -> None:
        self.metric = metric
        self.file = Path(file)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.metric)
        if value is None or trainer.sanity_checking or not trainer.is_global_zero or not math.isfinite(float(value)):
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(f"{trainer.current_epoch},{float(value)!r}\n")


def read_reported(file: Path) -> dict[int, float]:
    """Return the values that a run has reported so far, by epoch. An incomplete last line is left out."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError:
        return {}
    values = {}
    for line in lines:
        epoch, comma, value = line.partition(",")
        if comma and epoch.isdigit():
            values[int(epoch)] = float(value)
    return values
