"""Read the files of PyG, OGB and others safely: no code in a data folder runs, every failure is one clear sentence.

Both libraries read their files with pickle. PyG unpickles a processed file in full if it cannot read it safely, and
Planetoid's raw files are pickles. Without guards, whoever can write to a data folder could run code in the process that
reads it.

A pickle names functions and calls them, so whoever wrote the file decides what runs. Here, each name that a valid
file needs is replaced by a small class of this module that only records its arguments. Any other name is an error.
The arrays are then built from the records, after their sizes and indices are checked: a forged NumPy or SciPy object
could read and write beyond its memory.
"""

from __future__ import annotations

import math
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import IO, Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.io import planetoid

from attree.errors import ArgumentError, MissingDataError, expect
from attree.io.files import read_npz, zip_damage
from attree.io.terminal import plain_console

MAX_BYTES = 2**28
"""Most bytes of memory that the arrays of one `.npz` file may take; the largest known file takes half a megabyte."""

SOURCES: dict[type, str] = {np.int64: "iu", np.float32: "biuf", np.bool_: "b"}
"""For each type that an array is converted to, the kinds of NumPy types that the file may store."""

Layout = Mapping[str, tuple[type, int]]
"""For each array of a file, the type to convert it to and its number of dimensions."""


def load_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file; pickled objects are refused.

    Args:
        path: The file.
        remedy: A sentence on what to do if the file is missing or damaged.
    """
    if not path.is_file():
        raise MissingDataError(f"The file {path} does not exist. {remedy}")
    try:
        return read_npz(path, MAX_BYTES)
    except ArgumentError as error:
        raise MissingDataError(f"{error} {remedy}") from error


def load_tensors(
    path: Path, remedy: str, layout: Layout, check: Callable[[dict[str, Tensor]], None]
) -> dict[str, Tensor]:
    """Return the required arrays of an `.npz` file, as tensors.

    Args:
        path: The file.
        remedy: A sentence on what to do if the file is missing or damaged.
        layout: The required arrays.
        check: Raises an `ArgumentError` if the tensors do not fit each other.
    """
    arrays = load_arrays(path, remedy)
    absent = [name for name in layout if name not in arrays]
    if absent:
        raise MissingDataError(f"The file {path} lacks the arrays {', '.join(absent)}. {remedy}")
    try:
        for name, (kind, dimensions) in layout.items():
            array = arrays[name]
            fits = array.dtype.kind in SOURCES[kind] and array.ndim == dimensions
            expect(fits, name, f"{dimensions}-dimensional of {kind.__name__}", f"{array.dtype} of shape {array.shape}")
        tensors = {name: torch.from_numpy(arrays[name].astype(kind)) for name, (kind, _) in layout.items()}
        check(tensors)
    except ArgumentError as error:
        raise MissingDataError(f"The file {path} is damaged. {error} {remedy}") from error
    return tensors


def load_authors(
    root: Path, filename: str, layout: Layout, check: Callable[[dict[str, Tensor]], None]
) -> dict[str, Tensor]:
    """Return the arrays of a file with a graph of the paper's authors, stored as plain arrays: see `load_tensors`."""
    remedy = (
        "The file holds the authors' data as plain arrays and cannot be downloaded: set `root`, or the variable "
        "ATTREE_DATA, to the folder that holds `gatt_paper`, or use `source: generated`."
    )
    return load_tensors(root / "gatt_paper" / filename, remedy, layout, check)


MAX_ENTRIES = 2**28
"""Most entries of a sparse matrix, zeros included; PubMed's largest has 9 million."""


class RefusedPickle(pickle.UnpicklingError):
    """A pickle holds more than arrays. None of its code was run."""


class _Dtype:
    """Replaces `numpy.dtype`."""

    def __init__(self, code: str = "", *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def build(self) -> np.dtype[Any]:
        dtype = np.dtype(f"{self.order}{self.code}")
        if dtype.kind not in "biuf":
            raise RefusedPickle(f"it holds an array of {dtype}, not of numbers")
        return dtype


class _Array:
    """Replaces `numpy.ndarray` and the function that reconstructs one."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        _, shape, dtype, fortran, content = self.state
        # Python 2 wrote bytes as text.
        content = content.encode("latin1") if isinstance(content, str) else content
        kind = dtype.build()
        if len(content) != math.prod(shape) * kind.itemsize:
            raise RefusedPickle(f"it holds {len(content)} bytes for an array of shape {shape}")
        return np.ndarray(shape, kind, bytes(content), order="F" if fortran else "C").astype(kind.newbyteorder("="))


class _Sparse:
    """Replaces `scipy.sparse.csr_matrix`."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state

    def build(self) -> csr_matrix:
        shape = self.state["_shape"]
        if math.prod(shape) > MAX_ENTRIES:
            raise RefusedPickle(f"it holds a matrix of shape {shape}")
        arrays = tuple(self.state[name].build() for name in ("data", "indices", "indptr"))
        matrix = csr_matrix(arrays, shape=shape)
        matrix.check_format(full_check=True)
        return matrix


class _Lists(dict[int, list[int]]):
    """Replaces `collections.defaultdict`, which holds adjacency lists."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        raise RefusedPickle("it holds adjacency lists with attributes")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("scipy.sparse.csr", "csr_matrix"): _Sparse,
    ("scipy.sparse._csr", "csr_matrix"): _Sparse,
    ("collections", "defaultdict"): _Lists,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}
"""The names that a pickle may use, and the class that replaces each."""


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise RefusedPickle(f"it names {module}.{name}")
        return ADMITTED[module, name]


def load_array_pickle(stream: IO[bytes], encoding: str = "ASCII") -> np.ndarray | csr_matrix | dict[int, list[int]]:
    """Read an array, a sparse matrix or adjacency lists. The function replaces `pickle.load`.

    Raises:
        RefusedPickle: The file holds anything else. The message names the file.
    """
    try:
        content = _ArrayUnpickler(stream, encoding=encoding).load()
        if isinstance(content, _Array | _Sparse):
            return content.build()
        if isinstance(content, dict):
            return content
        raise RefusedPickle(f"it holds a {type(content).__name__}")
    except Exception as error:  # damaged bytes raise any error
        name = getattr(stream, "name", "a file")
        raise RefusedPickle(f"{name} is not a pickle of arrays alone: {error or type(error).__name__}") from error


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
