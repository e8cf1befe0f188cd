"""Reading plain array files safely, with an error that says what to do when one is absent or damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attree.errors import ArgumentError, MissingDataError, expect
from attree.io.files import read_npz

MAX_BYTES = 2**28
"""Memory that the arrays of one file may take; the largest file of a known dataset takes half a megabyte."""

SOURCES: dict[type, str] = {np.int64: "iu", np.float32: "biuf", np.bool_: "b"}
"""For each type that an array is read as, the kinds of NumPy types that it may be stored as."""

Layout = Mapping[str, tuple[type, int]]
"""For each array of a file the type to read it as and its number of dimensions."""


def load_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file, never executing pickled code.

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
    """Return the arrays that a file must have, as tensors.

    Args:
        path: The file.
        remedy: A sentence on what to do if the file is missing or damaged.
        layout: What the arrays must be.
        check: Raises an `ArgumentError` unless the tensors fit each other.
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
    """Return the arrays of a file that the paper's authors' own graphs were re-packed into: see `load_tensors`."""
    remedy = (
        "It holds what the paper's authors used, as plain arrays, and cannot be downloaded: set `root`, or the "
        "variable ATTREE_DATA, to the folder that holds `gatt_paper`, or use `source: generated`."
    )
    return load_tensors(root / "gatt_paper" / filename, remedy, layout, check)
