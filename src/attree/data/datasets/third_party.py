"""The boundary to the loaders of PyG and OGB: what they cannot do becomes one sentence that helps."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from attree.data.datasets.fetch_progress import fetch_progress
from attree.errors import MissingDataError

T = TypeVar("T")


def open_dataset(name: str, folder: Path, files: str, build: Callable[[], T], show_progress: bool = True) -> T:
    """Build a dataset with its library's own loader, from files at hand or by download.

    Args:
        name: Name of the dataset.
        folder: Where the loader looks for the dataset's files and downloads them to.
        files: The files it looks for, in words.
        build: Calls the loader.
        show_progress: Show a progress bar, for loaders that have none of their own.

    Raises:
        MissingDataError: The files are absent and cannot be downloaded, or are damaged.
    """
    try:
        with ExitStack() as stack:
            if show_progress:
                stack.enter_context(fetch_progress(name, folder))
            stack.enter_context(warnings.catch_warnings())
            # OGB reads its splits through pandas, whose arrays torch then warns of; nothing ever writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return build()
    except (OSError, EOFError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        _remove_empty_folders(folder)
        raise MissingDataError(
            f"{name} could neither be read from {folder} nor downloaded ({error}). Put {files} "
            "there, set `root` to a data folder that has them, or run once with a network. Files that are there "
            "already may be damaged: then delete them first."
        ) from error


def _remove_empty_folders(folder: Path) -> None:
    """Undo the empty folders a failed download leaves, which OGB takes for an outdated dataset next time."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
