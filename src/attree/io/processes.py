"""End processes: SIGTERM stops a command as Ctrl-C does, and children end with their parent.

A parent that is killed cannot end its children. So each child watches its parent through a pipe: only the parent holds
the other end, which the system closes when the parent ends for any reason. This works on Linux and macOS.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, NoReturn

PARENT_PIPE = "ATTREE_PARENT_PIPE"
"""Environment variable with the number of the pipe in a child."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


def stop_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status of a command that Ctrl-C or SIGTERM stopped: 128 and the signal's number, as shells have.

    >>> stop_status(KeyboardInterrupt()), stop_status(Terminated())
    (130, 143)
    """
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Inside the block, SIGTERM raises `Terminated`, a KeyboardInterrupt as of Ctrl-C."""

    def raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def start_child(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in its own session, so that Ctrl-C reaches only this process.

    The command must call `end_with_parent` when it starts, as `attree` does, to end with this process.

    Args:
        command: The program and its arguments.
        environment: Its environment.
        **options: Further arguments of `subprocess.Popen`.
    """
    theirs, _ = _pipe_to_children()
    environment = {**environment, PARENT_PIPE: str(theirs)}
    return subprocess.Popen(list(command), env=environment, pass_fds=(theirs,), start_new_session=True, **options)


@cache
def _pipe_to_children() -> tuple[int, int]:
    """Return the pipe that all children watch. Nobody writes to it; its other end closes when this process ends."""
    return os.pipe()


def end_with_parent() -> None:
    """If `start_child` started this process, end it and all its children when the parent ends."""
    pipe = os.environ.pop(PARENT_PIPE, "")  # children of this process have another parent
    if pipe.isdigit() and _is_pipe(int(pipe)):
        _watch(lambda: os.read(int(pipe), 1))


def end_worker_with_parent() -> None:
    """Call this in a worker of `multiprocessing`: it ends the worker when the parent ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _watch(parent.join)


def _watch(wait: Callable[[], object]) -> None:
    """Start a thread that ends this process when `wait` returns, after the parent has ended."""

    def end() -> None:
        wait()
        if os.getpgrp() == os.getpid():  # it leads a session: all members are its children
            os.killpg(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, name="watch parent", daemon=True).start()


def _is_pipe(handle: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(handle).st_mode)
    except OSError:
        return False
