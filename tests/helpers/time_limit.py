"""Processes that wait for one another can wait for ever: a time limit turns a hang into a failure."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
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
