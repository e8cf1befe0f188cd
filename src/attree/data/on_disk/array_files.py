"""`.npy` files as memory maps: opened with checks, and read at many places at once.

Rows of a large file are read in ascending order. The pages that hold them are asked for before they are needed, all
together, so that the disk works on many of them at a time. Pages that lie close together are read in one go.
"""

from __future__ import annotations

import mmap
import os
import resource
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor
from torch_geometric.loader.utils import index_select

from attree.errors import MissingDataError

PAGE = mmap.PAGESIZE

NEAR_PAGES = 16
"""Pages between two that are needed are read along if there are no more of them than this."""

AT_ONCE = 2**28
"""Bytes of pages that are asked for ahead of time, if each row is on another page."""

TRIED_ROWS = 256
"""Rows that are read first, to see whether their pages are in memory."""

SAMPLES, SAMPLE_BYTES = 32, 1024
"""Number and size of the pieces of a file that its checksum is made of."""


class ArrayFile:
    """An array in a `.npy` file, of which only the rows that are asked for are read.

    Args:
        path: The file.

    Attributes:
        array: The whole array, as a memory map that cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                shape, dtype = read_header(stream)
                self._offset = stream.tell()
                expected = self._offset + int(np.prod(shape, dtype=object)) * dtype.itemsize
                size = os.fstat(stream.fileno()).st_size
                if size != expected:
                    raise ValueError(f"{size:,} bytes where its header says {expected:,}")
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise MissingDataError(f"Expected {path} to be a whole .npy file, but it is not ({error}).") from error
        self._map.madvise(mmap.MADV_RANDOM)
        self.array: np.ndarray = np.ndarray(shape, dtype, self._map, self._offset)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.array[:1].nbytes if len(self.array) else 0

    def rows(self, ids: np.ndarray, dtype: Any = None) -> np.ndarray:
        """Return some rows.

        Args:
            ids: Positions of the rows, ascending.
            dtype: Type of the result; None for that of the file.
        """
        result = np.empty((ids.size, *self.array.shape[1:]), dtype=self.array.dtype if dtype is None else dtype)
        step = max(AT_ONCE // max(self.row_bytes, PAGE), 1)
        self._ask_for(ids[:step])
        for begin in range(0, ids.size, step):
            self._ask_for(ids[begin + step : begin + 2 * step])
            result[begin : begin + step] = self.array[ids[begin : begin + step]]
            # The pages, and others that the system mapped along with them, stay in its cache, but no longer count as
            # memory of this process.
            self._map.madvise(mmap.MADV_DONTNEED)
        return result

    def take(self, ids: Tensor) -> Tensor:
        """Return some rows in any order, for readers that come back to the same file, as a loader of mini-batches does.

        Pages stay mapped. Only if they have to be read from the disk, they are asked for ahead of time. A worker of a
        loader writes the rows to shared memory, where the main process finds them.

        Args:
            ids: Positions of the rows.
        """
        before = _pages_from_disk()
        self.tensor.index_select(0, ids[:TRIED_ROWS])
        if _pages_from_disk() > before:
            self._ask_for(np.unique(ids[TRIED_ROWS:].numpy()))
        return index_select(self.tensor, ids)

    @property
    def tensor(self) -> Tensor:
        """The whole array as a tensor, which must not be written to; nothing is read."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(self.array)

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the whole array from first to last, `rows` rows at a time."""
        for begin in range(0, len(self.array), rows):
            yield self.array[begin : begin + rows]
            first = (self._offset + begin * self.row_bytes) // PAGE * PAGE
            self._map.madvise(mmap.MADV_DONTNEED, first, min(rows * self.row_bytes, len(self._map) - first))

    def _ask_for(self, ids: np.ndarray) -> None:
        """Tell the system to read the pages of some rows, in as few ranges as their distances allow."""
        if not ids.size or not self.row_bytes:
            return
        first = (self._offset + ids * self.row_bytes) // PAGE
        last = (self._offset + (ids + 1) * self.row_bytes - 1) // PAGE
        is_far = np.flatnonzero(first[1:] - last[:-1] > NEAR_PAGES)
        starts, ends = first[np.r_[0, is_far + 1]], last[np.r_[is_far, ids.size - 1]] + 1
        for start, end in zip((starts * PAGE).tolist(), (ends * PAGE).tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, start, min(end, len(self._map)) - start)

    def checksum(self) -> str:
        """Return a checksum of the size and of pieces that are spread over the file, the first and last among them."""
        size = len(self._map)
        value = crc32(str(size).encode())
        for place in np.linspace(0, max(size - SAMPLE_BYTES, 0), SAMPLES).astype(np.int64).tolist():
            value = crc32(self._map[place : place + SAMPLE_BYTES], value)
        return f"{value:08x}"


def _pages_from_disk() -> int:
    """Return the number of pages that this thread has had to wait for, because they were not in memory."""
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts for the whole process only
    return resource.getrusage(who).ru_majflt


def read_header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type of the array in an open `.npy` file; raise a `ValueError` if it cannot be mapped."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    if is_fortran and len(shape) > 1:
        raise ValueError("its columns are stored one after the other")
    if dtype.hasobject or dtype.kind not in "biuf":
        raise ValueError(f"it holds {dtype}, not numbers")
    return shape, dtype


def create(path: Path, shape: Sequence[int], dtype: Any) -> np.memmap:
    """Make a `.npy` file of zeros that can be written to as a memory map; parts that are never written take no disk."""
    return npy.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=tuple(shape))
