"""Write files atomically, read files that may be damaged, and lock a folder for one process."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import socket
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy

from attree.errors import ArgumentError

INTERVALS, VERDICT, HEADLINE = "intervals", "verdict", "headline"
"""Keys of a metrics file that are no metrics: the intervals, and the sentences and the headline of the verdict."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to. On success it replaces `path`; on failure it is removed.

    The file has the permissions that the umask gives to new files. An error of the system, such as a full disk, names
    `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = new_file(path)
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)  # the writer may have replaced the file
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def new_file(path: Path) -> Path:
    """Make an empty hidden file beside `path`, with a unique name and the usual permissions (umask)."""
    while True:
        file = path.with_name(f".{path.name}.{secrets.token_hex(6)}{path.suffix}")
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        return file


def give_usual_rights(path: Path) -> None:
    """Give a file the permissions that the umask gives to any new file."""
    usual = new_file(path)
    try:
        path.chmod(usual.stat().st_mode)
    finally:
        usual.unlink(missing_ok=True)


def write_npz(path: Path, **arrays: Any) -> Path:
    """Write arrays to an uncompressed `.npz` archive, atomically."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write text to a file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def zip_damage(path: Path) -> str | None:
    """Return what is wrong with a ZIP archive, such as a file of `torch.save`; None if all checksums are right.

    `torch.load` ignores the checksums, so it reads wrong numbers from a damaged file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # No checksum covers the folder flag, and torch reads uninitialised memory for a file that has it.
            marked = [file.filename for file in archive.infolist() if file.file_size and file.external_attr & 0x10]
            damaged = archive.testzip() or next(iter(marked), None)
        return None if damaged is None else f"{damaged} in it is not as it was written"
    except Exception as error:  # damaged bytes raise any error
        return (str(error).splitlines() or [type(error).__name__])[0]


def read_npz(path: Path, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` archive safely: no code in it is run, and damage raises an error.

    Sizes are checked before memory is allocated: the total against `max_bytes`, and each array's shape against its
    bytes. All bytes are checked against their checksum.

    Args:
        path: The file.
        max_bytes: Most bytes of all arrays together; None for the size of the file, which suits uncompressed archives.

    Raises:
        ArgumentError: The file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size, allowed = sum(member.file_size for member in members), max_bytes or path.stat().st_size
            if size > allowed:
                raise ValueError(f"it claims {size:,} bytes of arrays, where {allowed:,} are allowed")
            arrays = {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}
            if len(arrays) < len(members):
                raise ValueError("it holds two arrays of one name")
            return arrays
    except Exception as error:  # damaged bytes raise any error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(f"The file {path} is no intact .npz archive of plain arrays ({reason}).") from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return one array of an `.npz` archive; raise if the array holds Python objects or has the wrong size."""
    with archive.open(member) as stream:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, fortran, dtype = readers[npy.read_magic(stream)](stream)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        if math.prod(shape) * dtype.itemsize != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} has not the size that its shape {shape} needs")
        # A bytearray, because arrays over bytes cannot be written to. The zip module checks the checksum at the end.
        return np.ndarray(shape, dtype, bytearray(stream.read()), order="F" if fortran else "C")


def write_metrics(
    path: Path,
    metrics: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    verdict: Sequence[str] | None = None,
    headline: str = "",
) -> Path:
    """Write metrics by name. NaN and infinity become `null`, because JSON has neither.

    Args:
        path: The file.
        metrics: Numbers by name.
        intervals: Low and high end of some metrics, written under the key `intervals`.
        verdict: Sentences on the metrics, written under the key `verdict`.
        headline: What the verdict comes to, written first, under the key `headline`.
    """
    content: dict[str, Any] = {HEADLINE: headline} if headline else {}
    content |= metrics
    if intervals:
        content[INTERVALS] = dict(intervals)
    if verdict:
        content[VERDICT] = list(verdict)
    return write_text(path, json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n")


def read_metrics(path: Path) -> dict[str, float]:
    """Read metrics that `write_metrics` wrote; `null` becomes NaN. Any other file raises an `ArgumentError`."""
    try:
        content = json.loads(path.read_bytes())
        return {name: _number(value) for name, value in content.items() if name not in (INTERVALS, VERDICT, HEADLINE)}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(path, error) from error


def read_intervals(path: Path) -> dict[str, tuple[float, float]]:
    """Read the intervals that `write_metrics` wrote; empty if it wrote none."""
    try:
        content = json.loads(path.read_bytes())
        return {name: (_number(low), _number(high)) for name, (low, high) in content.get(INTERVALS, {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(path, error) from error


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Read the arguments of methods by name; any file but a JSON object of objects raises an `ArgumentError`."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"Expected {path} to hold settings of methods as JSON, but it does not ({error})."
        ) from error
    is_whole = isinstance(content, dict) and all(isinstance(settings, dict) for settings in content.values())
    if not is_whole:
        raise ArgumentError(f"Expected {path} to hold settings of methods as JSON, but it holds something else.")
    return dict(content)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _refusal(path: Path, error: Exception) -> ArgumentError:
    return ArgumentError(f"Expected {path} to hold metrics as JSON, but it does not ({error}).")


def json_ready(content: Any) -> Any:
    """Replace NaN and infinity by None at any depth: JSON has neither.

    >>> json_ready({"values": [0.5, float("nan")]})
    {'values': [0.5, None]}
    """
    if isinstance(content, dict):
        return {name: json_ready(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [json_ready(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


MARK = b"process "
"""First bytes of every lock file that is not empty."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system without locks."""


class InUseError(ArgumentError):
    """A folder is locked by another process, or by another part of this one."""


class FolderLock:
    """Locks a folder for one process, from `acquire` until `release` or until the process ends or is killed.

    It is a system lock on a hidden file beside the folder, so a killed process leaves none behind. Forked workers do
    not inherit it. On a file system without locks, nothing is locked.

    Args:
        folder: The folder; it need not exist.
        patience: Seconds to wait while another process holds the lock.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self.patience = patience
        self.folder = folder.absolute()
        self._path = self.folder.with_name(f".{self.folder.name}.lock")
        # The hook runs while the lock is held. Not thread-local: another thread may release the lock.
        self._lock = FileLock(self._path, thread_local=False, on_acquired=self._sign)

    def acquire(self) -> FolderLock:
        """Take the lock, or raise an `InUseError` that names the process that holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock.is_locked:
            raise InUseError(f"{self.folder} is in use by this process.")
        try:
            self._lock.acquire(timeout=self.patience)
        except Timeout as error:
            raise InUseError(f"{self.folder} is in use by {self._holder()}.") from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
                raise self._no_lock_file() from error
            if error.errno not in NO_LOCKS:
                error.filename = error.filename or str(self._path)
                raise
        return self

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock.is_locked:
            with suppress(PermissionError):  # Windows removes the file after the release
                self._path.unlink(missing_ok=True)
            self._lock.release()

    def _sign(self, handle: int) -> None:
        """Write this process's id to the lock file. Files that are none are refused: they would be overwritten."""
        status = os.fstat(handle)
        is_ordinary = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not is_ordinary or not MARK.startswith(os.read(handle, len(MARK))):
            raise self._no_lock_file()
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, _signature())

    def _holder(self) -> str:
        """Return the process that holds the lock, in words."""
        try:
            signature = self._path.read_bytes()[:200]
        except OSError:  # released meanwhile, or not readable while it is locked, as on Windows
            signature = b""
        if signature == _signature():
            return "this process"
        return signature.decode(errors="replace").strip() or "another process"

    def _no_lock_file(self) -> ArgumentError:
        return ArgumentError(
            f"Expected {self._path} to be a lock file, but it is a link or another file. Nothing was written to it: "
            f"remove it, and {self.folder} can be used."
        )

    def __enter__(self) -> FolderLock:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _signature() -> bytes:
    return MARK + f"{os.getpid()} on {socket.gethostname()}\n".encode()
