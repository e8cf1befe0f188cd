"""Call the loaders of PyG and OGB safely: no code in a data folder runs, and every failure is one clear sentence.

Both libraries read their files with pickle. PyG unpickles a processed file in full if it cannot read it safely, and
Planetoid's raw files are pickles. Without guards, whoever can write to a data folder could run code in the process that
reads it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import TypeVar

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.io import planetoid

from attree.data.datasets.array_files import RefusedPickle, load_array_pickle
from attree.errors import MissingDataError
from attree.io.files import zip_damage
from attree.io.terminal import plain_console

T = TypeVar("T")

STORED_GRAPH = (Data, DataEdgeAttr, DataTensorAttr, GlobalStorage)
"""Classes of a stored PyG graph that PyG itself does not declare safe to read; OGB stores such graphs."""

FORCE_SAFE, FORCE_UNSAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

_guard_lock = RLock()


class DamagedFile(Exception):
    """A processed file is damaged."""


def open_dataset(name: str, folder: Path, files: str, build: Callable[[], T], show_progress: bool = True) -> T:
    """Return a dataset that its library's own loader reads from local files or downloads, without running code in them.

    Args:
        name: Name of the dataset.
        folder: The folder that the loader reads, and downloads to.
        files: The files that the loader looks for, in words.
        build: Calls the loader.
        show_progress: Show a progress bar; set it for loaders that have none of their own.

    Raises:
        MissingDataError: The files are absent and cannot be downloaded, are damaged, or hold more than data.
    """
    try:
        with ExitStack() as stack:
            if show_progress:
                stack.enter_context(fetch_progress(name, folder))
            stack.enter_context(warnings.catch_warnings())
            # OGB reads its splits through pandas, and torch warns about these arrays. Nothing ever writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            # PyG warns before it unpickles a file in full. The guard below refuses such files.
            warnings.filterwarnings("ignore", message="Weights only load failed")
            stack.enter_context(guarded_reading())
            check_processed(folder)
            return build()
    except Exception as error:  # loaders raise any error on damaged files
        _remove_empty_folders(folder)
        raise MissingDataError(_sentence(name, folder, files, error)) from error


def _sentence(name: str, folder: Path, files: str, error: Exception) -> str:
    """Return what is wrong with the files, and what to do."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, RefusedPickle):
        return (
            f"{name} was not read: {reason}. The file is damaged, or could run code when read. Put the original file "
            "there, or delete it and run once with a network connection."
        )
    if isinstance(error, DamagedFile):
        return f"{name} was not read: {reason}. Delete the file: it is then made again from the raw files."
    if (refused := refused_file(folder)) is not None:
        return (
            f"{name} was not read: {refused} is damaged, or holds objects that could run code when read. Delete the "
            "file: it is then made again from the raw files."
        )
    return (
        f"{name} could neither be read from {folder} nor downloaded ({reason}). Put {files} there, set `root` to a "
        "data folder that has them, or run once with a network connection. If there are files already, they may be "
        "damaged: delete them first."
    )


def _remove_empty_folders(folder: Path) -> None:
    """Remove the empty folders that a failed download leaves: OGB would take them for an outdated dataset."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


@contextmanager
def guarded_reading() -> Iterator[None]:
    """Restrict `torch.load` to tensors and plain values, and Planetoid's raw files to arrays, inside the `with` block.

    Both settings belong to the whole process, so a lock lets one thread at a time read datasets. On exit, the settings
    are restored. Inside the block, `torch.load(..., weights_only=False)` in another thread is restricted too.
    """
    with _guard_lock:
        variables = {name: os.environ.pop(name, None) for name in (FORCE_SAFE, FORCE_UNSAFE)}
        unpickle = planetoid.pickle
        declared = torch.serialization.get_safe_globals()
        added = [kind for kind in STORED_GRAPH if kind not in declared]
        try:
            os.environ[FORCE_SAFE] = "1"
            planetoid.pickle = SimpleNamespace(load=load_array_pickle)
            with torch.serialization.safe_globals(added):
                yield
        finally:
            planetoid.pickle = unpickle
            for name, value in variables.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def refused_file(folder: Path) -> Path | None:
    """Return the first stored file under a folder that is unreadable or holds more than tensors and plain values."""
    with guarded_reading():
        for path in sorted(folder.rglob("*.pt")):
            try:
                torch.load(path, map_location="cpu", weights_only=True)
            except Exception:  # damaged bytes raise any error
                return path
    return None


def check_processed(folder: Path) -> None:
    """Raise a `DamagedFile` if a processed file is damaged. `torch.load` does not notice all damage."""
    for path in sorted((folder / "processed").rglob("*.pt")):
        reason = zip_damage(path)
        if reason is not None:
            raise DamagedFile(f"{path} is damaged ({reason})")


class FolderSizeColumn(ProgressColumn):
    """Progress column with the current size of a folder.

    Args:
        folder: The folder; it need not exist yet.
    """

    max_refresh = 0.5  # seconds: measuring the folder costs more than drawing

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def render(self, task: Task) -> Text:
        return Text(decimal(folder_size(self.folder)), style="progress.download")


def folder_size(folder: Path) -> int:
    """Return the size in bytes of all files under a folder. Files may appear and disappear during the call."""
    size = 0
    for parent, _, names in os.walk(folder):  # skips folders that have disappeared
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


@contextmanager
def fetch_progress(name: str, folder: Path, console: Console | None = None) -> Iterator[None]:
    """Show a progress bar on a terminal while a dataset is fetched and read, unless it was processed before.

    PyG's loaders report neither sizes nor progress, so the bar shows the elapsed time and the bytes on disk.

    Args:
        name: Name of the dataset.
        folder: The folder that its loader writes to.
        console: Where to show the bar; standard error by default.
    """
    console = plain_console(stderr=True) if console is None else console
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        FolderSizeColumn(folder),
        TimeElapsedColumn(),
    )
    is_processed = (folder / "processed").is_dir()
    with Progress(
        *columns, console=console, transient=True, disable=is_processed or not console.is_terminal
    ) as progress:
        progress.add_task(f"fetching and reading {name}", total=None)
        yield
