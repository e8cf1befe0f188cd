"""Stop a command on Ctrl-C or SIGTERM, which `kill` and schedulers send."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_only

from attree.cli.parser_internals import cluster_environment

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopSignal:
    """Handles Ctrl-C and SIGTERM in the same way, and remembers which one was received.

    A fit ends before its next batch. At any other moment a signal could interrupt TensorBoard's writer thread, and the
    command would hang for minutes. A second signal ends the command at once. (Lightning's own handler exits with status
    0 on SIGTERM, and waits for other processes inside the handler.)
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.waits = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside the block."""
        before = {number: signal.getsignal(number) for number in NAMES}
        self.listen()
        try:
            yield
        finally:
            if _in_main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def listen(self) -> None:
        """Handle both signals from now on."""
        if _in_main_thread():
            for number in NAMES:
                signal.signal(number, self._handle)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received."""
        if self.received is not None:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first, self.received = self.received is None, signal.Signals(number)
        if not (self.waits and is_first):
            raise KeyboardInterrupt


class StopBetweenBatches(Callback):
    """Stops a fit before its next batch after a signal was received.

    Lightning installs its own SIGTERM handler when a run begins. This callback replaces it, unless SLURM is to requeue
    the run. Ctrl-C reaches all processes: the processes that Lightning started ignore it, and the first process ends
    them.
    """

    def __init__(self, stop: StopSignal) -> None:
        self.stop = stop

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.stop.check()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.stop.check()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stop.waits = False
        self.stop.check()

    def _begin(self, trainer: Trainer) -> None:
        """Install this process's signal handlers for the run of a trainer, unless SLURM is to requeue the run."""
        environment = cluster_environment(trainer)
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            return
        if is_first_process() or environment.creates_processes_externally:
            self.stop.waits = True
            self.stop.listen()
        elif _in_main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def is_first_process() -> bool:
    """Whether this process prints and writes (rank 0). Also True before Lightning has started other processes."""
    return getattr(rank_zero_only, "rank", 0) == 0


def was_interrupted(error: BaseException) -> bool:
    """Whether a signal ended a command. Lightning raises SystemExit instead, with the interrupt as its context."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


def exit_with_signal(received: signal.Signals | None, arguments: Sequence[str], checkpoint: Path | None) -> NoReturn:
    """Print how to resume, and exit with the status that shells use for the signal."""
    number = received or signal.SIGINT
    if arguments[:1] != ["fit"]:
        how = "nothing was changed."
    elif checkpoint is not None and checkpoint.is_file():
        how = f"resume with: {shlex.join(['attree', *_without_checkpoint(arguments), '--ckpt_path', str(checkpoint)])}"
    else:
        how = "no checkpoint was written yet, so the run cannot be resumed."
    if is_first_process():
        print(f"attree: stopped by {NAMES[number]}; {how}", file=sys.stderr)
    raise SystemExit(128 + number)


def _without_checkpoint(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without `--ckpt_path` and its value.

    >>> _without_checkpoint(["fit", "--ckpt_path", "a.ckpt", "--model.lr=1", "--ckpt_path=b.ckpt"])
    ['fit', '--model.lr=1']
    """
    return [
        argument
        for before, argument in pairwise(["", *arguments])
        if before != "--ckpt_path" and argument.partition("=")[0] != "--ckpt_path"
    ]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
