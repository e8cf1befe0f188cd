"""Do the runs of a plan: each a process of its own, several at a time, finished ones left alone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Literal

from attree.errors import ArgumentError
from attree.io import metrics_file
from attree.io.files import write_text
from attree.io.lock import FolderLock
from attree.io.processes import start_child
from attree.sweep.names import value_text
from attree.sweep.plan import Plan, Run

METRICS_FILE = "metrics.json"
"""What a fit leaves behind when it ends: its last metrics."""

FINGERPRINT_FILE = "fingerprint.txt"
"""What the sweep adds when a fit ended well: which run this was."""

PREFIX = "attree: error: "
"""How the command line begins a sentence that says why it failed."""

LOG_FILE = "output.log"
"""Everything that a run printed."""

PATIENCE = 20.0
"""Seconds to wait for a folder that another process is using."""

Launch = Callable[[Sequence[str], Path, Mapping[str, str]], int]
"""Runs `attree` with arguments, a file for its output and its environment; returns the exit status."""


@dataclass(frozen=True)
class Outcome:
    """How one run went.

    Attributes:
        run: The run.
        status: Whether it was done now, finished before, or failed.
        seconds: How long it took.
        reason: Why it failed, in a sentence.
        log: The file with all that it printed; None if it never began.
    """

    run: Run
    status: Literal["done", "skipped", "failed"]
    seconds: float
    reason: str = ""
    log: Path | None = None

    @property
    def kind_of_failure(self) -> str:
        """The reason without what differs from run to run: names and numbers."""
        return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", self.reason.replace(self.run.id, "RUN"))


class Processes:
    """Starts `attree` processes and can end all that still run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._stopped = False

    def launch(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Run `attree` to its end and return its exit status."""
        with log.open("wb") as output:
            with self._lock:
                if self._stopped:
                    return 1
                process = start_child(
                    [sys.executable, "-m", "attree.cli", *arguments],
                    environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """End what runs, with all that it started, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def is_finished(run: Run, folder: Path) -> bool:
    """Whether `folder` holds the results, undamaged, of this very run, not of an earlier one under the same id."""
    return is_marked(run, folder) and read_metrics(folder) is not None


def is_marked(run: Run, folder: Path) -> bool:
    """Whether this very run once ended well in `folder`."""
    fingerprint = folder / FINGERPRINT_FILE
    return fingerprint.is_file() and fingerprint.read_bytes().strip() == run.fingerprint.encode()


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The last metrics of a fit, NaN where they are undefined; None if there are none, or the file is damaged."""
    try:
        return metrics_file.read_metrics(folder / METRICS_FILE)
    except (FileNotFoundError, NotADirectoryError, ArgumentError):
        return None


def damaged_runs(plan: Plan, folder: Path) -> list[Run]:
    """Runs that ended well once, but whose metrics cannot be read any more."""
    folders = {run.id: run_folder(plan, run, folder) for run in plan.runs}
    return [run for run in plan.runs if is_marked(run, folders[run.id]) and read_metrics(folders[run.id]) is None]


def run_folder(plan: Plan, run: Run, folder: Path) -> Path:
    """Where a run's files are."""
    return folder / plan.name / run.id


def fit_arguments(plan: Plan, run: Run, folder: Path) -> list[str]:
    """What to type after `attree` to do one run, all of them logging to one TensorBoard folder."""
    logger = "--trainer.logger"
    return [
        "fit",
        f"--config={os.path.relpath(plan.config)}",
        *(f"--{key}={value_text(value)}" for key, value in run.overrides.items()),
        f"{logger}=lightning.pytorch.loggers.TensorBoardLogger",
        f"{logger}.init_args.save_dir={folder}",
        f"{logger}.init_args.name={plan.name}",
        f"{logger}.init_args.version={run.id}",
        f"{logger}.init_args.default_hp_metric=false",
    ]


def do_runs(plan: Plan, runs: Sequence[Run], folder: Path, jobs: int, launch: Launch) -> Iterator[Outcome]:
    """Do those of a plan's runs that are not finished, `jobs` at a time, and yield each one's outcome as it is known.

    What a former, unfinished or differently configured run left in a run's folder is removed before it starts. A run
    that fails stops no other.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads_per_job(jobs))}
    executor = ThreadPoolExecutor(max_workers=jobs)
    waiting = [executor.submit(_do_run, plan, run, folder, environment, launch) for run in runs]
    try:
        for future in as_completed(waiting):
            yield future.result()
    finally:
        # Without waiting: after an interrupt the caller must get to end the runs that are under way.
        executor.shutdown(wait=False, cancel_futures=True)


def _do_run(plan: Plan, run: Run, folder: Path, environment: Mapping[str, str], launch: Launch) -> Outcome:
    own = run_folder(plan, run, folder)
    log = own / LOG_FILE
    if is_finished(run, own):
        return Outcome(run, "skipped", 0.0)
    began = perf_counter()
    try:
        # A fit of a sweep that was killed a moment ago may need that moment to end.
        with FolderLock(own, patience=PATIENCE):
            if own.exists():
                shutil.rmtree(own)
            own.mkdir(parents=True)
    except ArgumentError as error:  # someone else's fit is at work there
        return Outcome(run, "failed", perf_counter() - began, str(error))
    status = launch(fit_arguments(plan, run, folder), log, environment)
    succeeded = status == 0 and read_metrics(own) is not None
    if succeeded:
        write_text(own / FINGERPRINT_FILE, run.fingerprint + "\n")
    reason = "" if succeeded else failure_reason(log, status)
    return Outcome(run, "done" if succeeded else "failed", perf_counter() - began, reason, log)


def failure_reason(log: Path, status: int) -> str:
    """Why a run failed: attree's own sentence in its log, or else the log's last line.

    Args:
        log: What the run printed.
        status: Its exit status.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    said = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    if said or (lines and status > 0):
        return (said or lines)[-1]
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status} and no metrics"


def threads_per_job(jobs: int) -> int:
    """Threads that each of several simultaneous runs may use: an equal share of what one alone would."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    available = int(asked) if asked.isdigit() else os.cpu_count() or 1
    return max(1, available // jobs)
