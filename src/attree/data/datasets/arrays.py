"""Reading plain array files safely, with an error that says what to do when one is absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attree.errors import MissingDataError


def load_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file, never executing pickled code.

    Args:
        path: The file.
        remedy: What the user can do when it is absent, as a sentence.
    """
    if not path.is_file():
        raise MissingDataError(f"The file {path} does not exist. {remedy}")
    with np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def load_authors(root: str, filename: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file that the paper's authors' own graphs and weights were re-packed into."""
    remedy = (
        "It holds what the paper's authors used, as plain arrays, and cannot be downloaded: set `root` to "
        "the folder that holds `gatt_paper`, or use `source: generated`."
    )
    return load_arrays(Path(root) / "gatt_paper" / filename, remedy)
