from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attree.errors import ArgumentError
from attree.io.lock import FolderLock

HOLD = "import sys, time\nfrom pathlib import Path\nfrom attree.io.lock import FolderLock\n"
HOLD += "FolderLock(Path(sys.argv[1])).acquire()\nprint('held', flush=True)\ntime.sleep(600)"


def test_a_lock_keeps_others_out_and_goes_with_a_killed_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ArgumentError, match=rf"{folder} is in use by process {holder.pid} on "):
            FolderLock(folder).acquire()
        with FolderLock(tmp_path / "another"):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(timeout=30)
    with FolderLock(folder):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_process_cannot_take_a_folder_twice(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "run") as lock:
        with pytest.raises(ArgumentError, match="in use by this process"):
            FolderLock(tmp_path / "run").acquire()
        lock.release()
        lock.release()
        with FolderLock(tmp_path / "run"):
            pass


def test_forked_children_do_not_keep_a_lock(tmp_path: Path) -> None:
    """A data loader's worker may outlive a killed run by seconds."""
    code = HOLD.replace("print(", "import os\nif os.fork():\n    os.wait()\nprint(os.getpid(), ")
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline().split()[0])
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(timeout=30)
    try:
        with FolderLock(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_no_lock_file_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("precious")
    lock = tmp_path / ".run.lock"
    ways = {
        "symbolic link": lambda: lock.symlink_to(other),
        "link to nothing": lambda: lock.symlink_to(tmp_path / "absent"),
        "hard link": lambda: lock.hardlink_to(other),
        "other file": lambda: lock.write_text("precious"),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lambda: lock.mkdir(),
    }
    for name, make in ways.items():
        make()
        with pytest.raises(ArgumentError, match="to be a lock file"):
            FolderLock(tmp_path / "run").acquire()
        assert other.read_text() == "precious", name
        assert not (tmp_path / "absent").exists()
        lock.rmdir() if name == "folder" else lock.unlink()
    lock.write_text("process 1 on a machine that is gone\n")
    with FolderLock(tmp_path / "run"):
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
    assert not lock.exists()
