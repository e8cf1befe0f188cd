"""Write a metric to a file while a run goes on, so that a sweep can end a trial that does badly."""

from __future__ import annotations

import math
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer


class ReportMetric(Callback):
    """Writes the epoch and the value of a metric to a file after each validation that logged it.

    The file is a table without a head, `epoch,value`. A sweep reads it while the run is under way, reports the values
    to Optuna and ends the run if the pruner says so: so the fit needs to know neither Optuna nor its storage.

    Args:
        metric: Name of the metric, as it is logged.
        file: The file; it is added to.
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
    """The values by epoch that a run has reported so far; lines that are not whole yet are left out."""
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
