"""Damage files as disks, networks and strangers do, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np


def flip_bytes(path: Path, rng: np.random.Generator) -> None:
    """Change up to eight bytes anywhere."""
    content = bytearray(path.read_bytes())
    for place in rng.integers(len(content), size=rng.integers(1, 9)):
        content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(content)


def flip_headers(path: Path, rng: np.random.Generator) -> None:
    """Change a byte of the archive's directory, which no checksum covers."""
    content = bytearray(path.read_bytes())
    content[rng.integers(content.index(b"PK\x01\x02"), len(content))] ^= int(rng.integers(1, 256))
    path.write_bytes(content)


def truncate(path: Path, rng: np.random.Generator) -> None:
    """Cut the file short."""
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def swap_arrays(path: Path, rng: np.random.Generator) -> None:
    """Store two arrays under each other's names."""
    with np.load(path) as archive:
        arrays = dict(archive)
    one, other = rng.choice(sorted(arrays), size=2, replace=False)
    arrays[one], arrays[other] = arrays[other], arrays[one]
    np.savez(path, **arrays)


def drop_array(path: Path, rng: np.random.Generator) -> None:
    """Leave an array out."""
    with np.load(path) as archive:
        arrays = dict(archive)
    del arrays[rng.choice(sorted(arrays))]
    np.savez(path, **arrays)


def change_array(path: Path, rng: np.random.Generator) -> None:
    """Give an array other numbers, another shape or another type, checksums and all."""
    with np.load(path) as archive:
        arrays = dict(archive)
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    if array.dtype.kind not in "biuf":
        arrays[name] = np.array("another text")
    else:
        changes: list[Callable[[np.ndarray], np.ndarray]] = [
            lambda old: old.reshape(-1)[: old.size // 2],
            lambda old: old.reshape(1, -1),
            lambda old: np.repeat(old.reshape(-1), 2),
            lambda old: old.astype(">f8"),
            lambda old: old.astype(">i8"),
            lambda old: old.astype("S4"),
            lambda old: old.astype(np.complex128),
            lambda old: old.astype(np.uint64),
            lambda old: (old + rng.integers(-3, 4)).astype(old.dtype),
            lambda old: (old.astype(np.float64) * 2.0**62).astype(np.int64),
            lambda old: rng.permutation(old.reshape(-1)).reshape(old.shape),
            lambda old: np.zeros_like(old),
            lambda old: np.array(old.sum()),
        ]
        with np.errstate(all="ignore"):
            arrays[name] = changes[rng.integers(len(changes))](array)
    np.savez(path, **arrays)


DAMAGES = (flip_bytes, flip_headers, truncate, swap_arrays, drop_array, change_array)
"""Every kind of damage, each as often as the others."""
