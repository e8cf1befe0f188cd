"""Several processes work on one sweep, one of them is killed, and every trial is done exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState

from helpers.postgres import postgres_server
from helpers.sweeps import write_sweep

GRID = {
    "name": "study",
    "config": "base.yaml",
    "seeds": [0, 1],
    "runs": [{"grid": {"model.decay": [0, 0.01, 0.02], "net": ["A", "B"]}}],
}
RUNS = 12
WORKER = """
import json, sys, time
from pathlib import Path
from attree.cli.commands import COMMANDS
from attree.sweep import summary

summary.draw_figures = lambda *_: {}
summary.importances = lambda *_: {}
name, seconds = sys.argv[1], float(sys.argv[2])

def fit(arguments, log, environment, is_over):
    given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments[1:])
    with open("begun.txt", "a") as stream:
        stream.write(f"{name} {log.parent.name}\\n")
    time.sleep(seconds)
    metrics = {"val/acc": 0.5 + 0.1 * int(given["seed_everything"]) - float(given["model.decay"])}
    (log.parent / "metrics.json").write_text(json.dumps(metrics))
    return 0

sys.exit(COMMANDS["sweep"].run(["sweep", *sys.argv[3:]], launch=fit))
"""


def start(name: str, seconds: float, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, name, str(seconds), "sweep.yaml", "--grace", "2", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def begun() -> list[tuple[str, str]]:
    """Who began which run, in order."""
    file = Path("begun.txt")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], line.split()[1]) for line in lines]


@pytest.fixture(params=["journal", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield ["--storage", stack.enter_context(postgres_server())] if request.param == "postgresql" else []


def load(storage: list[str]) -> optuna.Study:
    """The study as any user of Optuna opens it."""
    if storage:
        return optuna.load_study(study_name="study", storage=storage[1].replace("postgresql:", "postgresql+psycopg:"))
    backend = optuna.storages.journal.JournalFileBackend("logs/sweeps/study/journal.log")
    return optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend))


def test_two_workers_one_killed(storage: list[str]) -> None:
    write_sweep(Path(), GRID)
    killed, kept = start("killed", 600.0, *storage), start("kept", 0.05, *storage)
    try:
        end = time.monotonic() + 240
        while "killed" not in dict(begun()) or len(begun()) < 4:
            assert time.monotonic() < end, "the workers do not begin"
            time.sleep(0.05)
        os.kill(killed.pid, signal.SIGKILL)
        output, _ = kept.communicate(timeout=240)
    finally:
        killed.kill()
        kept.kill()
        killed.communicate(timeout=30)
    assert kept.returncode == 0, output
    (lost,) = [run for name, run in begun() if name == "killed"]
    assert "its worker is gone" in output
    times = Counter(run for name, run in begun() if name == "kept")
    assert len(times) == RUNS
    assert set(times.values()) == {1}

    trials = load(storage).trials
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert sorted(trial.user_attrs["attree:task"] for trial in complete) == sorted(times)
    (failed,) = [trial for trial in trials if trial.state != TrialState.COMPLETE]
    assert failed.user_attrs["attree:task"] == lost

    shared = pd.read_csv("logs/sweeps/study/results.csv")
    Path("begun.txt").unlink()
    alone = start("alone", 0.0, "--folder", "alone")
    output, _ = alone.communicate(timeout=240)
    assert alone.returncode == 0, output
    pd.testing.assert_frame_equal(shared, pd.read_csv("alone/study/results.csv"))


def test_a_study_opens_in_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="no optuna-dashboard")
    monkeypatch.chdir(tmp_path)
    write_sweep(Path(), {**GRID, "seeds": [0], "runs": [{"grid": {"model.decay": [0, 0.1]}}]})
    worker = start("only", 0.0)
    output, _ = worker.communicate(timeout=240)
    assert worker.returncode == 0, output
    backend = optuna.storages.journal.JournalFileBackend("logs/sweeps/study/journal.log")
    app = dashboard.wsgi(optuna.storages.JournalStorage(backend))
    statuses: list[str] = []
    environment = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/api/studies",
        "SERVER_NAME": "test",
        "SERVER_PORT": "80",
        "wsgi.input": None,
        "wsgi.errors": sys.stderr,
        "wsgi.url_scheme": "http",
        "QUERY_STRING": "",
    }
    body = b"".join(app(environment, lambda status, headers: statuses.append(status)))
    assert statuses == ["200 OK"]
    assert [study["study_name"] for study in json.loads(body)["study_summaries"]] == ["study"]
