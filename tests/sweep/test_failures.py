"""Runs of a sweep that fail: said in a sentence, tried again, and in the way of no other."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers.cli import command
from helpers.sweeps import ALL, FakeFit


@pytest.mark.parametrize("crash_after_metrics", [False, True])
def test_failed_run_stops_no_other_and_is_tried_again(
    file: Path, capsys: pytest.CaptureFixture[str], crash_after_metrics: bool
) -> None:
    fit = FakeFit(fail="decay=0.01-seed=1", crash_after_metrics=crash_after_metrics)
    assert command("sweep", str(file), "--jobs", "2", launch=fit) == 1
    assert fit.versions() == sorted(ALL)
    shown = capsys.readouterr().out
    log = "logs/sweeps/study/decay=0.01-seed=1/output.log"
    assert f"failed: decay=0.01-seed=1: output (full output: {log})" in shown
    assert "failed  decay=0.01-seed=1  0 s  output" in shown
    assert pd.read_csv("logs/sweeps/study/results.csv")["run"].tolist() == [one for one in ALL if one != ALL[3]]

    repaired = FakeFit()
    assert command("sweep", str(file), launch=repaired) == 0
    assert repaired.versions() == ["decay=0.01-seed=1"]


class FailingFit(FakeFit):
    """Fails as `attree fit` does: in a sentence, behind what it printed before."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__()
        self.sentences = sentences

    def __call__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], *_: Any) -> int:
        super().__call__(arguments, log, environment)
        (log.parent / "metrics.json").unlink()
        sentence = self.sentences[(len(self.seen) - 1) % len(self.sentences)]
        log.write_text(f"Seed set to 0\nattree: error: {sentence.format(run=log.parent.name)}\n")
        return 2


@pytest.mark.parametrize(
    ("sentences", "runs"),
    [
        (["{run} has no data."], 3),
        (["lr is -1.", "lr is -0.5e-3."], 3),
        (["The disk is full.", "The data are damaged."], 6),
    ],
    ids=["one reason", "one reason, other numbers", "two reasons"],
)
def test_a_sweep_whose_runs_all_fail_alike_stops_and_says_why(
    sentences: list[str], runs: int, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = FailingFit(sentences)
    assert command("sweep", str(file), launch=fit) == 1
    shown = capsys.readouterr().out
    assert ("Stopped: the first 3 runs failed for the same reason" in shown) == (runs == 3)
    assert shown.count("failed: ") == runs
    for run, sentence in zip(ALL, sentences, strict=False):
        assert f"{run}: {sentence.format(run=run)} (full output: logs/sweeps/study/{run}/output.log)" in shown
    assert command("sweep", str(file), launch=FakeFit()) == 0  # the same command goes on


def test_runs_that_fail_after_one_went_well_stop_nothing(file: Path) -> None:
    """The first runs of the file go well, all others fail."""
    fit = FakeFit(fail="=0.")
    assert command("sweep", str(file), launch=fit) == 1
    assert fit.versions() == sorted(ALL)


def test_a_run_that_was_killed_is_said_to_be(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def killed(arguments: Sequence[str], log: Path, environment: Mapping[str, str], *_: Any) -> int:
        log.write_text("epoch 3\n")
        return -signal.SIGKILL

    assert command("sweep", str(file), "--run", ALL[0], launch=killed) == 1
    assert f"failed: {ALL[0]}: ended by signal 9 (full output: " in capsys.readouterr().out


def test_run_that_leaves_no_metrics_has_failed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def silent(arguments: Sequence[str], log: Path, environment: Mapping[str, str], *_: Any) -> int:
        return 0

    assert command("sweep", str(file), launch=silent) == 1
    assert "nothing to summarise" in capsys.readouterr().out
