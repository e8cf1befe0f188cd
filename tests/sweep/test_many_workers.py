"""Several processes work on one sweep, one of them is killed, and every trial is done exactly once."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState

from attree.sweep import Launch
from helpers.cli import command
from helpers.postgres import postgres_server
from helpers.processes import fork_server
from helpers.sweeps import given, only_numbers, write_sweep
from helpers.time_limit import SECONDS

GRID = {
    "name": "study",
    "config": "base.yaml",
    "seeds": [0, 1],
    "runs": [{"grid": {"model.decay": [0, 0.01, 0.02], "net": ["A", "B"]}}],
}
RUNS = 12


def pretend(name: str, seconds: float) -> Launch:
    """A fit that notes who began it, and takes some time."""

    def fit(arguments: Sequence[str], log: Path, environment: Mapping[str, str], is_over: Callable[[], bool]) -> int:
        options = given(arguments)
        with Path("begun.txt").open("a") as stream:
            stream.write(f"{name} {log.parent.name}\n")
        time.sleep(seconds)
        metrics = {"val/acc": 0.5 + 0.1 * int(options["seed_everything"]) - float(options["model.decay"])}
        (log.parent / "metrics.json").write_text(json.dumps(metrics))
        return 0

    return fit


def work(folder: Path, name: str, seconds: float, options: tuple[str, ...]) -> None:
    """One of several processes that share a study."""
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch, Path(f"{name}.txt").open("w") as output, redirect_stdout(output):
        only_numbers(patch)
        sys.exit(command("sweep", "sweep.yaml", *options, launch=pretend(name, seconds)))


def start(name: str, seconds: float, *options: str) -> ForkServerProcess:
    """Start a process, from a server that has the libraries."""
    process = fork_server().Process(target=work, args=(Path.cwd(), name, seconds, ("--grace", "2", *options)))
    process.start()
    return process


def begun() -> list[tuple[str, str]]:
    """Who began which run, in order."""
    file = Path("begun.txt")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], line.split()[1]) for line in lines]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield ["--storage", stack.enter_context(postgres_server())] if request.param == "postgresql" else []


def load(storage: list[str]) -> optuna.Study:
    """The study as any user of Optuna opens it."""
    if storage:
        return optuna.load_study(study_name="study", storage=storage[1].replace("postgresql:", "postgresql+psycopg:"))
    return optuna.load_study(study_name="study", storage="sqlite:///logs/sweeps/study/study.db")


def test_two_workers_one_killed(storage: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(Path(), GRID)
    killed, kept = start("killed", 600.0, *storage), start("kept", 0.05, *storage)
    try:
        end = time.monotonic() + SECONDS
        while "killed" not in dict(begun()) or len(begun()) < 4:
            assert time.monotonic() < end, "the workers do not begin"
            time.sleep(0.05)
        killed.kill()
        kept.join(SECONDS)
    finally:
        killed.kill()
        kept.kill()
    output = Path("kept.txt").read_text()
    assert kept.exitcode == 0, output
    (lost,) = [run for name, run in begun() if name == "killed"]
    assert "its worker died" in output
    times = Counter(run for name, run in begun() if name == "kept")
    assert len(times) == RUNS
    assert set(times.values()) == {1}

    trials = load(storage).trials
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert sorted(trial.user_attrs["attree:task"] for trial in complete) == sorted(times)
    (failed,) = [trial for trial in trials if trial.state != TrialState.COMPLETE]
    assert failed.user_attrs["attree:task"] == lost

    shared = pd.read_csv("logs/sweeps/study/results.csv")
    only_numbers(monkeypatch)
    assert command("sweep", "sweep.yaml", "--folder", "alone", launch=pretend("alone", 0.0)) == 0
    pd.testing.assert_frame_equal(shared, pd.read_csv("alone/study/results.csv"))


def test_a_study_opens_in_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="no optuna-dashboard")
    monkeypatch.chdir(tmp_path)
    write_sweep(Path(), {**GRID, "seeds": [0], "runs": [{"grid": {"model.decay": [0, 0.1]}}]})
    only_numbers(monkeypatch)
    assert command("sweep", "sweep.yaml", launch=pretend("only", 0.0)) == 0
    app = dashboard.wsgi("sqlite:///logs/sweeps/study/study.db")
    statuses: list[str] = []
    environment: dict[str, Any] = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(environment)
    body = b"".join(app(environment, lambda status, *_: statuses.append(status)))
    assert statuses == ["200 OK"]
    assert [study["study_name"] for study in json.loads(body)["study_summaries"]] == ["study"]
