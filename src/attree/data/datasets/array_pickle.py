"""Read pickles of arrays without running anything: Planetoid's raw files are such pickles.

A pickle names functions and calls them, so whoever wrote it decides what runs. Here every name that an honest file
needs stands for a small class of this module that only notes what it is given, and any other name ends the reading.
The arrays are then made from the notes, with their sizes and indices checked: a forged NumPy or SciPy object could
read and write beyond its memory.
"""

from __future__ import annotations

import math
import pickle
from typing import IO, Any

import numpy as np
from scipy.sparse import csr_matrix

MAX_ENTRIES = 2**28
"""Entries that a sparse matrix may have once it is dense; PubMed's largest has 9 million."""


class RefusedPickle(pickle.UnpicklingError):
    """A pickle holds more than arrays; nothing of it was run."""


class _Dtype:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: str = "", *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def make(self) -> np.dtype[Any]:
        dtype = np.dtype(f"{self.order}{self.code}")
        if dtype.kind not in "biuf":
            raise RefusedPickle(f"it holds an array of {dtype}, not of numbers")
        return dtype


class _Array:
    """Stands for `numpy.ndarray` and for the function that begins one."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def make(self) -> np.ndarray:
        _, shape, dtype, fortran, content = self.state
        # Python 2 wrote bytes as text.
        content = content.encode("latin1") if isinstance(content, str) else content
        kind = dtype.make()
        if len(content) != math.prod(shape) * kind.itemsize:
            raise RefusedPickle(f"it holds {len(content)} bytes for an array of shape {shape}")
        return np.ndarray(shape, kind, bytes(content), order="F" if fortran else "C").astype(kind.newbyteorder("="))


class _Sparse:
    """Stands for `scipy.sparse.csr_matrix`."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state

    def make(self) -> csr_matrix:
        shape = self.state["_shape"]
        if math.prod(shape) > MAX_ENTRIES:
            raise RefusedPickle(f"it holds a matrix of shape {shape}")
        arrays = tuple(self.state[name].make() for name in ("data", "indices", "indptr"))
        matrix = csr_matrix(arrays, shape=shape)
        matrix.check_format(full_check=True)
        return matrix


class _Lists(dict[int, list[int]]):
    """Stands for `collections.defaultdict`: adjacency lists."""

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
"""The names that a pickle may use, and what each stands for."""


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise RefusedPickle(f"it names {module}.{name}")
        return ADMITTED[module, name]


def load_array_pickle(stream: IO[bytes], encoding: str = "ASCII") -> np.ndarray | csr_matrix | dict[int, list[int]]:
    """Read an array, a sparse matrix or adjacency lists, in place of `pickle.load`.

    Raises:
        RefusedPickle: The file holds anything else. It names the file.
    """
    try:
        found = _ArrayUnpickler(stream, encoding=encoding).load()
        if isinstance(found, _Array | _Sparse):
            return found.make()
        if isinstance(found, dict):
            return found
        raise RefusedPickle(f"it holds a {type(found).__name__}")
    except Exception as error:  # damaged bytes raise any error
        name = getattr(stream, "name", "a file")
        raise RefusedPickle(f"{name} is no pickle of arrays alone: {error or type(error).__name__}") from error
