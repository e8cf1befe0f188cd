"""A progress bar over results that arrive in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=plain_console()) as progress:
        task = progress.add_task(description, total=total)
        for part in parts:
            yield part
            progress.advance(task, len(part))
