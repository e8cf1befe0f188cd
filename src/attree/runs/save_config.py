"""Keep a run's config beside it."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from attree.io.files import write_text


class SaveConfig(Callback):
    """Writes the resolved config to `config.yaml` in the run's folder, and shows it as a text card in TensorBoard.

    It is written when the run begins, after a checkpoint's weights were found to fit: a command that is refused leaves
    the config of the run that it would have changed.

    Args:
        text: The config.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                logger.experiment.add_text("config", "\n".join(f"    {line}" for line in self.text.splitlines()))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.validating:
            self._write(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        log_dir = trainer.log_dir if trainer.loggers else None  # asks all processes
        if log_dir is not None and trainer.is_global_zero:
            write_text(Path(log_dir) / "config.yaml", self.text)
