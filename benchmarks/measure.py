"""Measure what README and docs print: run what is missing or old, store the results, and write them into the pages.

    make numbers                                    all that is missing or old, in hours; after a stop, it goes on
    make numbers QUICK=1                            in minutes: exact results once more, short forms of some others
    python benchmarks/measure.py --list             what there is to do, and how long it takes
    python benchmarks/measure.py --only verdicts    one measurement or block, even if it is not old
    python benchmarks/measure.py --check            name pages that differ from their results; --release: old ones too
    python benchmarks/measure.py --write            write the pages from the results, and nothing else
    python benchmarks/measure.py --take NAME        store a block or a file as it stands, written or drawn by hand

benchmarks/measurements.py is the list, benchmarks/results.py says what a result is and when it is old. Each measurement
runs in a folder of its own, logs/numbers/NAME, and has its output there. If it was stopped, by Ctrl-C or a kill, it
goes on with the command that was stopped; sweeps, `attree paper` and the long benchmarks then go on where they were.

Measurements of time wait for a quiet machine: they are left out while the load is above half of the cores (`--busy`
measures them all the same). Blocks that are written by hand keep their old result until `--take`. The quick run stores
nothing; it fails if an exact result is another one now, or if a command fails or prints tables of another form.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import attree
from attree.errors import ArgumentError, AttreeError
from attree.io.files import FolderLock, write_text
from attree.io.processes import start_child, stop_status, terminate_as_interrupt
from attree.io.terminal import plain_console, print_whole
from measurements import TABLE, Measurement, Output
from results import (
    Repository,
    Result,
    age,
    differences,
    file_hash,
    inputs_hash,
    names_of,
    page_texts,
    reader,
    result_of,
    write_pages,
)

LINKS = ("benchmarks", "configs", "docs", "examples")
"""Folders of the repository that commands find in their working directory, beside `data`."""
STEPS = "steps.json"
QUIET = 0.5
"""Load per core above which measurements of time wait."""
GRACE = 20.0
"""Seconds that a command has to end after Ctrl-C."""
WRAPPER = """
import subprocess, sys
from attree.io.processes import end_with_parent
end_with_parent()
sys.exit(subprocess.call(sys.argv[1:]))
"""
"""Runs a command that is killed when this process is."""


class FailedCommandError(AttreeError):
    """A command of a measurement ended with an error."""


FAILURES = (FailedCommandError, LookupError, OSError, ValueError)
"""Commands that fail, or whose output has not what the list cuts out of it: the next measurement goes on."""


# Which measurements.


def to_measure(repository: Repository, only: Sequence[str] = (), busy: bool = True) -> list[Measurement]:
    """Return the measurements that are named, or those with a missing or old result; shorter ones first.

    Args:
        repository: The repository.
        only: Names of measurements, blocks or files.
        busy: Also those of time, while other work runs.
    """
    if only:
        return list({one.name: one for one in map(repository.measurement_of, only)}.values())
    wanted = [
        measurement
        for measurement in repository.measurements
        if any(age(repository, measurement, name) for name in names_of(measurement))
        and (busy or not measurement.timed)
        and not _waits_for_a_person(repository, measurement)
    ]
    return sorted(wanted, key=lambda measurement: measurement.minutes)


def _waits_for_a_person(repository: Repository, measurement: Measurement) -> bool:
    """Whether its commands have run for this version, and only blocks that are written by hand are old."""
    old = [name for name in names_of(measurement) if age(repository, measurement, name)]
    by_hand = all(name in measurement.blocks and measurement.blocks[name].text is None for name in old)
    return by_hand and len(_steps(repository, measurement)) == len(measurement.commands)


def is_quiet() -> bool:
    """Whether the machine has little other work."""
    return os.getloadavg()[0] <= QUIET * (os.cpu_count() or 1)


def list_measurements(repository: Repository, console: Console) -> None:
    """Print all measurements: what is old, how long they take, and what the quick run does."""
    table = Table("measurement", "results", "minutes", "needs", "quick run", "old or missing")
    for measurement in repository.measurements:
        ages = {name: age(repository, measurement, name) for name in names_of(measurement)}
        reasons = dict.fromkeys(reason for reason in ages.values() if reason)
        quick = "exact" if measurement.is_exact else "short form" if measurement.quick else ""
        old = "; ".join(f"{sum(one == reason for one in ages.values())} {reason}" for reason in reasons)
        needs = "a quiet machine" if measurement.timed else ""
        table.add_row(measurement.name, str(len(ages)), f"{measurement.minutes:g}", needs, quick, old)
    print_whole(console, table)
    wanted = to_measure(repository)
    minutes = sum(measurement.minutes for measurement in wanted)
    console.print(f"{len(wanted)} of {len(repository.measurements)} to measure: about {minutes / 60:.1f} hours.")


# Running them.


def state(repository: Repository, measurement: Measurement) -> str:
    """What the outputs of a started measurement belong to: with another state, it starts from the beginning."""
    return f"{attree.__version__} {inputs_hash(measurement, reader(repository.root))}"


def _steps(repository: Repository, measurement: Measurement) -> list[dict[str, Any]]:
    """The commands of a measurement that have run in this state."""
    path = repository.work / measurement.name / STEPS
    content = json.loads(path.read_text()) if path.is_file() else {}
    return list(content["steps"]) if content.get("state") == state(repository, measurement) else []


def run(repository: Repository, measurement: Measurement, tick: Callable[[], None] = lambda: None) -> Output:
    """Run the commands of a measurement that have not run yet, and return what all of them printed."""
    folder = repository.work / measurement.name
    with FolderLock(folder):
        steps = _steps(repository, measurement)
        path = folder / STEPS
        if not (path.is_file() and json.loads(path.read_text())["state"] == state(repository, measurement)):
            shutil.rmtree(folder, ignore_errors=True)
        prepare(repository, folder)
        write_steps = {"state": state(repository, measurement), "steps": steps}
        write_text(path, json.dumps(write_steps, indent=1) + "\n")
        for number in range(len(steps), len(measurement.commands)):
            about = provenance(repository)
            seconds = run_command(measurement.commands[number], folder, number, tick)
            steps.append({**about, "seconds": seconds})
            write_text(path, json.dumps({**write_steps, "steps": steps}, indent=1) + "\n")
        return Output(
            tuple((folder / f"{number}.out").read_text() for number in range(len(measurement.commands))), folder
        )


def prepare(repository: Repository, folder: Path) -> None:
    """Make the folder of a measurement, with links to what its commands read."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {name: repository.root / name for name in LINKS}
    sources["data"] = Path(os.environ.get("ATTREE_DATA", repository.root / "data"))
    for name, source in sources.items():
        if source.is_dir() and not (folder / name).is_symlink():
            (folder / name).symlink_to(source.resolve())


def run_command(command: str, folder: Path, number: int, tick: Callable[[], None]) -> float:
    """Run a command in a folder; what it prints goes to files there. Returns its seconds."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    if words[0] == "attree":
        words = [sys.executable, "-m", "attree.cli", *words[1:]]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": "80"}
    start = time.monotonic()
    with (folder / f"{number}.out").open("wb") as out, (folder / f"{number}.err").open("wb") as errors:
        child = start_child([sys.executable, "-c", WRAPPER, *words], environment, cwd=folder, stdout=out, stderr=errors)
        try:
            while child.poll() is None:
                time.sleep(0.1)
                tick()
        finally:
            end(child)
    if child.returncode:
        lines = (folder / f"{number}.err").read_text(errors="replace").splitlines()[-8:]
        raise FailedCommandError("\n".join([f"`{command}` ended with status {child.returncode}:", *lines]))
    return time.monotonic() - start


def end(child: subprocess.Popen[bytes]) -> None:
    """End a command and what it started, if it still runs."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def provenance(repository: Repository) -> dict[str, Any]:
    """Commit, date, versions and machine of a measurement that starts now."""
    packages = {"torch": "torch", "torch_geometric": "torch-geometric"}
    versions = {name: installed_version(package) for name, package in packages.items()}
    machine = {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),
        "load": round(os.getloadavg()[0], 1),
    }
    return {
        "commit": _commit(repository.root),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"attree": attree.__version__, "python": platform.python_version(), **versions},
        "machine": machine,
    }


def _commit(root: Path) -> str:
    """The commit that is measured, marked if the code was changed since; empty outside a repository."""
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(
        [*git, "diff", "--quiet", "HEAD", "--", "src", "benchmarks", "configs"], capture_output=True
    )
    return f"{commit}-changed" if commit and changed.returncode else commit


def _cpu() -> str:
    """The processor's name."""
    path = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", path.read_text(), flags=re.MULTILINE) if path.is_file() else []
    return names[0] if names else platform.processor()


# Storing results.


def store(repository: Repository, measurement: Measurement, output: Output) -> list[str]:
    """Store the results of a finished measurement; returns the names of blocks that are to be written by hand."""
    base = _result(repository, measurement)
    by_hand = []
    for name, block in measurement.blocks.items():
        if block.text is None:
            by_hand.append(name)
        else:
            keep(repository, replace(base, name=name, texts=tuple(block.text(output))))
    for file, made in measurement.files.items():
        target = repository.root / file
        if (output.folder / made).resolve() != target.resolve():
            shutil.copy(output.folder / made, target)
        keep(repository, replace(base, name=target.name, file=file_hash(target)))
    return by_hand


def _result(repository: Repository, measurement: Measurement) -> Result:
    """A result without name and content, from the commands that have run."""
    steps = _steps(repository, measurement)
    first = steps[0]
    return Result(
        name="",
        commands=measurement.commands,
        date=first["date"],
        commit=first["commit"],
        inputs=inputs_hash(measurement, reader(repository.root)),
        versions=first["versions"],
        machine=first["machine"],
        seconds=round(sum(step["seconds"] for step in steps), 1),
    )


def keep(repository: Repository, result: Result) -> None:
    """Write the file of a result."""
    repository.results.mkdir(parents=True, exist_ok=True)
    write_text(repository.results / f"{result.name}.json", result.as_json())


def take(repository: Repository, name: str) -> None:
    """Store a block or a file as it stands in the repository.

    A block whose numbers are those of its result keeps its date: only words were changed. Other numbers need a finished
    run of the commands in this version. A file may have been made by the same commands elsewhere: it gets this date.
    """
    measurement = repository.measurement_of(name)
    if name not in names_of(measurement):
        raise ArgumentError(
            f"Expected a block or a file, got the measurement {name!r}: it has {names_of(measurement)}."
        )
    stored = result_of(repository, name)
    finished = len(_steps(repository, measurement)) == len(measurement.commands)
    if name in measurement.blocks:
        texts = page_texts(repository, name, measurement.blocks[name])
        if stored is not None and _numbers(texts) == _numbers(stored.texts) and not finished:
            keep(repository, replace(stored, texts=texts))
            return
        if not finished:
            raise ArgumentError(
                f"The numbers of {name} are not those of its result. Measure them first: "
                f"python benchmarks/measure.py --only {measurement.name}"
            )
        keep(repository, replace(_result(repository, measurement), name=name, texts=texts))
        return
    (path,) = (repository.root / file for file in measurement.files if Path(file).name == name)
    if finished:
        result = _result(repository, measurement)
    else:
        inputs = inputs_hash(measurement, reader(repository.root))
        result = Result(name=name, commands=measurement.commands, inputs=inputs, **provenance(repository))
    keep(repository, replace(result, name=name, file=file_hash(path)))


def _numbers(texts: Sequence[str]) -> list[str]:
    return re.findall(r"\d[\d.,]*", " ".join(texts))


# The two kinds of run.


def measure(repository: Repository, wanted: Sequence[Measurement], console: Console) -> int:
    """Run measurements, store their results and write the pages; returns how many failed."""
    failed = 0
    with _progress(console, wanted) as begin:
        for measurement in wanted:
            tick = begin(measurement)
            try:
                by_hand = store(repository, measurement, run(repository, measurement, tick))
            except FAILURES as error:
                failed += 1
                console.print(f"{measurement.name} failed: {error}")
                continue
            pages = [repository.page_name(path) for path in write_pages(repository)]
            console.print(f"{measurement.name}: done{'; changed ' + ', '.join(pages) if pages else ''}")
            for name in by_hand:
                console.print(
                    f"  {name} is written by hand: compare {', '.join(measurement.blocks[name].pages)} with "
                    f"{repository.work / measurement.name}, then measure.py --take {name}"
                )
    return failed


def measure_quickly(repository: Repository, only: Sequence[str], console: Console) -> int:
    """Run the quick form of all measurements, or of those that are named, and compare; returns how many differ."""
    quick_repository = repository._replace(work=repository.work / "quick")
    shutil.rmtree(quick_repository.work, ignore_errors=True)
    measurements = to_measure(repository, only) if only else repository.measurements
    wanted = [measurement for measurement in measurements if measurement.quick]
    failed = 0
    with _progress(console, wanted) as begin:
        for measurement in wanted:
            tick = begin(measurement)
            short = replace(measurement, commands=measurement.quick or ())
            try:
                difference = compare(repository, measurement, run(quick_repository, short, tick))
            except FAILURES as error:
                difference = str(error)
            failed += bool(difference)
            words = "the stored result" if measurement.is_exact else "a short form runs"
            console.print(f"{measurement.name}: {difference or words}")
    return failed


def compare(repository: Repository, measurement: Measurement, output: Output) -> str:
    """Say where the output of the quick run differs from the stored texts; empty if it does not."""
    differing = []
    for name, block in measurement.blocks.items():
        stored = result_of(repository, name)
        if stored is None or block.text is None or len(output.printed) != len(measurement.commands):
            continue
        texts = block.text(output)
        if not measurement.is_exact:
            if list(map(_columns, texts)) != list(map(_columns, stored.texts)):
                differing.append(f"{name} has other columns")
        elif tuple(texts) != stored.texts:
            before, now = ("".join(one).splitlines() for one in (stored.texts, texts))
            lines = difflib.unified_diff(before, now, "stored", "now", lineterm="", n=0)
            differing.append("\n".join([f"{name} differs:", *lines]))
    return "\n".join(differing)


def _columns(text: str) -> list[int]:
    return [found.splitlines()[0].count("|") for found in TABLE.findall(text)]


class _progress:
    """A bar over measurements: each counts as many minutes as the list says. Without a terminal, there is none."""

    def __init__(self, console: Console, wanted: Sequence[Measurement]) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=sum(measurement.minutes for measurement in wanted))
        self._done = 0.0

    def __enter__(self) -> Callable[[Measurement], Callable[[], None]]:
        self._bar.start()
        return self._begin

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def _begin(self, measurement: Measurement) -> Callable[[], None]:
        before, start = self._done, time.monotonic()
        self._done += measurement.minutes
        self._bar.update(self._task, completed=before, description=measurement.name)

        def tick() -> None:
            minutes = min((time.monotonic() - start) / 60, measurement.minutes)
            self._bar.update(self._task, completed=before + minutes)

        return tick


def check(repository: Repository, console: Console, release: bool) -> int:
    """Print where pages and results differ, and for a release also which results are old; returns how many."""
    sentences = list(differences(repository))
    if release:
        ages = [(name, age(repository, one, name)) for one in repository.measurements for name in names_of(one)]
        sentences += [f"{name} is old: {reason}." for name, reason in ages if reason]
    for sentence in sentences:
        console.print(sentence)
    return len(sentences)


def main(arguments: Sequence[str] | None = None, repository: Repository | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the measurements, and do nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these measurements, blocks or files")
    parser.add_argument("--quick", action="store_true", help="the quick run: compare, and store nothing")
    parser.add_argument("--busy", action="store_true", help="measure time even while other work runs")
    parser.add_argument("--check", action="store_true", help="compare pages and results, and run nothing")
    parser.add_argument("--release", action="store_true", help="with --check: fail if a result is old")
    parser.add_argument("--write", action="store_true", help="write the pages from the results, and run nothing")
    parser.add_argument("--take", nargs="+", default=[], metavar="NAME", help="store blocks or files as they stand")
    options = parser.parse_args(arguments)
    repository = repository or Repository()
    console = plain_console(soft_wrap=True)
    try:
        for name in options.take:
            take(repository, name)
        if options.take or options.write:
            for path in write_pages(repository):
                console.print(f"Wrote {repository.page_name(path)}")
            return 0
        if options.list:
            list_measurements(repository, console)
            return 0
        if options.check:
            return min(check(repository, console, options.release), 1)
        with terminate_as_interrupt(), FolderLock(repository.work):
            if options.quick:
                return min(measure_quickly(repository, options.only, console), 1)
            busy = options.busy or is_quiet()
            wanted = to_measure(repository, options.only, busy)
            if not busy and not options.only:
                console.print(
                    f"The load is {os.getloadavg()[0]:.1f}: measurements of time wait (--busy measures them)."
                )
            minutes = sum(measurement.minutes for measurement in wanted)
            console.print(f"{len(wanted)} measurements, about {minutes / 60:.1f} hours. Ctrl-C stops; repeat to go on.")
            return min(measure(repository, wanted, console), 1)
    except ArgumentError as error:
        console.print(str(error))
        return 2
    except KeyboardInterrupt as stop:
        console.print("Stopped. The same command goes on.")
        return stop_status(stop)


if __name__ == "__main__":
    sys.exit(main())
