"""Progress bars: over results that arrive in parts, and over whatever else takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, contextmanager
from importlib.util import find_spec
from time import monotonic
from typing import ClassVar, TypeVar

import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attree.io.console import plain_console

SHOWN_AFTER = 3.0
"""Seconds after which a bar appears."""

S = TypeVar("S", bound=Sized)


def track(parts: Iterable[S], total: int, description: str = "Explaining") -> Iterator[S]:
    """Pass parts on while a bar on the terminal counts their targets, as many as a part is long.

    Args:
        parts: Results of consecutive targets, such as a method's `stream` gives.
        total: Number of targets in all.
        description: What stands before the bar.
    """
    with _bar(plain_console()) as progress:
        task = progress.add_task(description, total=total)
        for part in parts:
            yield part
            progress.advance(task, len(part))


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """While open, a bar counts to `total`, with the time left; the returned function advances it.

    It is shown like that of `LateBar`.

    Args:
        description: What stands before the bar.
        total: How much there is to do.
    """
    done = 0
    with closing(LateBar(description)) as bar:

        def advance(more: int) -> None:
            nonlocal done
            done += more
            bar.update(done, total)

        yield advance


def counted(steps: range, description: str) -> Iterator[int]:
    """Pass the steps of a loop on while a bar counts them, shown like that of `LateBar`.

    Args:
        steps: The steps.
        description: What stands before the bar.
    """
    with progress_bar(description, len(steps)) as advance:
        for step in steps:
            yield step
            advance(1)


class LateBar:
    """A bar on standard error for what may take long: it appears after a few seconds and is gone when all is done.

    It is shown on a terminal or in a notebook, by the first process alone, and never beside another of its kind, so
    that what is quick, a log file and a bar within a bar stay as they are.

    Args:
        description: What stands before the bar.
    """

    _shown: ClassVar[LateBar | None] = None

    def __init__(self, description: str) -> None:
        self.description = description
        self._began = monotonic()
        self._progress: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` is done; the bar disappears when all is."""
        if done >= total:
            self.close()
            return
        if self._progress is None:
            if monotonic() - self._began < SHOWN_AFTER or LateBar._shown is not None or not _is_watched():
                return
            self._progress = _bar(plain_console(stderr=True), transient=True)
            self._progress.add_task(self.description, total=total)
            self._progress.start()
            LateBar._shown = self
        self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        """Take the bar away; it may come again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = LateBar._shown = None


def _is_watched() -> bool:
    """Whether the output is a terminal, or a notebook that can show rich's bars."""
    console = plain_console(stderr=True)
    first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    return first and (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None))


def _bar(console: Console, transient: bool = False) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=transient)
