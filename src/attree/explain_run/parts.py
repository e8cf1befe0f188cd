"""A dataset as a folder of Parquet files (parts), written by any number of processes.

Each process claims a missing part, writes it and claims the next. The claims of a dead process expire. Files are
written atomically. The footer of each file has hashes of its call and of its rows, so that damaged files are detected
and written again. `_manifest.json` describes the call. Parquet readers ignore names that begin with an underscore.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attree.errors import ArgumentError
from attree.io.files import write_text
from attree.io.lock import FolderLock
from attree.io.terminal import progress_bar
from attree.io.workers import Claims, Worker

MANIFEST = "_manifest.json"
FORMAT = "attree-scores-2"
KEY = b"attree"
ROW_GROUP = 2**20
GRACE = 60.0
"""Seconds without a heartbeat after which the claims of a process expire."""

PATIENCE = 60.0
"""Seconds to wait for the folder's lock."""

WAIT = 0.5
"""Seconds between two checks of parts that other processes have claimed."""


class PartFolder:
    """The parts of one call of `attree explain`.

    Args:
        folder: The folder.
        fingerprint: Hashes of everything that the parts depend on, by name.
        num_parts: Number of parts.
        grace: Seconds without a heartbeat after which the claims of a process expire.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, str], num_parts: int, grace: float = GRACE) -> None:
        self.folder = folder
        self.num_parts = num_parts
        self._fingerprint = dict(fingerprint)
        self._mark = hashlib.sha256(json.dumps([FORMAT, self._fingerprint], sort_keys=True).encode()).hexdigest()
        self._unfinished = folder.with_name(f".{folder.name}_unfinished")
        self._worker = Worker(self._unfinished)
        self._claims = Claims(self._unfinished, self._worker, grace)

    def open(self, about: Mapping[str, Any], overwrite: bool = False) -> bool:
        """Start writing, or continue a folder of the same call. Raise if another call wrote the folder.

        Args:
            about: Description of the call for the manifest.
            overwrite: Remove the parts of another call instead of raising.

        Returns:
            Whether parts of another call were removed.
        """
        with FolderLock(self._unfinished, patience=PATIENCE):
            self._worker.begin()
            try:
                replaced = self._clear(overwrite)
                self.folder.mkdir(parents=True, exist_ok=True)
                if not (self.folder / MANIFEST).exists():
                    content = {"format": FORMAT, "parts": self.num_parts, **about, "fingerprint": self._fingerprint}
                    write_text(self.folder / MANIFEST, json.dumps(content, indent=2) + "\n")
            except BaseException:
                self._leave()
                raise
        self._claims.begin()
        return replaced

    def close(self) -> None:
        """Stop writing. The last process removes temporary files of processes that were killed."""
        with FolderLock(self._unfinished, patience=PATIENCE):
            self._claims.end()
            self._leave()

    def _leave(self) -> None:
        alone = not self._worker.others(self._claims.grace)
        self._worker.end()
        if alone:
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def missing(self, look_inside: bool = True) -> list[int]:
        """Return the numbers of missing parts. Damaged parts are removed with a warning and count as missing.

        Args:
            look_inside: Check all rows of existing parts. If False, only footers are read. If there are several
                processes, only one needs to check the rows.
        """
        if not look_inside:
            return [number for number in range(self.num_parts) if not self.has(number)]
        missing = [number for number in range(self.num_parts) if not self._is_whole(number)]
        for number in missing:
            self._path(number).unlink(missing_ok=True)
        return missing

    def has(self, number: int) -> bool:
        """Whether a part of this call exists, by its footer."""
        return self._rows(number) is not None

    def claim(self, number: int) -> bool:
        """Claim a part for this process. Return False if another process holds the claim."""
        return self._claims.take(f"{number:06d}")

    def release(self, number: int) -> None:
        """Give up the claim of a part."""
        self._claims.release(f"{number:06d}")

    def count(self) -> tuple[int, int]:
        """Return the number of existing parts and the number of their rows."""
        rows = [rows for rows in map(self._rows, range(self.num_parts)) if rows is not None]
        return len(rows), sum(rows)

    def write(self, number: int, table: pa.Table) -> None:
        """Write a part atomically."""
        table = table.replace_schema_metadata({KEY: self._signature(number) + b" " + _rows_hash(table)})
        temporary = self._unfinished / f"{self._worker.name}.{number}"
        integers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
        pq.write_table(
            table,
            temporary,
            row_group_size=ROW_GROUP,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
        temporary.replace(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.parquet"

    def _signature(self, number: int) -> bytes:
        return f"{self._mark} {number}".encode()

    def _rows(self, number: int) -> int | None:
        """Return the number of rows of a part, by its footer; None if the part is missing or of another call."""
        try:
            footer = pq.read_metadata(self._path(number))
        except Exception:  # the file is missing, or damaged bytes raise any error
            return None
        own, _, _ = (footer.metadata or {}).get(KEY, b"").rpartition(b" ")
        return footer.num_rows if own == self._signature(number) else None

    def _is_whole(self, number: int) -> bool:
        """Whether a part exists with the rows that were written. Warn if it has other rows."""
        path = self._path(number)
        if not path.exists():
            return False
        try:
            table = pq.ParquetFile(path, page_checksum_verification=True).read()
            stored = (table.schema.metadata or {}).get(KEY)
            whole = stored == self._signature(number) + b" " + _rows_hash(table)
        except Exception:  # damaged bytes raise any error
            whole = False
        if not whole:
            warnings.warn(f"{path} is damaged, or of another call. It is written again.", stacklevel=2)
        return whole

    def _clear(self, overwrite: bool) -> bool:
        """Remove the parts of another call, or raise. Return whether parts were removed."""
        there = sorted(self.folder.glob("*"))  # listed once, because other processes write parts meanwhile
        parts = [path for path in there if path.match("part-*.parquet")]
        foreign = [path for path in there if path not in parts and not path.name.startswith((".", "_"))]
        if foreign:
            raise ArgumentError(
                f"Expected {self.folder} to hold only parts of a dataset, but found {foreign[0].name}. Choose another "
                "folder with --out."
            )
        differences = self._differences(bool(parts))
        if not differences:
            return False
        if not overwrite:
            raise ArgumentError(
                f"Expected {self.folder} to be empty or of the same call, but it holds explanations of {differences}. "
                "Choose another folder with --out, or replace them with --overwrite."
            )
        others = self._worker.others(self._claims.grace)
        if others:
            raise ArgumentError(f"Another call is writing to {self.folder}: process {others[0]}.")
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for path in parts:
            path.unlink(missing_ok=True)
        return True

    def _differences(self, has_parts: bool) -> str:
        """Return in words how the call that wrote the folder differs from this call; empty if it does not."""
        try:
            stored = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            fingerprint = dict(stored["fingerprint"]) if stored["format"] == FORMAT else {}
        except FileNotFoundError:
            return "an unknown call, as there is no manifest" if has_parts else ""
        except (ValueError, KeyError, TypeError):
            return "an unknown call, as its manifest cannot be read"
        known = self._fingerprint | {name: "" for name in fingerprint if name not in self._fingerprint}
        names = [name for name, value in known.items() if fingerprint.get(name) != value]
        if len(names) > 1 and "parts" in names:  # the bounds of parts depend on the others
            names.remove("parts")
        return f"another call (other {', '.join(names)})" if names else ""


def _rows_hash(table: pa.Table) -> bytes:
    """Return a hash of the names, types and values of a table's columns. Parquet's checksums cover only values."""
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\0{column.type}\0{len(column)}\0".encode())
        for chunk in column.chunks:
            if pa.types.is_string(chunk.type):
                digest.update("\0".join(chunk.to_pylist()).encode())
            else:
                digest.update(np.ascontiguousarray(chunk.to_numpy(zero_copy_only=False)).data)
    return digest.hexdigest()[:32].encode()


def write_parts(
    parts: PartFolder, bounds: list[tuple[int, int]], table: Callable[[int, int], pa.Table], is_first: bool = True
) -> int:
    """Claim and write parts until all exist. The first process shows a progress bar of targets.

    If other processes hold the claims of all missing parts, wait for them, in case one dies. Each process has only one
    part in memory at a time.

    Args:
        parts: The folder.
        bounds: First and last target of each part.
        table: Returns the rows of the targets `begin` to `end`.
        is_first: Whether this is the first of several processes that were started together.

    Returns:
        The number of parts that this process wrote.
    """
    waiting = parts.missing(look_inside=is_first)
    total = sum(end - begin for begin, end in (bounds[number] for number in waiting))
    written = 0
    with progress_bar("Explaining", total) if is_first else nullcontext(lambda done: None) as advance:
        while waiting:
            left = []
            for number in waiting:
                begin, end = bounds[number]
                if not parts.has(number):
                    if not parts.claim(number):
                        left.append(number)
                        continue
                    try:
                        if not parts.has(number):  # another process may have just written it
                            parts.write(number, table(begin, end))
                            written += 1
                    finally:
                        parts.release(number)
                advance(end - begin)
            if left == waiting:
                time.sleep(WAIT)
            waiting = left
    return written
