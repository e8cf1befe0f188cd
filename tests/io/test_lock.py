"""A folder's lock keeps other processes out, ends with its process, and overwrites nothing else."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attree.errors import ArgumentError
from attree.io.files import FolderLock, InUseError
from helpers.time_limit import SECONDS, time_limit

HOLD = "import sys, time\nfrom pathlib import Path\nfrom attree.io.files import FolderLock\n"
HOLD += "FolderLock(Path(sys.argv[1])).acquire()\nprint('held', flush=True)\ntime.sleep(600)"


COUNT = """
import sys
from pathlib import Path
from attree.io.files import FolderLock
folder, counter = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with FolderLock(folder, patience=120):
        number = int(counter.read_text())
        counter.write_text("")
        counter.write_text(str(number + 1))
"""


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    with time_limit():
        yield


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
        holder.wait(timeout=SECONDS)
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
    holder.wait(timeout=SECONDS)
    try:
        with FolderLock(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_no_lock_file_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("precious")
    signed = tmp_path / ".precious.lock"
    signed.write_text("process 1 on a machine\n")
    lock = tmp_path / ".run.lock"
    ways = {
        "symbolic link": lambda: lock.symlink_to(other),
        "link to nothing": lambda: lock.symlink_to(tmp_path / "absent"),
        "hard link": lambda: lock.hardlink_to(other),
        "link to a lock file": lambda: lock.symlink_to(signed),
        "hard link to a lock file": lambda: lock.hardlink_to(signed),
        "other file": lambda: lock.write_text("precious"),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lambda: lock.mkdir(),
    }
    for name, make in ways.items():
        make()
        with pytest.raises(ArgumentError, match="to be a lock file"):
            FolderLock(tmp_path / "run").acquire()
        assert other.read_text() == "precious", name
        assert signed.read_text() == "process 1 on a machine\n", name
        assert not (tmp_path / "absent").exists()
        lock.rmdir() if name == "folder" else lock.unlink()
    lock.write_text("process 1 on a machine that is gone\n")
    with FolderLock(tmp_path / "run"):
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
    assert not lock.exists()


def test_processes_that_remove_the_file_when_they_release_it_never_hold_it_together(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path / "run"), str(counter), "40"]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert counter.read_text() == "120"
    assert list(tmp_path.iterdir()) == [counter]


def test_a_lock_file_that_was_removed_while_it_was_waited_for_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is then on a file that nobody else can find: another process would get a second one."""
    path = tmp_path / ".run.lock"
    opened = os.open
    removed: list[str] = []

    def open_and_lose(name: str, *options: int) -> int:
        handle = opened(name, *options)
        if os.fspath(name) == str(path) and not removed:
            removed.append(name)
            path.unlink()  # as its last holder does
        return handle

    monkeypatch.setattr(os, "open", open_and_lose)
    with FolderLock(tmp_path / "run", patience=60):
        assert removed
        assert path.exists()
        with pytest.raises(InUseError):
            FolderLock(tmp_path / "run").acquire()


def test_waiting_ends_when_the_lock_is_released_or_patience_is_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD.replace("600", "1"), str(tmp_path / "run")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InUseError):
        FolderLock(tmp_path / "run", patience=0.1).acquire()
    with FolderLock(tmp_path / "run", patience=120):
        assert holder.wait() == 0


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left") as failure:
            FolderLock(tmp_path / "run").acquire()
    assert failure.value.filename == str(tmp_path / ".run.lock")
    with FolderLock(tmp_path / "run"):
        pass


@pytest.mark.long  # it imports PyTorch again
def test_attree_is_imported_where_there_is_no_fcntl() -> None:
    code = (
        "import sys; sys.modules['fcntl'] = None; from attree import ExplainCallback; import attree.cli.lightning_cli"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
