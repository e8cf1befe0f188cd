"""Read array files without running code: `.npz` files, and pickles that hold nothing but arrays.

A pickle names functions and calls them, so whoever wrote the file decides what runs. Here, each name that a valid
file needs is replaced by a small class of this module that only records its arguments. Any other name is an error.
The arrays are then built from the records, after their sizes and indices are checked: a forged NumPy or SciPy object
could read and write beyond its memory.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from attree.errors import ArgumentError, MissingDataError, expect
from attree.io.files import read_npz

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
