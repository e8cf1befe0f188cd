"""The command `attree sweep`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from attree.errors import ArgumentError, did_you_mean, expect
from attree.io.console import plain_console, print_whole
from attree.io.lock import FolderLock
from attree.io.processes import terminate_as_interrupt
from attree.report.style import count
from attree.sweep.plan import Plan, Run, load_plan
from attree.sweep.run import (
    METRICS_FILE,
    Launch,
    Outcome,
    Processes,
    damaged_runs,
    do_runs,
    is_finished,
    run_folder,
)
from attree.sweep.summary import MEANS, summarise, summary_tables

FAILURES_ALIKE = 3
"""After as many runs that all failed for the same reason, a sweep stops."""


def sweep(
    file: Path, jobs: int, folder: Path, dry_run: bool, run: str | None, collect: bool, launch: Launch | None = None
) -> int:
    """Do the runs of a sweep file, sum them up, and return the exit status.

    Args:
        file: The file, or the name of one that comes with attree.
        jobs: Runs at a time.
        folder: Where the sweep's folder is.
        dry_run: Print a shell command for each unfinished run instead.
        run: Id of the only run to do; None does all.
        collect: Do no run, only sum up.
        launch: How to do one run; as a process of its own if None.
    """
    asked = [f"--{name}" for name, given in (("dry_run", dry_run), ("run", run), ("collect", collect)) if given]
    expect(len(asked) <= 1, "run", "given without --dry_run and --collect", " ".join(asked))
    plan = load_plan(file)
    if dry_run:
        _show_commands(plan, file, folder)
        return 0
    console = plain_console()
    outcomes: list[Outcome] = []
    if not collect:
        runs = plan.runs if run is None else [_chosen_run(plan, run)]
        # Jobs of a scheduler do their runs side by side; a whole sweep is alone.
        alone = FolderLock(folder / plan.name) if run is None else nullcontext()
        processes = Processes()
        try:
            with alone, terminate_as_interrupt():
                outcomes = _do_runs(plan, runs, folder, jobs, launch or processes.launch, console)
        except KeyboardInterrupt:
            console.print("Stopped. The same command goes on with the runs that are not finished.")
            return 130
        finally:
            processes.stop()
    if run is None:
        _show_summary(plan, folder, console)
    return _show_failures(outcomes, console)


def _chosen_run(plan: Plan, run_id: str) -> Run:
    by_id = {run.id: run for run in plan.runs}
    if run_id not in by_id:
        raise ArgumentError(
            f"Expected argument `run` to be a run of {plan.name}, but got {run_id!r}.{did_you_mean(run_id, by_id)}"
        )
    return by_id[run_id]


def _show_commands(plan: Plan, file: Path, folder: Path) -> None:
    """Print what is still to run, for a shell or a scheduler to read; what is finished is counted on standard error."""
    waiting = [run for run in plan.runs if not is_finished(run, run_folder(plan, run, folder))]
    for run in waiting:
        print(shlex.join(["attree", "sweep", str(file), "--folder", str(folder), "--run", run.id]))
    finished = len(plan.runs) - len(waiting)
    if finished:
        print(f"{count(finished, 'run')} finished before, not printed", file=sys.stderr)


def _do_runs(plan: Plan, runs: list[Run], folder: Path, jobs: int, launch: Launch, console: Console) -> list[Outcome]:
    """Do what is not finished. If the first runs all fail alike, stop there: the others would too."""
    outcomes: list[Outcome] = []
    progress = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with progress:
        task = progress.add_task("runs", total=len(runs))
        for outcome in do_runs(plan, runs, folder, jobs, launch):
            outcomes.append(outcome)
            progress.advance(task)
            if outcome.status != "skipped":
                line = f"{outcome.status:8}{outcome.run.id}  {outcome.seconds:.0f} s  {outcome.reason}".rstrip()
                console.print(line, soft_wrap=True)
            if _all_fail_alike(outcomes):
                why = f": the first {FAILURES_ALIKE} runs failed for the same reason, so the others were not done. "
                why += "The same command goes on when it is mended."
                console.print(Text.assemble(("Stopped", "red"), why), soft_wrap=True)
                break
    skipped = sum(outcome.status == "skipped" for outcome in outcomes)
    if skipped:
        console.print(f"{count(skipped, 'run')} finished before, not done again")
    return outcomes


def _all_fail_alike(outcomes: Sequence[Outcome]) -> bool:
    """Whether no run of this call has succeeded, and the first few failed for the same reason."""
    tried = [outcome for outcome in outcomes if outcome.status != "skipped"]
    failed = [outcome for outcome in tried if outcome.status == "failed"]
    alike = len({outcome.kind_of_failure for outcome in failed}) == 1
    return len(failed) == len(tried) == FAILURES_ALIKE and alike


def _show_summary(plan: Plan, folder: Path, console: Console) -> None:
    for run in damaged_runs(plan, folder):
        console.print(
            f"left out: {run.id}, as its {METRICS_FILE} is damaged; a sweep without --collect does it again",
            soft_wrap=True,
        )
    summary = summarise(plan, folder)
    if summary is None:
        console.print("No run has finished: there is nothing to sum up.")
        return
    for table in summary_tables(summary, title=plan.name):
        print_whole(console, table)
    if not summary.metrics:
        console.print(f"No run logged any of the metrics {', '.join(plan.metrics)}.")
    console.print(f"All runs: {summary.csv}", soft_wrap=True)
    console.print(f"Means:    {summary.csv.with_name(MEANS)}", soft_wrap=True)
    for figure in summary.figures:
        console.print(f"Figure:   {figure} (and .svg)", soft_wrap=True)
    for sentence in summary.shortcomings():
        console.print(sentence, soft_wrap=True)
    console.print(f"Curves:   tensorboard --logdir {folder / plan.name}", soft_wrap=True)


def _show_failures(outcomes: Sequence[Outcome], console: Console) -> int:
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        where = "" if outcome.log is None else f" (all it printed: {outcome.log})"
        text = f": {outcome.run.id}: {outcome.reason}{where}"
        console.print(Text.assemble(("failed", "red"), text), soft_wrap=True)
    return 1 if failed else 0
