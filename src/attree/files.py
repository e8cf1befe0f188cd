"""Write files so that a reader never finds half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to; on success it takes the place of `path`, else it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_npz(path: Path, **arrays: Any) -> Path:
    """Write plain arrays to a plain `.npz` archive at `path`, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write text to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
