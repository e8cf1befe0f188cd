"""Children end with their parent, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.paper.cells import Cell, CellContext
from attree.paper.report_items import Options
from attree.paper.run import measure_cells
from helpers.cli import CONFIGS, TINY, command, fit
from helpers.processes import WarmCommand, fork_server
from helpers.sweeps import FitHere
from helpers.time_limit import SECONDS

CHILD = """
import os, sys, time
from pathlib import Path
from attree.io.processes import PARENT_PIPE, end_with_parent
end_with_parent()
assert PARENT_PIPE not in os.environ
if os.fork() == 0:
    Path(sys.argv[1], f"grandchild-{os.getpid()}").touch()
Path(sys.argv[1], f"child-{os.getpid()}").touch()
time.sleep(600)
"""
PARENT = """
import os, signal, sys, time
from attree.io.processes import start_child
for number in (signal.SIGHUP, signal.SIGTERM):  # which a job in the background may ignore
    signal.signal(number, signal.SIG_DFL)
for _ in range(2):
    start_child([sys.executable, "-c", sys.argv[1], sys.argv[2]], os.environ)
time.sleep(600)
"""


@dataclass(frozen=True)
class Sleep(Cell):
    """A cell of the paper that never ends, and notes which process measures it."""

    number: int
    kind = "sleep"
    dataset = "Infection"

    def measure(self, context: CellContext) -> Any:
        Path(context.root, f"child-{os.getpid()}").touch()
        time.sleep(600)


def paper(folder: Path) -> None:
    cells = [Sleep(0), Sleep(1)]
    list(measure_cells(cells, Options(jobs=2, root=str(folder)), CellContext(str(folder), folder / "cells")))


def wait(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not state.strip() or state.strip().startswith("Z")


def pids(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("*child-*")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_children_and_their_children_end_when_the_parent_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(tmp_path)])
    try:
        wait(lambda: len(pids(tmp_path)) == 6, "the children have not started")  # grandchildren say both
        assert not any(is_gone(pid) for pid in pids(tmp_path))
    finally:
        os.kill(parent.pid, number)
        parent.wait(timeout=SECONDS)
    wait(lambda: all(is_gone(pid) for pid in pids(tmp_path)), "children go on without their parent")


@pytest.mark.slow
def test_workers_of_the_paper_end_when_it_is_killed(tmp_path: Path) -> None:
    parent = fork_server().Process(target=paper, args=(tmp_path,))
    parent.start()
    try:
        wait(lambda: len(pids(tmp_path)) == 2, "the workers have not started")
    finally:
        parent.kill()
        parent.join(SECONDS)
    wait(lambda: all(is_gone(pid) for pid in pids(tmp_path)), "workers go on without their parent")


@pytest.mark.long
def test_a_killed_sweep_leaves_no_fit_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = dict(option.removeprefix("--").split("=") for option in TINY)
    settings = {key: yaml.safe_load(value) for key, value in options.items()}
    settings = {re.sub(r"^data\.", "data.init_args.", key): value for key, value in settings.items()}
    settings |= {"trainer.max_epochs": 100, "explain.every_n_epochs": 50}
    content = {"name": "mini", "config": str(CONFIGS / "infection.yaml"), "set": settings}
    Path("mini.yaml").write_text(yaml.safe_dump({**content, "runs": [{"list": [{}]}], "seeds": [4]}))
    first = WarmCommand(["sweep", "mini.yaml", "--folder", "out"])
    try:
        wait(lambda: any(Path("out/mini").glob("*/checkpoints/last.ckpt")), "no fit has begun")
        (lock,) = Path("out/mini").glob(".*.lock")
        pid = int(lock.read_text().split()[1])
    finally:
        first.kill()
        first.communicate(timeout=SECONDS)
    begun = {path: path.read_bytes() for path in Path("out/mini").rglob("events.*")}
    launch = FitHere()
    assert command("sweep", "mini.yaml", "--folder", "out", launch=launch) == 0
    assert re.search(r"done +\S*seed=4", capsys.readouterr().out)
    assert is_gone(pid)
    ((*_, resumed),) = [[one for one in arguments if "ckpt_path" in one] for arguments in launch.seen]
    assert resumed.endswith("last.ckpt"), "the fit began anew"
    assert begun
    assert all(path.read_bytes().startswith(content) for path, content in begun.items())
    (run,) = {path.parent for path in begun}
    assert [event.step for event in EventAccumulator(str(run)).Reload().Scalars("val/acc")] == list(range(100))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_in_explain_are_one_line(number: signal.Signals, status: int, tmp_path: Path) -> None:
    run = fit(tmp_path)
    process = WarmCommand(["explain", str(run), "--targets=all", "--part_rows=1"])
    wait(lambda: any((run / "explain").glob("scores/part-*")), "nothing is explained")
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    said = [line for line in errors.splitlines() if "Warning" not in line and not line.startswith(" ")]
    assert said == ["attree: stopped. Run the same command again to continue."]
    assert process.returncode == status
