"""Processes that start in milliseconds, forked from a server that has the libraries, and that never hang for ever."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

import attree.callbacks
import attree.cli
import attree.cli.lightning_cli
import attree.data
import attree.explain_run.command
import attree.models
import attree.paper.command
import attree.sweep.command

PRELOADED = (
    *(attree.callbacks, attree.cli.lightning_cli, attree.data, attree.explain_run.command),
    *(attree.models, attree.paper.command, attree.sweep.command),
)
"""What the server has in memory, so that no process has to import it: that takes seconds."""


def fork_server() -> ForkServerContext:
    """Starts processes from one server for all tests, which never trains: forked memory is as new."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module.__name__ for module in PRELOADED])
    return context


def start_server() -> None:
    """Fork the server from this process, which has the libraries; Python's own way is a new process that has none.

    To be called before the first test: nothing has been trained, drawn or replaced in this process yet.
    """
    start, descriptors = util.spawnv_passfds, Path("/proc/self/fd")
    if not descriptors.is_dir():
        return

    def fork(path: bytes, args: Sequence[str], passed: Sequence[int]) -> int:
        if pid := os.fork():
            return pid
        try:
            util.spawnv_passfds = start
            forkserver._forkserver._lock = threading.Lock()  # which is held above
            pipes = {os.readlink(descriptors / str(one)) for one in passed}
            for name in os.listdir(descriptors):  # the other end of the pipe that tells the server of our end
                with suppress(OSError):
                    if int(name) not in passed and os.readlink(descriptors / name) in pipes:
                        os.close(int(name))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for number in (1, 2):
                os.dup2(nowhere, number)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not those that pytest reads
            for logger in (logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)):
                for handler in [*logger.handlers]:
                    if type(handler).__module__.startswith("_pytest."):
                        logger.removeHandler(handler)
                    elif isinstance(handler, logging.StreamHandler):
                        handler.setStream(sys.stderr)
            exec(args[-1], {"__name__": "__main__"})  # what the new process would run
        finally:
            os._exit(0)

    fork_server()
    util.spawnv_passfds = fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = start


def spawn(function: Callable[..., None], args: tuple[Any, ...], processes: int = 2, seconds: float = 240.0) -> None:
    """Run `function(rank, *args)` in several processes; a hang or an error of any of them is an error here."""
    fork_server()
    context = mp.start_processes(function, args=args, nprocs=processes, join=False, start_method="forkserver")
    end = time.monotonic() + seconds
    try:
        while not context.join(timeout=0.2):
            if time.monotonic() > end:
                raise TimeoutError(f"{processes} processes were not done after {seconds:.0f} seconds.")
    finally:
        for process in context.processes:
            process.kill()


class WarmDDP(DDPStrategy):
    """Lightning's `ddp_spawn`, but for processes that come from the server."""

    def __init__(self) -> None:
        fork_server()
        super().__init__(start_method="forkserver")

    def setup(self, trainer: Trainer) -> None:
        # Tensors that go to another process are shared with it; Lightning undoes that for `ddp_spawn` alone.
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = tensor.data.clone()
        torch.distributed.barrier()
        super().setup(trainer)


class WarmCommand:
    """`attree` in a process from the server: what tests use of `subprocess.Popen`, without the seconds of imports.

    Args:
        arguments: What is typed behind `attree`.
        folder: Where the command is typed; this process' working folder if None.
        before: What the process does first.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path | None = None, before: Callable[[], None] | None = None
    ) -> None:
        self._printed = Path(tempfile.mkdtemp(prefix="attree-command-"))
        options = (list(arguments), folder or Path.cwd(), self._printed, before)
        self._process = fork_server().Process(target=_command, args=options)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("attree", timeout)
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.wait(timeout)
        return (self._printed / "stdout").read_text(), (self._printed / "stderr").read_text()


SCRIPT = "import sys\nfrom attree.cli import main\nsys.exit(main())\n"
"""The script `attree` of an installed package, which Lightning runs again for each further process."""


def _command(arguments: list[str], folder: Path, printed: Path, before: Callable[[], None] | None) -> None:
    """What the process does: the command, with its output in two files."""
    os.chdir(folder)
    script = printed / "attree"
    script.write_text(SCRIPT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background of a shell ignores
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    # As for an installed script: its folder is on the path, the working folder is not, and it is no module.
    sys.path[:] = [path for path in sys.path if path]
    sys.argv = [str(script), *arguments]
    sys.modules["__main__"].__spec__ = None
    if before is not None:
        before()
    attree.cli.main()
