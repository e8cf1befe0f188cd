"""Keep the newest state of a run in one file, so that it can be resumed or explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from attree.callbacks.call_state import Weights, any_process, copy_weights, is_same
from attree.callbacks.random_state import RandomState, collect_random_states, restore_random_states
from attree.errors import expect_int
from attree.io.files import give_usual_rights
from attree.runs.run_folder import flush_logger, run_folder


class LastCheckpoint(Checkpoint):
    """Writes `checkpoints/last.ckpt` in the run's folder every few epochs, at the last one and when training ends.

    Lightning's `ModelCheckpoint` ranks checkpoints by a metric; use it beside this one for that. This one has a single
    file under a fixed name, and costs nothing in the epochs between. The file appears only once the loggers have
    written all that was logged before it, so that a run which is killed and resumed has no gap in its curves. It also
    holds the state of every process's random generators, so that a run resumed with as many processes draws what the
    unbroken one would have drawn. (With more or fewer, the first process does, and the others are seeded by rank.) A
    loader of mini-batches needs a `generator` of its own for that, as those of `attree.data` have: Lightning makes a
    resumed run's iterator before any callback can restore the global one.

    The weights in the last file are those that the run ends with, also where a callback such as
    `StochasticWeightAveraging` exchanges them at the very end.

    Args:
        every_n_epochs: Epochs between two writes.
    """

    def __init__(self, every_n_epochs: int = 10) -> None:
        super().__init__()
        expect_int(every_n_epochs, "every_n_epochs", 1)
        self.every_n_epochs = every_n_epochs
        self._pending: Path | None = None
        self._saved_step = -1
        self._saved_weights: Weights | None = None
        self._dumped_weights: Weights | None = None
        self._random_states: list[RandomState] | None = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add this callback's state. `state_dict` cannot do it: the random states of all processes are needed."""
        states = collect_random_states(trainer.world_size)
        checkpoint["callbacks"][self.state_key] = {"random_states": states}
        # Lightning puts checkpoint callbacks last: whoever exchanges the weights of a checkpoint has done so.
        self._dumped_weights = copy_weights(checkpoint["state_dict"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random_states = state_dict["random_states"]

    @staticmethod
    def path(trainer: Trainer) -> Path | None:
        """The path of `last.ckpt`; None without a logger. All processes must call this together."""
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
        is_saved = self._saved_step == trainer.global_step and is_same(self._saved_weights, pl_module.state_dict())
        if any_process(trainer, not is_saved):
            self._save(trainer)
        self._publish(trainer)

    def _save(self, trainer: Trainer) -> None:
        # A progress bar may have asked for metrics in the first process alone, which then waits for the others to
        # reduce them. So all ask, before they meet anywhere else.
        _ = trainer.callback_metrics
        path = self.path(trainer)
        if path is not None:
            self._pending = path.with_suffix(".unpublished")
            self._saved_step = trainer.global_step
            trainer.save_checkpoint(self._pending, weights_only=False)
            self._saved_weights = self._dumped_weights

    def _publish(self, trainer: Trainer) -> None:
        """Rename the newest file to `last.ckpt`, once the loggers have written the metrics of its epoch to disk."""
        if self._pending is not None and trainer.is_global_zero:
            for logger in trainer.loggers:
                flush_logger(logger)
            give_usual_rights(self._pending)
            self._pending.replace(self._pending.with_suffix(".ckpt"))
        self._pending = None
