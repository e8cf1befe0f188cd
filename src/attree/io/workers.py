"""Who works on something that several processes and machines share, and who has claimed which part of it.

Nothing is needed but a folder that all of them see. A process holds a lock for as long as it lives, which processes
under the same kernel can ask; all others look at the time of its last sign of life, as the file system has it, so that
the clocks of machines need not agree.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from attree.io.files import new_file
from attree.io.lock import FolderLock, InUseError

FOLDER = ".workers"
"""Folder in the shared one with a lock file for each process at work."""

BEATS_PER_GRACE = 6
"""Signs of life in the time after which a worker counts as dead."""


class Worker:
    """A process that shares work with others through a folder.

    Locks of network file systems are not asked, as not all of them tell the truth: see `knows_alive`.

    Args:
        shared: The shared folder.
    """

    def __init__(self, shared: Path) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._lock = FolderLock(shared.absolute() / FOLDER / self.name)
        self._dead: set[str] = set()

    def begin(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def end(self) -> None:
        """Give the lock back; the last one removes the folder."""
        self._lock.release()
        try:
            self._lock.folder.parent.rmdir()
        except OSError:  # others are at work, or nobody ever was
            return

    def beat(self) -> None:
        """Give a sign of life."""
        _touch(_lock_file(self._lock.folder))

    def as_dict(self) -> dict[str, str]:
        """What others need to know of this worker."""
        return {"name": self.name, "kernel": self._kernel, "lock": str(self._lock.folder)}

    def knows_alive(self, other: Mapping[str, Any]) -> bool | None:
        """Whether another worker lives; None if this one cannot know.

        Args:
            other: What `as_dict` said of it.
        """
        name = str(other.get("name"))
        if name == self.name:
            return True
        if name in self._dead:
            return False
        folder = Path(str(other.get("lock", "")))
        if other.get("kernel") != self._kernel or not _lock_file(folder).is_file():
            return None
        if _is_locked(folder):
            return True
        self._dead.add(name)
        return False

    def others(self, grace: float) -> list[str]:
        """Names of other workers that may live: their lock is held here, or elsewhere they gave a sign of life lately.

        Args:
            grace: How many seconds ago at most.
        """
        found = []
        for path in sorted(self._lock.folder.parent.glob(".*.lock")):
            name = path.name.removeprefix(".").removesuffix(".lock")
            if name == self.name:
                continue
            here = name.startswith(f"{socket.gethostname()}-")
            if _is_locked(path.with_name(name)) if here else age(path) < grace:
                found.append(name)
        return found

    @cached_property
    def _kernel(self) -> str:
        """An id of the running kernel: containers of one machine share it, two machines do not."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return socket.gethostname()


class Claims:
    """Claims of a worker to parts of the work, as files in the shared folder.

    A claim expires when its worker dies, or gives no sign of life. Two workers may hold the same claim for a moment if
    one of them was only slow: whoever uses claims must not mind a part that is done twice.

    Args:
        shared: The shared folder.
        worker: Who claims.
        grace: Seconds without a sign of life after which a claim has expired.
    """

    def __init__(self, shared: Path, worker: Worker, grace: float = 60.0) -> None:
        self.shared = shared
        self.worker = worker
        self.grace = grace
        self._held: set[Path] = set()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="signs of life", daemon=True)

    def begin(self) -> None:
        """Begin to give signs of life."""
        self._heart.start()

    def end(self) -> None:
        """Give all claims back, and no more signs of life."""
        self._over.set()
        for path in list(self._held):
            path.unlink(missing_ok=True)
        self._held.clear()

    def take(self, part: str) -> bool:
        """Claim a part; False if another worker has it."""
        path = self._path(part)
        if path.exists() and self._has_expired(path):
            path.unlink(missing_ok=True)
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(self.worker.as_dict(), stream)
        self._held.add(path)
        return True

    def release(self, part: str) -> None:
        """Give a claim back."""
        path = self._path(part)
        self._held.discard(path)
        path.unlink(missing_ok=True)

    def _path(self, part: str) -> Path:
        return self.shared / f"claim-{part}.json"

    def _has_expired(self, path: Path) -> bool:
        try:
            holder = json.loads(path.read_text(encoding="utf-8"))
            alive = self.worker.knows_alive(holder) if isinstance(holder, dict) else None
        except (OSError, ValueError):  # it is being written, or was given back
            alive = None
        return age(path) > self.grace if alive is None else not alive

    def _beat(self) -> None:
        while not self._over.wait(self.grace / BEATS_PER_GRACE):
            self.worker.beat()
            for path in list(self._held):
                _touch(path)


def age(path: Path) -> float:
    """Seconds since a file was written or touched, by the clock of the file system that holds it; 0 if it is gone."""
    now = new_file(path)
    try:
        return now.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        now.unlink(missing_ok=True)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _is_locked(folder: Path) -> bool:
    try:
        FolderLock(folder).acquire().release()
    except InUseError:
        return True
    return False


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:  # it was given back, or taken away from a worker that was taken for dead
        return
