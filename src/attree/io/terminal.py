"""Print to the terminal with text unchanged, and show progress bars."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, TypeVar

import torch.distributed as dist
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text


def plain_console(**options: Any) -> Console:
    """Return a rich console that prints strings literally; for styles, pass a `rich.text.Text` or `style`.

    By default rich reads `[a]` as a style and `:b:` as an emoji: a path that contains them would be printed wrongly, or
    raise an error.

    Args:
        **options: Arguments of `rich.console.Console`.
    """
    return Console(**{"markup": False, "emoji": False, "highlight": False, **options})


def linked(path: Path) -> Text:
    """Return a path as a link, for terminals that support links; inside the working directory without its path."""
    return Text(str(_short(path)), style=Style(link=path.resolve().as_uri()))


def _short(path: Path) -> Path:
    """Return a path relative to the working directory, if it is inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path != here and path.is_relative_to(here) else path


def command_line(*words: str | Path) -> str:
    """Return a command to type, with paths relative to the working directory if they are inside it."""
    return shlex.join(str(_short(word) if isinstance(word, Path) else word) for word in words)


def next_command(*words: str | Path) -> str:
    """Return a line with the next command to type, quoted for the shell.

    >>> next_command("attree", "serve", "my runs/a")
    "Next: attree serve 'my runs/a'"
    """
    return f"Next: {command_line(*words)}"


def print_whole(console: Console, table: Table, narrowest: int = 40) -> None:
    """Print a table at full width, even if it is wider than the terminal, so that no number is cut off.

    Args:
        console: The console.
        table: The table.
        narrowest: Smallest width to allow, so that the title of a narrow table has room.
    """
    table_width = Measurement.get(console, console.options.update(width=1000), table).maximum
    width = console.width
    console.width = max(table_width, narrowest)  # `print(width=...)` takes no more than the console has
    try:
        console.print(table, soft_wrap=False, crop=False)
    finally:
        console.width = width


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


SHOWN_AFTER = 3.0
"""Seconds after which a bar appears."""

S = TypeVar("S", bound=Sized)


def track(parts: Iterable[S], total: int, description: str = "Explaining") -> Iterator[S]:
    """Yield parts, while a bar counts their targets (the length of each part).

    Args:
        parts: Results of consecutive targets, such as a method's `stream` yields.
        total: Number of targets in all parts.
        description: Text before the bar.
    """
    with _bar(plain_console()) as progress:
        task = progress.add_task(description, total=total)
        for part in parts:
            yield part
            progress.advance(task, len(part))


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a `LateBar` inside the block; call the returned function to advance it.

    Args:
        description: Text before the bar.
        total: Number of steps.
    """
    done = 0
    with closing(LateBar(description)) as bar:

        def advance(more: int) -> None:
            nonlocal done
            done += more
            bar.update(done, total)

        yield advance


def counted(steps: range, description: str) -> Iterator[int]:
    """Yield the steps of a loop, while a `LateBar` counts them.

    Args:
        steps: The steps.
        description: Text before the bar.
    """
    with progress_bar(description, len(steps)) as advance:
        for step in steps:
            yield step
            advance(1)


class LateBar:
    """A progress bar on standard error that appears after a few seconds and disappears at the end.

    It is shown only on a terminal or in a notebook, only by the first process, and never beside another `LateBar`.

    Args:
        description: Text before the bar.
    """

    _shown: ClassVar[LateBar | None] = None

    def __init__(self, description: str) -> None:
        self.description = description
        self._began = monotonic()
        self._progress: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """Set the progress to `done` of `total`; the bar disappears when all is done."""
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
        """Remove the bar. A later `update` may show it again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = LateBar._shown = None


def item_bar(console: Console, elapsed_when_finished: bool) -> Progress:
    """Return a bar that counts finished items, such as runs, and stays on the console.

    Args:
        console: The console.
        elapsed_when_finished: Show the elapsed time instead of the remaining time when all items are finished.
    """
    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=elapsed_when_finished),
        console=console,
    )


def _is_watched() -> bool:
    """Whether the output is a terminal, or a notebook that can show rich's bars."""
    console = plain_console(stderr=True)
    first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    return first and (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None))


def _bar(console: Console, transient: bool = False) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=transient)
