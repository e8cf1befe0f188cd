"""Keep the newest state of a run in one file, so that it can be resumed or explained."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from attree.errors import expect


class LastCheckpoint(Checkpoint):
    """Writes `checkpoints/last.ckpt` in the run's folder every few epochs and when training ends.

    Lightning's `ModelCheckpoint` ranks checkpoints by a metric; use it beside this one for that. This one has a single
    file under a fixed name, and costs nothing in the epochs between.

    Args:
        every_n_epochs: Epochs between two writes.
    """

    def __init__(self, every_n_epochs: int = 10) -> None:
        super().__init__()
        expect(every_n_epochs >= 1, "every_n_epochs", "an integer >= 1", every_n_epochs)
        self.every_n_epochs = every_n_epochs
        self._saved_step = -1

    @staticmethod
    def path(trainer: Trainer) -> Path | None:
        """Where the trainer's newest state is kept; None without a log directory."""
        return None if trainer.log_dir is None else Path(trainer.log_dir) / "checkpoints" / "last.ckpt"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0 or trainer.should_stop or self._is_last(trainer):
            self._save(trainer)

    @staticmethod
    def _is_last(trainer: Trainer) -> bool:
        return trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        path = self.path(trainer)
        if path is not None and self._saved_step != trainer.global_step:
            trainer.save_checkpoint(path, weights_only=False)
            self._saved_step = trainer.global_step
