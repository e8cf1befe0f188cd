"""Lock a folder for one process."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from attree.errors import ArgumentError

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
