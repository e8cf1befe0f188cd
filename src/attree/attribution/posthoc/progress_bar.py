"""Bars for what takes long: on a terminal, in the first process, and gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attree.io.console import plain_console


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """While open, a bar counts to `total`, with the time left; the returned function advances it.

    Args:
        description: What stands before the bar.
        total: How much there is to do.
    """
    console = plain_console(stderr=True)
    first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = total <= 1 or not (console.is_terminal and first)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.advance(task, done)
