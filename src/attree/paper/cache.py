"""Results that are finished, kept in a folder under all that determines them; what has changed is computed anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attree.errors import AttreeError
from attree.io.files import read_npz, write_npz, write_text


@dataclass(frozen=True)
class Cache:
    """A folder of finished results.

    A result is found again only by the very key that it was stored under: the key is in the file and compared as a
    whole, so a file that was renamed, cut short or left by other code is not used; nor is one that was damaged, as its
    hash tells. Files appear whole or not at all, so that several processes may share a folder, and one that is killed
    leaves nothing half done.
    """

    folder: Path

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result stored under this key; None if there is none."""
        try:
            stored = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("key") != _plain(key):
            return None
        result = stored.get("result")
        return result if isinstance(result, dict) and stored.get("check") == _check(result) else None

    def put(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Store a result of plain values."""
        content = {"key": _plain(key), "result": dict(result), "check": _check(result)}
        write_text(self.path(key), json.dumps(content, indent=1) + "\n")

    def get_arrays(self, key: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        """The arrays stored under this key; None if there are none, or if they are damaged."""
        if self.get(key) is None:
            return None
        try:
            return read_npz(self.path(key).with_suffix(".npz"))
        except AttreeError:
            return None

    def put_arrays(self, key: Mapping[str, Any], arrays: Mapping[str, np.ndarray], result: Mapping[str, Any]) -> None:
        """Store arrays with a result; the result last, so that it stands for both."""
        write_npz(self.path(key).with_suffix(".npz"), **arrays)
        self.put(key, result)

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the result of a key is or would be."""
        text = json.dumps(_plain(key), sort_keys=True)
        return self.folder / f"{key.get('kind', 'result')}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def _check(result: Mapping[str, Any]) -> str:
    """A hash of a result: a damaged digit is a number, too."""
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()[:16]


def _plain(key: Mapping[str, Any]) -> Any:
    """A key as JSON would give it back: tuples become lists."""
    return json.loads(json.dumps(dict(key), sort_keys=True))
