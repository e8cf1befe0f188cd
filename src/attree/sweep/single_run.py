"""Do one run of a sweep: start `attree fit` in its own process, or resume a killed fit from its last checkpoint."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from attree.errors import ArgumentError
from attree.io.files import FolderLock, read_metrics, write_text, zip_damage
from attree.io.processes import start_child
from attree.sweep.plan import Plan, Run, value_text

METRICS_FILE = "metrics.json"
"""File with the last metrics, which a fit writes when it ends."""

FINGERPRINT_FILE = "fingerprint.txt"
"""File with the run's fingerprint, written after the fit succeeded."""

BEGUN_FILE = "begun.txt"
"""File with the run's fingerprint, written before the fit begins. Only the same run resumes a killed fit."""

REPORT_FILE = "reported.csv"
"""File with the epochs and values of the metric that the pruner reads."""

PREFIX = "attree: error: "
"""Prefix of the command line's error messages."""

LOG_FILE = "output.log"
"""File with everything that the run printed."""

PATIENCE = 20.0
"""Seconds to wait for a folder that another process uses."""

POLL = 0.2
"""Seconds between two checks whether a process must be stopped early."""

Launch = Callable[[Sequence[str], Path, Mapping[str, str], Callable[[], bool]], int]
"""Runs `attree` and returns its exit status. Takes the arguments, the file for the output, the environment, and a
function that returns whether to stop the process early."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        run: The run.
        status: Whether the run is done, was already finished (`skipped`), was stopped early, or failed.
        seconds: Duration of the run.
        reason: Reason of a failure, in a sentence.
        log: File with everything that the run printed; None if it did not start.
    """

    run: Run
    status: Literal["done", "skipped", "stopped", "failed"]
    seconds: float
    reason: str = ""
    log: Path | None = None

    @property
    def kind_of_failure(self) -> str:
        """The reason without the run's id and numbers, which differ from run to run."""
        return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", self.reason.replace(self.run.id, "RUN"))


def is_finished(run: Run, folder: Path) -> bool:
    """Whether `folder` holds readable results of this run, not of an earlier run with the same id."""
    return is_marked(run, folder) and metrics_of_run(folder) is not None


def is_marked(run: Run, folder: Path, file: str = FINGERPRINT_FILE) -> bool:
    """Whether `folder` has a marker file of this run: by default, the one of a run that succeeded."""
    mark = folder / file
    return mark.is_file() and mark.read_bytes().strip() == run.fingerprint.encode()


def metrics_of_run(folder: Path) -> dict[str, float] | None:
    """Return the last metrics of a fit, NaN where undefined; None if the file is missing or damaged."""
    try:
        return read_metrics(folder / METRICS_FILE)
    except (FileNotFoundError, NotADirectoryError, ArgumentError):
        return None


def folder_of_run(plan: Plan, run: Run, folder: Path) -> Path:
    """Return the run directory of a run."""
    return folder / plan.name / run.id


def fit_arguments(
    plan: Plan, run: Run, folder: Path, checkpoint: Path | None = None, reported: str | None = None
) -> list[str]:
    """Return the arguments of `attree` that do one run. All runs of a sweep log to one TensorBoard folder.

    Args:
        plan: The plan.
        run: The run.
        folder: Parent of the sweep's folder.
        checkpoint: The checkpoint to resume from; None starts from the beginning.
        reported: The metric to report after each validation; None reports nothing.
    """
    logger, callback = "--trainer.logger", "--trainer.callbacks"
    arguments = [
        "fit",
        f"--config={os.path.relpath(plan.config)}",
        *(f"--{key}={value_text(value)}" for key, value in run.overrides.items()),
        f"{logger}=lightning.pytorch.loggers.TensorBoardLogger",
        f"{logger}.init_args.save_dir={folder}",
        f"{logger}.init_args.name={plan.name}",
        f"{logger}.init_args.version={run.id}",
        f"{logger}.init_args.default_hp_metric=false",
    ]
    if reported is not None:
        file = folder_of_run(plan, run, folder) / REPORT_FILE
        arguments += [f"{callback}+=attree.sweep.single_run.ReportMetric"]
        arguments += [f"{callback}.metric={reported}", f"{callback}.file={file}"]
    return arguments if checkpoint is None else [*arguments, f"--ckpt_path={checkpoint}"]


def do_run(
    plan: Plan,
    run: Run,
    folder: Path,
    environment: Mapping[str, str],
    launch: Launch,
    is_over: Callable[[], bool] = lambda: False,
    reported: str | None = None,
) -> Outcome:
    """Fit one run of a sweep, unless it is finished.

    If the run was killed, it resumes from its last checkpoint. If its folder holds files of a run with another config,
    they are removed first.

    Args:
        plan: The plan.
        run: The run.
        folder: Folder that holds the sweep's folder.
        environment: Environment variables of the fit.
        launch: Runs `attree` in a process and returns its exit status, negative if a signal ended it.
        is_over: Returns whether to stop the fit early.
        reported: The metric to report after each validation; None reports nothing.
    """
    run_folder = folder_of_run(plan, run, folder)
    if is_finished(run, run_folder):
        return Outcome(run, "skipped", 0.0)
    log, began = run_folder / LOG_FILE, perf_counter()
    try:
        # The fit of a sweep that was just killed may need a moment to end.
        with FolderLock(run_folder, patience=PATIENCE):
            checkpoint = _checkpoint(run, run_folder)
            if checkpoint is None:
                _clear(run, run_folder)
    except ArgumentError as error:  # another fit uses the folder
        return Outcome(run, "failed", perf_counter() - began, str(error))
    status = launch(fit_arguments(plan, run, folder, checkpoint, reported), log, environment, is_over)
    if checkpoint is not None and status >= 0 and metrics_of_run(run_folder) is None and not is_over():
        # The fit was killed after the last epoch, or cannot resume from the checkpoint: start from the beginning.
        _clear(run, run_folder)
        status = launch(fit_arguments(plan, run, folder, None, reported), log, environment, is_over)
    seconds = perf_counter() - began
    if status == 0 and metrics_of_run(run_folder) is not None:
        write_text(run_folder / FINGERPRINT_FILE, run.fingerprint + "\n")
        return Outcome(run, "done", seconds, log=log)
    if is_over():
        return Outcome(run, "stopped", seconds, log=log)
    return Outcome(run, "failed", seconds, failure_reason(log, status), log)


def _clear(run: Run, run_folder: Path) -> None:
    if run_folder.exists():
        shutil.rmtree(run_folder)
    run_folder.mkdir(parents=True)
    write_text(run_folder / BEGUN_FILE, run.fingerprint + "\n")


def _checkpoint(run: Run, run_folder: Path) -> Path | None:
    """Return the checkpoint that a killed run can resume from; None if it is missing, damaged, or of another run."""
    checkpoint = run_folder / "checkpoints" / "last.ckpt"
    usable = (
        is_marked(run, run_folder, BEGUN_FILE)
        and not is_marked(run, run_folder)
        and not (run_folder / METRICS_FILE).exists()
    )
    return checkpoint if usable and checkpoint.is_file() and zip_damage(checkpoint) is None else None


def failure_reason(log: Path, status: int) -> str:
    """Return why a run failed: attree's error message in the log, or else the log's last line.

    Args:
        log: File with everything that the run printed.
        status: Exit status of the run.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    messages = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    if messages or (lines and status > 0):
        return (messages or lines)[-1]
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status} and no metrics"


class ReportMetric(Callback):
    """Writes the epoch and the value of a metric to a file after each validation that logged it.

    Each line of the file is `epoch,value`. A sweep reads the file during the run, reports the values to Optuna, and
    stops the run if the pruner decides so. The fit itself does not use Optuna.

    Args:
        metric: Name of the metric, as it is logged.
        file: The file; lines are appended to it.
    """

    def __init__(self, metric: str, file: str) -> None:
        self.metric = metric
        self.file = Path(file)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.metric)
        if value is None or trainer.sanity_checking or not trainer.is_global_zero or not math.isfinite(float(value)):
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(f"{trainer.current_epoch},{float(value)!r}\n")


def read_reported(file: Path) -> dict[int, float]:
    """Return the values that a run has reported so far, by epoch. An incomplete last line is left out."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError:
        return {}
    values = {}
    for line in lines:
        epoch, comma, value = line.partition(",")
        if comma and epoch.isdigit():
            values[int(epoch)] = float(value)
    return values


class Processes:
    """Starts `attree` processes, and can kill all that are running."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._stopped = False

    def launch(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        is_over: Callable[[], bool] = lambda: False,
    ) -> int:
        """Run `attree` and return its exit status. The process is killed as soon as `is_over` returns True."""
        with log.open("ab") as output:
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
                while True:
                    try:
                        return process.wait(timeout=POLL)
                    except subprocess.TimeoutExpired:
                        if is_over():
                            _kill(process)
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """Kill all running processes and their children, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def threads_per_worker(workers: int) -> int:
    """Return the number of threads of each run if `workers` runs share the machine."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    available = int(threads) if threads.isdigit() else os.cpu_count() or 1
    return max(1, available // workers)
