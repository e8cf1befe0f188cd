"""How processes end: a scheduler's polite request does what Ctrl-C does, and children end with their parent.

A parent that is killed can end nobody. So each child watches the parent: it holds one end of a pipe whose other end
only the parent has, and which the system closes when the parent is gone, however it went. That works on Linux and macOS
alike.
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
from typing import Any

PARENT_PIPE = "ATTREE_PARENT_PIPE"
"""Variable that tells a child which of its open files is the pipe."""


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, as a scheduler sends it, raise KeyboardInterrupt while the block runs."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def start_child(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that Ctrl-C reaches this process alone.

    The command has to call `end_with_parent` when it starts, as `attree` does: then it ends when this process does.

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
    """The pipe that all children watch; nobody writes to it, and its other end is open as long as this process is."""
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
    """End this process once `wait` returns, which it does when the parent is gone."""

    def end() -> None:
        wait()
        if os.getpgrp() == os.getpid():  # a session of its own: all in it are this process's
            os.killpg(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, name="watch parent", daemon=True).start()


def _is_pipe(handle: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(handle).st_mode)
    except OSError:
        return False
