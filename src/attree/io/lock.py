"""Lock a folder for one process."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from types import TracebackType

from attree.errors import ArgumentError

MARK = b"process "
"""First bytes of every lock file that is not empty."""

_HELD: set[Path] = set()
"""Folders that this process has locked: the system's locks would let the same process in twice."""


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
        self._handle: int | None = None

    def acquire(self) -> FolderLock:
        """Take the lock, or raise an `InUseError` that names the process that holds it."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return self._acquire()
            except InUseError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.05)

    def _acquire(self) -> FolderLock:
        """Lock the folder, and write this process's id to the lock file; raise `InUseError` if the folder is in use."""
        if self.folder in _HELD:
            raise InUseError(f"{self.folder} is in use by this process.")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while self._handle is None:
            handle = self._open()
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(handle):
                    self._handle = handle
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                    raise InUseError(f"{self.folder} is in use by {holder}.") from error
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                self._handle = handle
            finally:
                if self._handle is None:
                    os.close(handle)
        os.truncate(self._handle, 0)
        os.write(self._handle, MARK + f"{os.getpid()} on {socket.gethostname()}\n".encode())
        _HELD.add(self.folder)
        return self

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None
            _HELD.discard(self.folder)

    def _open(self) -> int:
        """Open the lock file. Links are refused: through one, another file would be overwritten."""
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
                raise self._no_lock_file() from error
            raise
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not MARK.startswith(os.pread(handle, len(MARK), 0)):
            os.close(handle)
            raise self._no_lock_file()
        return handle

    def _is_there(self, handle: int) -> bool:
        """Whether the open file is still the lock file: its last holder may have removed it."""
        try:
            return os.path.samestat(os.fstat(handle), os.lstat(self._path))
        except FileNotFoundError:
            return False

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
