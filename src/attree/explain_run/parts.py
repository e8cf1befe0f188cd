"""The dataset of `attree explain` as Parquet files with fixed numbers, and the share of them that a process writes.

A part is written atomically under its fixed name, so it is there or missing, and writing it twice is harmless. The
footer of each file has hashes of its call and of its rows, so that damaged files are detected and written again.
`_manifest.json` describes the call; a process that finds another call's manifest stops. So nothing is locked, and
machines share no more than the folder. Parquet readers ignore names that begin with an underscore.

A share is fixed: of n processes, the first writes parts 0, n, 2n, ..., the second 1, n + 1, ..., and so on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attree.errors import ArgumentError
from attree.evaluation.config import Shard
from attree.io.files import write_text

MANIFEST = "_manifest.json"
FORMAT = "attree-scores-2"
KEY = b"attree"
ROW_GROUP = 2**20


class PartFolder:
    """The parts of one call of `attree explain`.

    Args:
        folder: The folder.
        fingerprint: Hashes of everything that the parts depend on, by name.
        num_parts: Number of parts.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, str], num_parts: int) -> None:
        self.folder = folder
        self.num_parts = num_parts
        self._fingerprint = dict(fingerprint)
        self._mark = hashlib.sha256(json.dumps([FORMAT, self._fingerprint], sort_keys=True).encode()).hexdigest()
        self._unfinished = folder.with_name(f".{folder.name}_unfinished")

    def open(self, about: Mapping[str, Any], overwrite: bool = False) -> bool:
        """Begin the folder, or continue a folder of the same call. Raise if another call wrote the folder.

        Several processes of the same call may do this at the same time.

        Args:
            about: Description of the call for the manifest.
            overwrite: Remove the parts of another call instead of raising.

        Returns:
            Whether parts of another call were removed.
        """
        files = sorted(self.folder.glob("*"))  # listed before the manifest is read, which is written before any part
        parts = [path for path in files if path.match("part-*.parquet")]
        foreign = [path for path in files if path not in parts and not path.name.startswith((".", "_"))]
        if foreign:
            raise ArgumentError(
                f"Expected {self.folder} to hold only parts of a dataset, but found {foreign[0].name}. Choose another "
                "folder with --out."
            )
        differences = self._differences(bool(parts))
        if differences and not overwrite:
            raise ArgumentError(
                f"Expected {self.folder} to be empty or of the same call, but it holds explanations of {differences}. "
                "Choose another folder with --out, or replace them with --overwrite."
            )
        if differences or not (self.folder / MANIFEST).exists():
            content = {"format": FORMAT, "parts": self.num_parts, **about, "fingerprint": self._fingerprint}
            write_text(self.folder / MANIFEST, json.dumps(content, indent=2) + "\n")
        numbered = {self._path(number): number for number in range(self.num_parts)}
        for path in parts:
            if path not in numbered or (differences and self.rows(numbered[path]) is None):
                path.unlink(missing_ok=True)
        return bool(differences)

    def check(self) -> None:
        """Raise if the folder is not that of this call: other files replaced it, or this machine does not see it."""
        here = f"{self.folder} on {socket.gethostname()}"
        differences = self._differences(False)
        if differences:
            raise ArgumentError(f"Expected {here} to be the folder of this call, but it is of {differences}.")
        if not (self.folder / MANIFEST).exists():
            raise ArgumentError(
                f"Expected {here} to be the folder of this call, but it has no {MANIFEST}. All processes must see the "
                "same folder: choose one that the machines share with --out."
            )

    def missing(self, numbers: Iterable[int] | None = None) -> list[int]:
        """Return the numbers of missing parts. Damaged parts are removed with a warning and count as missing.

        Args:
            numbers: Parts to look for; None looks for all.
        """
        numbers = range(self.num_parts) if numbers is None else numbers
        absent = [number for number in numbers if not self._is_whole(number)]
        for number in absent:
            self._path(number).unlink(missing_ok=True)
        return absent

    def rows(self, number: int) -> int | None:
        """Return the number of rows of a part, by its footer; None if the part is missing or of another call."""
        try:
            footer = pq.read_metadata(self._path(number))
        except Exception:  # the file is missing, or damaged bytes raise any error
            return None
        signature, _, _ = (footer.metadata or {}).get(KEY, b"").rpartition(b" ")
        return footer.num_rows if signature == self._signature(number) else None

    def count(self) -> tuple[int, int]:
        """Return the number of existing parts and the number of their rows."""
        rows = [rows for rows in map(self.rows, range(self.num_parts)) if rows is not None]
        return len(rows), sum(rows)

    def write(self, number: int, table: pa.Table) -> None:
        """Write a part atomically. Raise if another call has replaced the folder meanwhile."""
        self.check()
        table = table.replace_schema_metadata({KEY: self._signature(number) + b" " + _rows_hash(table)})
        writer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        temporary = self._unfinished / f"{writer}.{number}"
        integers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
        try:
            self._unfinished.mkdir(exist_ok=True)
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
        except FileNotFoundError:
            if self.rows(number) is None:  # else a process that saw all parts removed the unfinished ones
                raise
        finally:
            temporary.unlink(missing_ok=True)
        try:
            self.check()
        except ArgumentError:
            if self.rows(number) is not None:
                self._path(number).unlink(missing_ok=True)
            raise

    def tidy(self) -> None:
        """Remove unfinished files of processes that were killed, once all parts exist."""
        if self.count()[0] == self.num_parts:
            shutil.rmtree(self._unfinished, ignore_errors=True)
        with suppress(OSError):  # it is gone, or others are writing
            self._unfinished.rmdir()

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.parquet"

    def _signature(self, number: int) -> bytes:
        return f"{self._mark} {number}".encode()

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

    def _differences(self, has_parts: bool) -> str:
        """Return in words how the call that wrote the folder differs from this call; empty if it does not."""
        try:
            stored = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            fingerprint = dict(stored["fingerprint"]) if stored["format"] == FORMAT else {}
        except FileNotFoundError:
            return "an unknown call, as there is no manifest" if has_parts else ""
        except (ValueError, KeyError, TypeError):
            return "an unknown call, as its manifest cannot be read"
        either = {**fingerprint, **self._fingerprint}
        names = [name for name in either if fingerprint.get(name) != self._fingerprint.get(name)]
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


INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs that are an interactive shell. A command is a single process there."""

SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""The tasks of an `srun` step may be fewer than those of its job."""

KUBERNETES_SIZE = "JOB_COMPLETIONS"
"""Kubernetes sets the index of a pod of an indexed job, but not their number: the job's manifest has to set it."""


def process_share(share: str | None = None, environment: Mapping[str, str] | None = None) -> Shard:
    """Return the rank of this process and the number of processes.

    Args:
        share: A share as it is typed, such as `3/16`, the third of 16; None reads the launcher's variables.
        environment: Environment variables; None takes those of the process.

    >>> process_share("3/16")
    Shard(rank=2, world_size=16)
    >>> process_share(None, {"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world_size=4)
    >>> process_share(None, {})
    Shard(rank=0, world_size=1)
    """
    if share is not None:
        return _typed(share)
    variables = os.environ if environment is None else environment
    if "RANK" in variables or "WORLD_SIZE" in variables:
        return _launched(variables, "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in variables and variables.get("SLURM_JOB_NAME") not in INTERACTIVE:
        size = next((name for name in SLURM_SIZES if name in variables), SLURM_SIZES[-1])
        return _launched(variables, "SLURM_PROCID", size)
    if "JOB_COMPLETION_INDEX" in variables:
        return _launched(variables, "JOB_COMPLETION_INDEX", KUBERNETES_SIZE)
    return Shard()


def _typed(share: str) -> Shard:
    """Return a share that was typed: its number, from 1, and the number of shares."""
    numbers = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", share)
    if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise ArgumentError(
            f"Expected argument `share` to be a share and their number, from 1/16 to 16/16, but got {share!r}."
        )
    return Shard(int(numbers[1]) - 1, int(numbers[2]))


def _launched(variables: Mapping[str, str], rank_name: str, size_name: str) -> Shard:
    """Return the rank of this process and the number of processes, read from two environment variables."""
    try:
        rank, size = int(variables[rank_name]), int(variables[size_name])
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"Expected the variables {rank_name} and {size_name} to be the rank and the number of processes, "
            f"but got {variables.get(rank_name)!r} and {variables.get(size_name)!r}. Set both, or use --share."
        ) from error
    if not 0 <= rank < size:
        raise ArgumentError(f"Expected the variable {rank_name} to be in [0, {size_name}), but got {rank} of {size}.")
    return Shard(rank, size)
