"""Workers on several machines that share work through a folder, and their claims to parts of it.

The workers need only a folder that they can all write to. Each worker holds a lock while it is alive, which workers on
the same machine can test. Workers on other machines read the time of its last heartbeat, by the clock of the file
system, so the machines' clocks need not agree.
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
"""Subfolder of the shared folder with a lock file for each worker."""

BEATS_PER_GRACE = 6
"""Number of heartbeats within the grace period."""


class Worker:
    """A process that shares work with others through a folder.

    Locks are tested only on the same machine, because network file systems do not always report them: see
    `is_alive`.

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
        """Release the lock. The last worker removes the subfolder."""
        self._lock.release()
        try:
            self._lock.folder.parent.rmdir()
        except OSError:  # other workers remain, or there never was one
            return

    def beat(self) -> None:
        """Touch the lock file, as a heartbeat."""
        _touch(_lock_file(self._lock.folder))

    def as_dict(self) -> dict[str, str]:
        """Return this worker's name, kernel and lock folder, by which other workers check whether it is alive."""
        return {"name": self.name, "kernel": self._kernel, "lock": str(self._lock.folder)}

    def is_alive(self, other: Mapping[str, Any]) -> bool | None:
        """Whether another worker is alive; None if unknown, as for workers on other machines.

        Args:
            other: The other worker, as `as_dict` returned it.
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
        """Return the names of other workers that may be alive, by their lock or by their last heartbeat.

        Args:
            grace: Seconds without a heartbeat after which a worker counts as dead.
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
        """Id of the running kernel: the same in all containers of a machine, different on other machines."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return socket.gethostname()


class Claims:
    """Claims of a worker to parts of the work, as files in the shared folder.

    A claim expires when its worker dies or its heartbeat stops. If a worker was only slow, two workers may hold the
    same claim for a moment, so it must be harmless to do a part twice.

    Args:
        shared: The shared folder.
        worker: The worker that claims.
        grace: Seconds without a heartbeat after which a claim expires.
    """

    def __init__(self, shared: Path, worker: Worker, grace: float = 60.0) -> None:
        self.shared = shared
        self.worker = worker
        self.grace = grace
        self._held: set[Path] = set()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def begin(self) -> None:
        """Start the heartbeat."""
        self._heart.start()

    def end(self) -> None:
        """Release all claims, and stop the heartbeat."""
        self._over.set()
        for path in list(self._held):
            path.unlink(missing_ok=True)
        self._held.clear()

    def take(self, part: str) -> bool:
        """Claim a part of the shared work by its claim file. Return False if another worker holds the claim."""
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
        """Release a claim."""
        path = self._path(part)
        self._held.discard(path)
        path.unlink(missing_ok=True)

    def _path(self, part: str) -> Path:
        return self.shared / f"claim-{part}.json"

    def _has_expired(self, path: Path) -> bool:
        try:
            holder = json.loads(path.read_text(encoding="utf-8"))
            alive = self.worker.is_alive(holder) if isinstance(holder, dict) else None
        except (OSError, ValueError):  # it is being written, or was just released
            alive = None
        return age(path) > self.grace if alive is None else not alive

    def _beat(self) -> None:
        while not self._over.wait(self.grace / BEATS_PER_GRACE):
            self.worker.beat()
            for path in list(self._held):
                _touch(path)


def age(path: Path) -> float:
    """Return the seconds since a file was written or touched, by the file system's clock; 0 if it does not exist."""
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
    except FileNotFoundError:  # it was released, or removed because this worker seemed dead
        return
