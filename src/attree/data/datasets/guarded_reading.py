"""Keep the loaders of PyG and OGB from running what a data folder holds.

Both read their files with pickle: PyG unpickles processed files in full where it cannot do so safely, and Planetoid's
raw files are pickles. Whoever can write to a data folder could so run code in the process of whoever reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import SimpleNamespace

import torch
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.io import planetoid

from attree.data.datasets.array_pickle import load_array_pickle
from attree.io.files import zip_damage

STORED_GRAPH = (DataEdgeAttr, DataTensorAttr, GlobalStorage)
"""The classes of a stored PyG graph that PyG itself does not declare safe to read; OGB stores such graphs."""

ONLY, NOT_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

_turn = RLock()


@contextmanager
def guarded_reading() -> Iterator[None]:
    """Meanwhile `torch.load` reads tensors and plain values only, and Planetoid's raw files are read as arrays only.

    Both are settings of the whole process, so threads that read datasets take turns, and everything is as it was
    afterwards. Another thread that calls `torch.load(..., weights_only=False)` meanwhile is held to tensors, too.
    """
    with _turn:
        variables = {name: os.environ.pop(name, None) for name in (ONLY, NOT_ONLY)}
        unpickle = planetoid.pickle
        declared = torch.serialization.get_safe_globals()
        added = [one for one in STORED_GRAPH if one not in declared]
        try:
            os.environ[ONLY] = "1"
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
    """The first stored file under a folder that holds more than tensors and plain values, or cannot be read at all."""
    with guarded_reading():
        for path in sorted(folder.rglob("*.pt")):
            try:
                torch.load(path, map_location="cpu", weights_only=True)
            except Exception:  # damaged bytes raise any error
                return path
    return None


def check_processed(folder: Path) -> None:
    """Raise a `DamagedFile` if a file that a loader keeps is damaged: `torch.load` reads it as a good one."""
    for path in sorted((folder / "processed").rglob("*.pt")):
        reason = zip_damage(path)
        if reason is not None:
            raise DamagedFile(f"{path} is damaged ({reason})")


class DamagedFile(Exception):
    """A processed file is not as it was written."""
