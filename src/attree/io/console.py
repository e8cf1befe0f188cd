"""Print to the terminal, with text unchanged."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
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
    """Return a path as a link, for terminals that support links."""
    return Text(str(path), style=Style(link=path.resolve().as_uri()))


def next_command(*words: str | Path) -> str:
    """Return a line with the next command to type, quoted for the shell.

    >>> next_command("attree", "serve", "my runs/a")
    "Next: attree serve 'my runs/a'"
    """
    return f"Next: {shlex.join(map(str, words))}"


def print_whole(console: Console, table: Table, narrowest: int = 40) -> None:
    """Print a table at full width, even if it is wider than the terminal, so that no number is cut off.

    Args:
        console: The console.
        table: The table.
        narrowest: Smallest width to allow, so that the title of a narrow table has room.
    """
    wanted = Measurement.get(console, console.options.update(width=1000), table).maximum
    width = console.width
    console.width = max(wanted, narrowest)  # `print(width=...)` takes no more than the console has
    try:
        console.print(table, soft_wrap=False, crop=False)
    finally:
        console.width = width


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")
