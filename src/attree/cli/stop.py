"""Being stopped from outside: by Ctrl-C, or by the polite request to end that `kill` and schedulers send."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_only

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopSignal:
    """Lets SIGTERM do what Ctrl-C does, and remembers which of the two it was.

    Lightning alone ends with status 0 on SIGTERM, and with several processes waits for them inside the signal's
    handler.
    """

    def __init__(self) -> None:
        self.received = signal.SIGINT

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM inside the block."""
        before = signal.getsignal(signal.SIGTERM)
        self.listen()
        try:
            yield
        finally:
            if _in_main_thread():
                signal.signal(signal.SIGTERM, before)

    def listen(self) -> None:
        """Handle SIGTERM from now on."""
        if _in_main_thread():
            signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        self.received = signal.SIGTERM
        raise KeyboardInterrupt


class KeepListening(Callback):
    """Takes SIGTERM back from Lightning, which takes it when a run begins; not where SLURM is to requeue the run."""

    def __init__(self, stop: StopSignal) -> None:
        self.stop = stop

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(trainer)

    def _listen(self, trainer: Trainer) -> None:
        environment = trainer._accelerator_connector.cluster_environment
        if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
            self.stop.listen()


def is_first_process() -> bool:
    """Whether this is the process of a run that speaks and writes; also true before Lightning has started others."""
    return getattr(rank_zero_only, "rank", 0) == 0


def was_interrupted(error: BaseException) -> bool:
    """Whether a command ended by a signal: Lightning turns the interrupt into an exit, and keeps it as its context."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


def end_by(number: signal.Signals, arguments: Sequence[str], checkpoint: Path | None) -> NoReturn:
    """Say how to go on, and exit with the status that shells report for the signal."""
    if arguments[:1] != ["fit"]:
        how = "nothing was changed."
    elif checkpoint is not None and checkpoint.is_file():
        how = f"go on with: {shlex.join(['attree', *_without_checkpoint(arguments), '--ckpt_path', str(checkpoint)])}"
    else:
        how = "no checkpoint was written yet, so there is nothing to go on from."
    if is_first_process():
        print(f"attree: stopped by {NAMES[number]}; {how}", file=sys.stderr)
    raise SystemExit(128 + number)


def _without_checkpoint(arguments: Sequence[str]) -> list[str]:
    """Arguments without `--ckpt_path` and its value.

    >>> _without_checkpoint(["fit", "--ckpt_path", "a.ckpt", "--model.lr=1", "--ckpt_path=b.ckpt"])
    ['fit', '--model.lr=1']
    """
    kept: list[str] = []
    before = ""
    for argument in arguments:
        if before != "--ckpt_path" and argument.partition("=")[0] != "--ckpt_path":
            kept.append(argument)
        before = argument
    return kept


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
