"""A progress bar for loaders that have none: how much of a dataset has arrived in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from attree.io.console import plain_console


class FolderSizeColumn(ProgressColumn):
    """How many bytes a folder holds by now.

    Args:
        folder: The folder, which need not exist yet.
    """

    max_refresh = 0.5  # seconds: looking costs more than drawing

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def render(self, task: Task) -> Text:
        return Text(decimal(folder_size(self.folder)), style="progress.download")


def folder_size(folder: Path) -> int:
    """Bytes of all files under a folder; files and folders may come and go meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):  # which passes over folders that are gone when it comes to them
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


@contextmanager
def fetch_progress(name: str, folder: Path, console: Console | None = None) -> Iterator[None]:
    """Show, on a terminal, that a dataset is being fetched and read; nothing where it was processed before.

    PyG's loaders tell neither sizes nor progress, so the bar has no end: it shows time and bytes on disk.

    Args:
        name: Name of the dataset.
        folder: Where its loader writes.
        console: Where to show it; standard error by default.
    """
    console = plain_console(stderr=True) if console is None else console
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        FolderSizeColumn(folder),
        TimeElapsedColumn(),
    )
    known = (folder / "processed").is_dir()
    with Progress(*columns, console=console, transient=True, disable=known or not console.is_terminal) as progress:
        progress.add_task(f"fetching and reading {name}", total=None)
        yield
