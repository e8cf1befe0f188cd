"""One process at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType

from attree.errors import ArgumentError

_HELD: set[Path] = set()
"""Folders that this process holds: the system's locks are of processes, and would let it in twice."""


class FolderLock:
    """Keeps a folder for one process, from `acquire` to `release` or to the process's end, however that comes.

    The lock is the system's, on a hidden file beside the folder, so none is left by a killed process. It belongs to
    the process alone: workers that it forks do not inherit it. On a file system without locks there is none.

    Args:
        folder: The folder; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._path = self.folder.with_name(f".{self.folder.name}.lock")
        self._handle: int | None = None

    def acquire(self) -> FolderLock:
        """Take the lock, or raise an `ArgumentError` that names the process which has it."""
        if self.folder in _HELD:
            raise ArgumentError(f"{self.folder} is in use by this process.")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while self._handle is None:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever held it before may have removed the file meanwhile: a lock on that one keeps nobody out.
                if self._path.exists() and os.path.samestat(os.fstat(handle), os.stat(self._path)):
                    self._handle = handle
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                    raise ArgumentError(f"{self.folder} is in use by {holder}.") from error
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                self._handle = handle
            finally:
                if self._handle is None:
                    os.close(handle)
        os.truncate(self._handle, 0)
        os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        _HELD.add(self.folder)
        return self

    def release(self) -> None:
        """Give the folder back; nothing happens if it is not held."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None
            _HELD.discard(self.folder)

    def __enter__(self) -> FolderLock:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
