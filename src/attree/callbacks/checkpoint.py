"""Keep the newest state of a run in one file, so that it can be resumed or explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks.random_state import collect_random_state, restore_random_state
from attree.errors import expect


class LastCheckpoint(Checkpoint):
    """Writes `checkpoints/last.ckpt` in the run's folder every few epochs and when training ends.

    Lightning's `ModelCheckpoint` ranks checkpoints by a metric; use it beside this one for that. This one has a single
    file under a fixed name, and costs nothing in the epochs between. The file appears only once the loggers have
    written all that was logged before it, so that a run which is killed and resumed has no gap in its curves. It also
    holds the state of the random generators, so that the resumed run draws what the unbroken one would have drawn.

    Args:
        every_n_epochs: Epochs between two writes.
    """

    def __init__(self, every_n_epochs: int = 10) -> None:
        super().__init__()
        expect(every_n_epochs >= 1, "every_n_epochs", "an integer >= 1", every_n_epochs)
        self.every_n_epochs = every_n_epochs
        self._pending: Path | None = None
        self._random_state: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"random_state": collect_random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random_state = state_dict["random_state"]

    @staticmethod
    def path(trainer: Trainer) -> Path | None:
        """Where the trainer's newest state is kept; None without a log directory."""
        return None if trainer.log_dir is None else Path(trainer.log_dir) / "checkpoints" / "last.ckpt"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        path = self.path(trainer)
        if path is not None and (
            epoch % self.every_n_epochs == 0 or epoch == trainer.max_epochs or trainer.should_stop
        ):
            self._pending = path.with_suffix(".unpublished")
            trainer.save_checkpoint(self._pending, weights_only=False)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._publish(trainer)
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._publish(trainer)

    def _publish(self, trainer: Trainer) -> None:
        """Give the newest state its name, after the metrics of its epoch (logged after it was saved) are on disk."""
        if self._pending is not None and trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.save()
                if isinstance(logger, TensorBoardLogger):
                    logger.experiment.flush()
            self._pending.replace(self._pending.with_suffix(".ckpt"))
        self._pending = None
