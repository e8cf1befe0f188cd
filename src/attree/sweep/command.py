"""The command `attree sweep`: queue the tasks of a sweep, work on them, and summarise the results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from rich.console import Console
from rich.text import Text

from attree.errors import ArgumentError, did_you_mean, expect
from attree.io.files import FolderLock
from attree.io.processes import stop_status, terminate_as_interrupt
from attree.io.terminal import item_bar, plain_console
from attree.report.style import count
from attree.sweep.open_study import JOURNAL, STUDY_FILE
from attree.sweep.plan import Plan
from attree.sweep.read_plan import load_plan
from attree.sweep.single_run import Launch, Outcome, Processes, folder_of_run, is_finished, metrics_of_run
from attree.sweep.study import SweepStudy
from attree.sweep.summary import show_summary
from attree.sweep.workers import Workers

MAX_EQUAL_FAILURES = 3
"""The sweep stops if its first runs, as many as this, all fail for the same reason."""

PATIENCE = 60.0
"""Seconds to wait while another process queues the tasks of the same sweep."""


def sweep(
    file: Path,
    workers: int,
    folder: Path,
    storage: str | None,
    grace: float,
    dry_run: bool,
    run: str | None,
    collect: bool,
    launch: Launch | None = None,
) -> int:
    """Work on a sweep until all tasks are done, summarise it, and return the exit status.

    Args:
        file: The sweep file, or the name of one that comes with attree.
        workers: Number of runs in parallel in this process.
        folder: Folder that holds the sweep's folder.
        storage: URL of the study's database; None for SQLite in the sweep's folder.
        grace: Seconds without a heartbeat after which a worker counts as dead.
        dry_run: Only print a shell command for each unfinished task.
        run: Key of the only task to do; None does all.
        collect: Only summarise the finished runs.
        launch: Does one run; None starts a process for it.
    """
    modes = {"--dry_run": dry_run, "--run": run is not None, "--collect": collect}
    options = [option for option, is_set in modes.items() if is_set]
    expect(len(options) <= 1, "run", "given without --dry_run and --collect", " ".join(options))
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # attree prints its own lines
    plan = load_plan(file)
    if dry_run:
        _show_commands(plan, file, folder, storage)
        return 0
    console = plain_console()
    outcomes: list[Outcome] = []
    if collect:
        show_summary(plan, folder, SweepStudy.open(plan, folder / plan.name, storage, create=False), console)
        return 0
    keys = [task.key for task in plan.tasks]
    if run is not None and run not in keys:
        raise ArgumentError(
            f"Expected argument `run` to be a run of {plan.name}, but got {run!r}.{did_you_mean(run, keys)}"
        )
    processes = Processes()
    try:
        with terminate_as_interrupt():
            study = _open_and_queue(plan, folder, storage, grace, console)
            threads = Workers(study, folder, workers, launch or processes.launch, run)
            try:
                outcomes = _show_progress(threads, console)
            finally:
                threads.stop()
                processes.stop()
                threads.join()
    except KeyboardInterrupt as stop:
        console.print("Stopped. Run the same command again to continue.")
        return stop_status(stop)
    except StorageInternalError as error:
        why = str(error.__cause__ or error).splitlines()[0]
        raise ArgumentError(
            f"Expected the storage of the study to answer, but it failed: {why} Run the same command again to continue."
        ) from error
    if run is None:
        show_summary(plan, folder, study, console)
    return _show_failures(outcomes, console)


def _show_commands(plan: Plan, file: Path, folder: Path, storage: str | None) -> None:
    """Print the commands of unfinished tasks for a shell or scheduler, and the number of finished ones to stderr."""
    study = SweepStudy.open(plan, folder / plan.name, storage, create=False)
    done = set() if study is None else {key for key, record in study.records().items() if record.status == "done"}
    runs = {run.id for run in plan.runs}
    if storage is None:  # trust the folder: a run's files may be removed, or older than the study
        done -= runs
        done |= {run.id for run in plan.runs if is_finished(run, folder_of_run(plan, run, folder))}
    waiting = [task for task in plan.tasks if task.key not in done]
    where = ["--folder", str(folder), *([] if storage is None else ["--storage", storage])]
    for task in waiting:
        print(shlex.join(["attree", "sweep", str(file), *where, "--run", task.key]))
    finished = len(plan.tasks) - len(waiting)
    if finished:
        print(f"{count(finished, 'run')} already finished, not printed", file=sys.stderr)


def _open_and_queue(plan: Plan, folder: Path, storage: str | None, grace: float, console: Console) -> SweepStudy:
    """Open the study and queue all unfinished tasks. Failed tasks are queued only if no other process is working."""
    sweep_folder = folder / plan.name
    with FolderLock(sweep_folder, patience=PATIENCE):
        is_new = storage is None and not any((sweep_folder / name).exists() for name in (STUDY_FILE, JOURNAL))
        study = SweepStudy.open(plan, sweep_folder, storage, grace=grace)
        assert study is not None
        study.give_back_abandoned()
        records = study.records()
        finished = {run.id for run in plan.runs if is_finished(run, folder_of_run(plan, run, folder))}
        adopted = [task for task in plan.tasks if task.key in finished and records[task.key].status == "missing"]
        for task in adopted:
            assert task.point is not None
            study.adopt(task, metrics_of_run(folder_of_run(plan, task.point.run, folder)) or {})
        if adopted and is_new:
            console.print(
                f"{sweep_folder} was written by a version of attree without studies: "
                f"{count(len(adopted), 'finished run')} will not be repeated.",
                soft_wrap=True,
            )
        alone = not any(record.status == "running" for record in records.values())
        again = {key for key, record in records.items() if record.status == "failed"} if alone else set()
        if storage is None:  # with a database, the folders may be on other machines
            again |= {run.id for run in plan.runs if records[run.id].status == "done"} - finished
        study.enqueue(again)
    return study


def _show_progress(workers: Workers, console: Console) -> list[Outcome]:
    """Show the progress of the workers, and return the outcomes. Stop if the first runs all fail for one reason."""
    outcomes: list[Outcome] = []
    study = workers.study
    before = _number_done(study)
    with item_bar(console, elapsed_when_finished=False) as progress:
        bar = progress.add_task("runs", total=len(study.plan.tasks), completed=before)
        for event in workers.events():
            progress.update(bar, completed=_number_done(study))
            for key in event.given_back:
                console.print(f"waiting {key}: its worker died", soft_wrap=True)
            outcome = event.outcome
            if outcome is None or outcome.status == "skipped":
                continue
            outcomes.append(outcome)
            word = "pruned" if outcome.status == "stopped" else outcome.status
            line = f"{word:8}{outcome.run.id}  {outcome.seconds:.0f} s  {outcome.reason}".rstrip()
            console.print(line, soft_wrap=True)
            failed = [outcome.kind_of_failure for outcome in outcomes if outcome.status == "failed"]
            if len(failed) == len(outcomes) == MAX_EQUAL_FAILURES and len(set(failed)) == 1:
                why = f": the first {MAX_EQUAL_FAILURES} runs failed for the same reason, so the others were not done. "
                why += "Fix it, then run the same command again to continue."
                console.print(Text.assemble(("Stopped", "red"), why), soft_wrap=True)
                break
        progress.update(bar, completed=_number_done(study))
    if before and workers.key is None:
        console.print(f"{count(before, 'run')} already finished, not repeated")
    return outcomes


def _number_done(study: SweepStudy) -> int:
    return sum(record.status == "done" for record in study.records().values())


def _show_failures(outcomes: Sequence[Outcome], console: Console) -> int:
    """Print the failed runs, and return the exit status."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        where = "" if outcome.log is None else f" (full output: {outcome.log})"
        text = f": {outcome.run.id}: {outcome.reason}{where}"
        console.print(Text.assemble(("failed", "red"), text), soft_wrap=True)
    return 1 if failed else 0
