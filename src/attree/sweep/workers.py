"""Who works on a sweep: a name for each process that others can tell from a dead one's."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from attree.io.lock import FolderLock, InUseError

FOLDER = ".workers"
"""Folder in a sweep's folder with a lock file for each process at work."""


class Worker:
    """A process that works on a sweep.

    It holds a lock for as long as it lives. Processes under the same kernel ask the lock whether it does, and know at
    once; all others wait for its signs of life. (Locks of network file systems are not asked: not all of them tell.)

    Args:
        own: The sweep's folder.
    """

    def __init__(self, own: Path) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._lock = FolderLock(own.absolute() / FOLDER / self.name)
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

    def as_dict(self) -> dict[str, str]:
        """What others need to know of this worker."""
        return {"name": self.name, "kernel": self._kernel, "lock": str(self._lock.folder)}

    def knows_alive(self, other: Mapping[str, Any]) -> bool | None:
        """Whether another worker lives; None if this one cannot know.

        Args:
            other: What `as_dict` said of it.
        """
        if other.get("name") == self.name:
            return True
        if str(other.get("name")) in self._dead:
            return False
        folder = Path(str(other.get("lock", "")))
        if other.get("kernel") != self._kernel or not folder.with_name(f".{folder.name}.lock").is_file():
            return None
        try:
            FolderLock(folder).acquire().release()
        except InUseError:
            return True
        self._dead.add(str(other.get("name")))
        return False

    @cached_property
    def _kernel(self) -> str:
        """What tells running kernels apart: containers of one machine share it, machines do not."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return socket.gethostname()
