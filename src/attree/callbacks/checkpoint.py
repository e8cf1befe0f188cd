"""Save the last state of a run to one checkpoint, from which it can be resumed or explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from attree.callbacks.call_state import WeightsHash, any_process, hash_weights
from attree.data.random_state import RandomState, collect_random_states, restore_random_states
from attree.errors import expect_int
from attree.io.files import give_usual_rights
from attree.runs.run_folder import flush_logger, run_folder


class LastCheckpoint(Checkpoint):
    """Writes `checkpoints/last.ckpt` in the run directory every few epochs, after the last epoch and at the end.

    To keep the best checkpoint by a metric, add Lightning's `ModelCheckpoint`. This callback keeps a single file with a
    fixed name. The file is published only after the loggers have written all earlier metrics, so that the curves of a
    run that is killed and resumed have no gap. It also holds the random states of all processes, so that a run that is
    resumed with the same number of processes draws the same random numbers as an uninterrupted run. (With another
    number, the first process does, and the others are seeded by rank.) Loaders of mini-batches need their own
    `generator` for that, as the loaders of `attree.data` have: Lightning creates the iterator of a resumed run before a
    callback can restore the global generator.

    The last file holds the final weights, even if a callback such as `StochasticWeightAveraging` replaces the weights
    at the end of training.

    Args:
        every_n_epochs: Number of epochs between two checkpoints.
    """

    def __init__(self, every_n_epochs: int = 10) -> None:
        super().__init__()
        expect_int(every_n_epochs, "every_n_epochs", 1)
        self.every_n_epochs = every_n_epochs
        self._pending: Path | None = None
        self._saved_step = -1
        self._saved_weights: WeightsHash | None = None
        self._dumped_weights: WeightsHash | None = None
        self._random_states: list[RandomState] | None = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the random states of all processes. `state_dict` cannot collect them."""
        states = collect_random_states(trainer.world_size)
        checkpoint["callbacks"][self.state_key] = {"random_states": states}
        # Lightning calls checkpoint callbacks last, after callbacks that replace weights in the checkpoint.
        self._dumped_weights = hash_weights(checkpoint["state_dict"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random_states = state_dict["random_states"]

    @staticmethod
    def path(trainer: Trainer) -> Path | None:
        """Return the path of `last.ckpt`; None without a logger. All processes must call this together."""
        folder = run_folder(trainer)
        return None if folder is None else folder / "checkpoints" / "last.ckpt"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if epoch % self.every_n_epochs == 0 or epoch == trainer.max_epochs:
            self._save(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._publish(trainer)
        if self._random_states is not None:
            restore_random_states(self._random_states, trainer.global_rank, trainer.world_size)
            self._random_states = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights = hash_weights(pl_module.state_dict())
        is_saved = self._saved_step == trainer.global_step and self._saved_weights == weights
        if any_process(trainer, not is_saved):
            self._save(trainer)
        self._publish(trainer)

    def _save(self, trainer: Trainer) -> None:
        # A progress bar may have read metrics in the first process only, which then waits for the others to reduce
        # them. So all processes read them here, before any other synchronisation.
        _ = trainer.callback_metrics
        path = self.path(trainer)
        if path is not None:
            self._pending = path.with_suffix(".unpublished")
            self._saved_step = trainer.global_step
            trainer.save_checkpoint(self._pending, weights_only=False)
            self._saved_weights = self._dumped_weights

    def _publish(self, trainer: Trainer) -> None:
        """Flush the loggers, then rename the newest checkpoint to `last.ckpt`."""
        if self._pending is not None and trainer.is_global_zero:
            for logger in trainer.loggers:
                flush_logger(logger)
            give_usual_rights(self._pending)
            self._pending.replace(self._pending.with_suffix(".ckpt"))
        self._pending = None
