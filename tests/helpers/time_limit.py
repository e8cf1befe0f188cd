"""Processes that wait for one another can wait for ever: a time limit turns a hang into a failure."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SECONDS = 300
"""Many times what any such test takes."""


@contextmanager
def time_limit(seconds: int = SECONDS) -> Iterator[None]:
    """Raise `TimeoutError`, and end the child processes that were started inside, if the body takes too long."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"processes hang: not done after {seconds} seconds")

    before = set(multiprocessing.active_children())
    former = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
        for child in set(multiprocessing.active_children()) - before:
            child.kill()


def run_command(command: Sequence[str], seconds: int = SECONDS) -> str:
    """Run a command to its end and return what it printed; after too long it is ended with all that it started."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise TimeoutError(f"processes hang: not done after {seconds} seconds\n{printed}") from None
    assert process.returncode == 0, printed
    return printed
