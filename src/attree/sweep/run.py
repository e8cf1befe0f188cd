"""Do one run of a sweep: start its fit, or continue from the last checkpoint a fit that was killed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from attree.errors import ArgumentError
from attree.io.files import read_metrics, write_text, zip_damage
from attree.io.lock import FolderLock
from attree.sweep.launch import Launch
from attree.sweep.plan import Plan, Run, value_text

METRICS_FILE = "metrics.json"
"""What a fit leaves behind when it ends: its last metrics."""

FINGERPRINT_FILE = "fingerprint.txt"
"""File that the sweep writes when a fit has ended well: the run's fingerprint."""

BEGUN_FILE = "begun.txt"
"""File that the sweep writes before a fit begins: the run's fingerprint. Only the same run continues a killed fit."""

REPORT_FILE = "reported.csv"
"""Epochs and values of the metric that a pruner judges a run by."""

PREFIX = "attree: error: "
"""How the command line begins a sentence that says why it failed."""

LOG_FILE = "output.log"
"""Everything that a run printed."""

PATIENCE = 20.0
"""Seconds to wait for a folder that another process is using."""


@dataclass(frozen=True)
class Outcome:
    """How one run went.

    Attributes:
        run: The run.
        status: Whether it was done now, finished before, was ended early, or failed.
        seconds: How long it took.
        reason: Why it failed, in a sentence.
        log: The file with all that it printed; None if it never began.
    """

    run: Run
    status: Literal["done", "skipped", "stopped", "failed"]
    seconds: float
    reason: str = ""
    log: Path | None = None

    @property
    def kind_of_failure(self) -> str:
        """The reason without what differs from run to run: names and numbers."""
        return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", self.reason.replace(self.run.id, "RUN"))


def is_finished(run: Run, folder: Path) -> bool:
    """Whether `folder` holds the results, undamaged, of this very run, not of an earlier one under the same id."""
    return is_marked(run, folder) and metrics_of_run(folder) is not None


def is_marked(run: Run, folder: Path, file: str = FINGERPRINT_FILE) -> bool:
    """Whether this very run once ended well in `folder`, or has begun there."""
    mark = folder / file
    return mark.is_file() and mark.read_bytes().strip() == run.fingerprint.encode()


def metrics_of_run(folder: Path) -> dict[str, float] | None:
    """The last metrics of a fit, NaN where they are undefined; None if there are none, or the file is damaged."""
    try:
        return read_metrics(folder / METRICS_FILE)
    except (FileNotFoundError, NotADirectoryError, ArgumentError):
        return None


def damaged_runs(plan: Plan, folder: Path) -> list[Run]:
    """Runs that ended well once, but whose metrics cannot be read any more."""
    folders = {run.id: folder_of_run(plan, run, folder) for run in plan.runs}
    return [run for run in plan.runs if is_marked(run, folders[run.id]) and metrics_of_run(folders[run.id]) is None]


def folder_of_run(plan: Plan, run: Run, folder: Path) -> Path:
    """Where a run's files are."""
    return folder / plan.name / run.id


def fit_arguments(
    plan: Plan, run: Run, folder: Path, checkpoint: Path | None = None, reported: str | None = None
) -> list[str]:
    """What to type after `attree` to do one run, all of them logging to one TensorBoard folder.

    Args:
        plan: The plan.
        run: The run.
        folder: Where the sweep's folder is.
        checkpoint: The checkpoint to continue from; None begins anew.
        reported: The metric that is reported after each validation; None for none.
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
        arguments += [f"{callback}+=attree.sweep.report_metric.ReportMetric"]
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
    """Do a run, unless it is finished.

    What a differently configured run left in its folder is removed first; the same run, if it was killed, goes on from
    its last checkpoint.

    Args:
        plan: The plan.
        run: The run.
        folder: Where the sweep's folder is.
        environment: The fit's environment.
        launch: What runs `attree`.
        is_over: Says whether the fit is to be ended early.
        reported: The metric that is reported after each validation; None for none.
    """
    own = folder_of_run(plan, run, folder)
    if is_finished(run, own):
        return Outcome(run, "skipped", 0.0)
    log, began = own / LOG_FILE, perf_counter()
    try:
        # A fit of a sweep that was killed a moment ago may need that moment to end.
        with FolderLock(own, patience=PATIENCE):
            checkpoint = _checkpoint(run, own)
            if checkpoint is None:
                _clear(run, own)
    except ArgumentError as error:  # someone else's fit is at work there
        return Outcome(run, "failed", perf_counter() - began, str(error))
    status = launch(fit_arguments(plan, run, folder, checkpoint, reported), log, environment, is_over)
    if checkpoint is not None and status >= 0 and metrics_of_run(own) is None and not is_over():
        # The checkpoint is of the last epoch, after which the fit was killed, or cannot be gone on from: begin anew.
        _clear(run, own)
        status = launch(fit_arguments(plan, run, folder, None, reported), log, environment, is_over)
    seconds = perf_counter() - began
    if status == 0 and metrics_of_run(own) is not None:
        write_text(own / FINGERPRINT_FILE, run.fingerprint + "\n")
        return Outcome(run, "done", seconds, log=log)
    if is_over():
        return Outcome(run, "stopped", seconds, log=log)
    return Outcome(run, "failed", seconds, failure_reason(log, status), log)


def _clear(run: Run, own: Path) -> None:
    if own.exists():
        shutil.rmtree(own)
    own.mkdir(parents=True)
    write_text(own / BEGUN_FILE, run.fingerprint + "\n")


def _checkpoint(run: Run, own: Path) -> Path | None:
    """The checkpoint that a killed run can continue from; None if it is missing, damaged, or another run's."""
    checkpoint = own / "checkpoints" / "last.ckpt"
    usable = is_marked(run, own, BEGUN_FILE) and not is_marked(run, own) and not (own / METRICS_FILE).exists()
    return checkpoint if usable and checkpoint.is_file() and zip_damage(checkpoint) is None else None


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
