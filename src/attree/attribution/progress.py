"""Progress bars: over results that arrive in parts, and over whatever else takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attree.attribution.result import Attribution
from attree.io.console import plain_console


def track(parts: Iterable[Attribution], total: int, description: str = "Explaining") -> Iterator[Attribution]:
    """Pass parts on while a bar on the terminal counts their targets.

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

    It is shown on a terminal, by the first process alone, and is gone when done.

    Args:
        description: What stands before the bar.
        total: How much there is to do.
    """
    console = plain_console(stderr=True)
    first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    hidden = total <= 1 or not (console.is_terminal and first)
    with _bar(console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.advance(task, done)


def _bar(console: Console, transient: bool = False, disable: bool = False) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=transient, disable=disable)
