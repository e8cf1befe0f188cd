"""The boundary to the loaders of PyG and OGB: what they cannot or must not do becomes one sentence that helps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from attree.data.datasets.array_pickle import RefusedPickle
from attree.data.datasets.fetch_progress import fetch_progress
from attree.data.datasets.guarded_reading import DamagedFile, check_processed, guarded_reading, refused_file
from attree.errors import MissingDataError

T = TypeVar("T")


def open_dataset(name: str, folder: Path, files: str, build: Callable[[], T], show_progress: bool = True) -> T:
    """Build a dataset with its library's own loader, from files at hand or by download, running nothing they hold.

    Args:
        name: Name of the dataset.
        folder: Where the loader looks for the dataset's files and downloads them to.
        files: The files it looks for, in words.
        build: Calls the loader.
        show_progress: Show a progress bar, for loaders that have none of their own.

    Raises:
        MissingDataError: The files are absent and cannot be downloaded, are damaged, or hold more than data.
    """
    try:
        with ExitStack() as stack:
            if show_progress:
                stack.enter_context(fetch_progress(name, folder))
            stack.enter_context(warnings.catch_warnings())
            # OGB reads its splits through pandas, whose arrays torch then warns of; nothing ever writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            # PyG warns before it unpickles in full what it should not; that is refused below.
            warnings.filterwarnings("ignore", message="Weights only load failed")
            stack.enter_context(guarded_reading())
            check_processed(folder)
            return build()
    except Exception as error:  # what a loader makes of damaged files is open-ended
        _remove_empty_folders(folder)
        raise MissingDataError(_sentence(name, folder, files, error)) from error


def _sentence(name: str, folder: Path, files: str, error: Exception) -> str:
    """What is wrong and what to do."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, RefusedPickle):
        return (
            f"{name} was not read: {reason}. It is damaged, or could run code when read. Put the original there, or "
            "delete it and run once with a network."
        )
    if isinstance(error, DamagedFile):
        return f"{name} was not read: {reason}. Delete it, so that it is made anew from the raw files."
    if (refused := refused_file(folder)) is not None:
        return (
            f"{name} was not read: {refused} is damaged, or holds objects that could run code when read. Delete it, "
            "so that it is made anew from the raw files."
        )
    return (
        f"{name} could neither be read from {folder} nor downloaded ({reason}). Put {files} "
        "there, set `root` to a data folder that has them, or run once with a network. Files that are there "
        "already may be damaged: then delete them first."
    )


def _remove_empty_folders(folder: Path) -> None:
    """Undo the empty folders a failed download leaves, which OGB takes for an outdated dataset next time."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
