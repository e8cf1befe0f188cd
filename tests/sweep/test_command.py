"""The command as users type it: what is run, what is done already, and what is summed up."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import optuna
import pandas as pd
import pytest
import yaml

from attree.callbacks.tensorboard import RUNS_BESIDE
from attree.io.files import FolderLock
from attree.sweep import Processes, load_plan, summary, threads_per_worker
from attree.sweep.study import SweepStudy
from helpers.cli import command
from helpers.sweeps import ALL, GRID, FakeFit
from helpers.time_limit import SECONDS

DRAW = summary.draw_figures

SUMMARY = (
    "study.db",
    "page.html",
    "frontier.csv",
    "results.csv",
    "means.csv",
    "results.png",
    "results.svg",
    "pareto.png",
    "pareto.svg",
    "results",
)


def test_sweep_runs_everything_and_sums_it_up(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "draw_figures", DRAW)
    fit = FakeFit()
    assert command("sweep", str(file), "--jobs", "3", launch=fit) == 0
    assert fit.versions() == sorted(ALL)
    assert {given["trainer.logger.init_args.save_dir"] for given in fit.seen} == {"logs/sweeps"}
    assert {given["trainer.logger.init_args.name"] for given in fit.seen} == {"study"}

    folder = Path("logs/sweeps/study")
    results = pd.read_csv(folder / "results.csv")
    assert results["run"].tolist() == ALL
    assert results["sweep"].tolist() == ["decay"] * 4 + ["dropout"] * 2
    assert results["val/acc"].tolist() == pytest.approx([0.5, 0.7, 0.49, 0.69, 0.5, 0.7])
    assert results["decay"].tolist()[:4] == [0, 0, 0.01, 0.01]
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "\nPage:     logs/sweeps/study/page.html\n" in shown
    assert "0.600±0.141" in shown  # mean and standard deviation of 0.5 and 0.7
    assert "0.590±0.141" in shown
    assert "0.250 (1 of 2)" in shown  # undefined for the other seed
    means = pd.read_csv(folder / "means.csv")
    assert means["n"].tolist() == means["val/acc n"].tolist() == [2, 2, 2]
    assert means["explain/gatt/weight/faithfulness n"].tolist() == [1, 1, 1]
    assert means["val/acc mean"].tolist() == pytest.approx([0.6, 0.59, 0.6])
    assert means["explain/gatt/weight/faithfulness mean"].tolist() == pytest.approx([0.25] * 3)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*ALL, *SUMMARY])


def test_swept_keys_named_like_the_results_own_columns_have_columns_of_their_own(file: Path) -> None:
    grid = {"data.seed": [7, 8], "x.run": ["r"], "y.sweep": ["s"], "z.setting": ["t"]}
    file.write_text(yaml.safe_dump({**GRID, "runs": [{"grid": grid, "name": "splits"}]}))
    assert command("sweep", str(file), launch=FakeFit()) == 0
    results = pd.read_csv("logs/sweeps/study/results.csv")
    assert results["data.seed"].tolist() == [7, 7, 8, 8]
    assert results["seed"].tolist() == [0, 1, 0, 1]
    assert results["run"].tolist() == [
        f"splits-data.seed={split}-x.run=r-y.sweep=s-z.setting=t-seed={seed}" for split in (7, 8) for seed in (0, 1)
    ]
    assert set(results["sweep"]) == {"splits"}
    for column, value in (("x.run", "r"), ("y.sweep", "s"), ("z.setting", "t")):
        assert set(results[column]) == {value}


def test_finished_runs_are_not_done_again_changed_ones_are(file: Path) -> None:
    command("sweep", str(file), launch=FakeFit())
    again = FakeFit()
    assert command("sweep", str(file), launch=again) == 0
    assert again.seen == []

    stale = Path("logs/sweeps/study/decay=0-seed=0/events.old")
    stale.write_text("of the former config")
    file.write_text(yaml.safe_dump({**GRID, "runs": [{"grid": {"model.decay": [0]}, "set": {"epochs": 9}}]}))
    changed = FakeFit()
    assert command("sweep", str(file), launch=changed) == 0
    assert changed.versions() == ["decay=0-seed=0", "decay=0-seed=1"]
    assert not stale.exists()

    (file.parent / "base.yaml").write_text("model: {lr: 1}\n")
    rebased = FakeFit()
    command("sweep", str(file), launch=rebased)
    assert rebased.versions() == ["decay=0-seed=0", "decay=0-seed=1"]


BEFORE_STUDIES = {
    "decay=0-seed=0": "3b5b597957c6f2ad3508b36bb7d8018099af892af2ab48d5de9d36186b664ad1",
    "decay=0-seed=1": "7d8a249e534a2f8f22f54075d7b4d0602b064b153c6610fbb8385e9aee05af14",
    "decay=0.01-seed=0": "8fda34a9f01a9df4f9bc382e7a2cd7d5de9e4cf081b9f4fef2185224d9502f8b",
    "decay=0.01-seed=1": "f8152e2c25a2edf0965471391ac92a315aafaee822c7f491e3adf8bea47b432b",
    "dropout=0.5-seed=0": "b6ea0e1c8d4bd35271e879189d00f8717e09d11eb30488820baaa3b1829538cc",
    "dropout=0.5-seed=1": "290c94b73e0b7be34265bf123fff8e3dccf80f3ae714a6f3ef7f10cee15f1597",
}
"""Runs and their marks, as version 0.1 wrote them for this very file."""


def write_old_folder(own: Path, unfinished: str) -> None:
    """What version 0.1 left, without a study: run folders, one of them unfinished, and tables."""
    for run, mark in BEFORE_STUDIES.items():
        (own / run).mkdir(parents=True)
        (own / run / "output.log").write_text("output\n")
        if run != unfinished:
            (own / run / "metrics.json").write_text('{"val/acc": 0.75}')
            (own / run / "fingerprint.txt").write_text(f"{mark}\n")
    (own / "results.csv").write_text("sweep,model.decay,seed,run,val/acc\n")


def test_a_folder_of_an_older_version_is_noticed_and_taken_over(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = Path("logs/sweeps/study")
    write_old_folder(own, unfinished="decay=0.01-seed=1")
    assert command("sweep", str(file), "--collect") == 0  # shows what there is, and begins nothing
    assert not (own / "study.db").exists()
    assert pd.read_csv(own / "results.csv")["val/acc"].tolist() == [0.75] * 5
    capsys.readouterr()
    fit = FakeFit()
    assert command("sweep", str(file), launch=fit) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "was written by a version of attree without studies: 5 finished runs will not be repeated" in said
    assert fit.versions() == ["decay=0.01-seed=1"]
    study = optuna.load_study(study_name="study", storage="sqlite:///logs/sweeps/study/study.db")
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.COMPLETE] * 6
    assert command("sweep", str(file), launch=fit) == 0
    assert "without studies" not in capsys.readouterr().out


def test_dry_run_prints_a_command_for_each_run_that_is_not_finished(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sweep", str(file), "--dry_run") == 0
    assert not Path("logs").exists()
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert len(lines) == len(ALL)
    jobs = [shlex.split(line) for line in lines]
    assert [job[:2] for job in jobs] == [["attree", "sweep"]] * len(ALL)
    first = FakeFit()
    for _ in range(2):  # schedulers repeat jobs
        assert command(*jobs[0][1:], launch=first) == 0
    assert first.versions() == [ALL[0]]
    capsys.readouterr()
    assert command("sweep", str(file), "--dry_run") == 0
    again = capsys.readouterr()
    assert again.out.splitlines() == lines[1:]
    assert again.err == "1 run already finished, not printed\n"
    fit = FakeFit()
    command("sweep", str(file), launch=fit)
    assert fit.versions() == sorted(ALL[1:])


def test_collect_starts_nothing(file: Path) -> None:
    command("sweep", str(file), launch=FakeFit())
    Path("logs/sweeps/study/results.csv").unlink()
    fit = FakeFit()
    assert command("sweep", str(file), "--collect", launch=fit) == 0
    assert fit.seen == []
    assert len(pd.read_csv("logs/sweeps/study/results.csv")) == len(ALL)


def test_threads_are_shared_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    fit = FakeFit()
    command("sweep", str(file), "--jobs", "4", launch=fit)
    assert {environment["OMP_NUM_THREADS"] for environment in fit.environments} == {"1"}
    # The runs, and the one with the summary's figures: so many are in TensorBoard's list.
    assert {environment[RUNS_BESIDE] for environment in fit.environments} == {str(len(ALL) + 1)}
    assert (threads_per_worker(1), threads_per_worker(2), threads_per_worker(3)) == (6, 3, 2)


def test_interrupt_says_how_to_go_on(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: Sequence[str], log: Path, environment: Mapping[str, str], *_: Any) -> int:
        raise KeyboardInterrupt

    assert command("sweep", str(file), launch=interrupted) == 130
    assert "Run the same command again to continue." in capsys.readouterr().out


def test_unusable_file_is_one_sentence_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sweep", str(tmp_path / "none.yaml")) == 2
    error = capsys.readouterr().err
    assert error.startswith("attree: error: ")
    assert error.count("\n") == 1


def test_metrics_that_no_run_logged_are_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(yaml.safe_dump({**GRID, "metrics": ["val/f1"]}))
    assert command("sweep", str(file), launch=FakeFit()) == 0
    assert "No run logged any of the metrics val/f1" in capsys.readouterr().out
    assert not Path("logs/sweeps/study/results.png").exists()


def test_stop_ends_a_running_process_at_once_and_starts_no_other(tmp_path: Path) -> None:
    processes = Processes()
    # `attree` itself, held up by a module that waits where it is imported first.
    (tmp_path / "lightning.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'started')!r}).touch()\ntime.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with ThreadPoolExecutor() as executor:
        status = executor.submit(processes.launch, ["fit", "--config", "infection"], tmp_path / "log", environment)
        while not (tmp_path / "started").exists() and not status.done():
            sleep(0.05)
        processes.stop()
        assert status.result(timeout=SECONDS) == -signal.SIGKILL
    assert processes.launch(["fit"], tmp_path / "second", environment) == 1
    assert (tmp_path / "second").read_bytes() == b""


@pytest.mark.parametrize("damage", ["", '{"val/acc": ', "[]", '{"val/acc": "high"}', "\udcff"])
def test_damaged_metrics_are_left_out_said_and_mended(
    file: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    command("sweep", str(file), launch=FakeFit())
    Path("logs/sweeps/study", ALL[2], "metrics.json").write_bytes(damage.encode(errors="surrogateescape"))
    assert command("sweep", str(file), "--collect") == 0
    assert f"left out: {ALL[2]}, as its metrics.json is damaged" in capsys.readouterr().out
    assert pd.read_csv("logs/sweeps/study/results.csv")["run"].tolist() == [*ALL[:2], *ALL[3:]]
    again = FakeFit()
    assert command("sweep", str(file), launch=again) == 0
    assert again.versions() == [ALL[2]]


def test_metrics_that_are_null_are_undefined(file: Path) -> None:
    command("sweep", str(file), launch=FakeFit())
    Path("logs/sweeps/study", ALL[0], "metrics.json").write_text('{"val/acc": null}')
    assert command("sweep", str(file), "--collect") == 0
    assert pd.read_csv("logs/sweeps/study/results.csv")["val/acc"].isna().tolist() == [True] + [False] * 5


def test_no_run_of_someone_else_is_removed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("logs/sweeps/study")
    (folder / ALL[0]).mkdir(parents=True)
    kept = folder / ALL[0] / "events"
    kept.touch()
    with pytest.MonkeyPatch.context() as patch, FolderLock(folder / ALL[0]):
        patch.setattr("attree.sweep.single_run.PATIENCE", 0.1)
        assert command("sweep", str(file), launch=FakeFit()) == 1
    assert f"failed: {ALL[0]}: {(folder / ALL[0]).absolute()} is in use by" in capsys.readouterr().out
    assert kept.exists()


def test_a_run_whose_worker_is_dead_is_taken_over_after_the_grace_period(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = SweepStudy.open(load_plan(file), Path("logs/sweeps/study"), None, grace=1.0)
    assert study is not None
    study.enqueue()
    assert study.claim(ALL[0]) is not None  # and never hears of it again
    fit = FakeFit()
    assert command("sweep", str(file), "--run", ALL[0], "--grace", "1", launch=fit) == 0
    assert fit.versions() == [ALL[0]]
    assert f"waiting {ALL[0]}: its worker died" in capsys.readouterr().out


def test_a_run_that_is_not_in_the_plan(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sweep", str(file), "--run", "decay=0-sed=0", launch=FakeFit()) == 2
    assert f"but got 'decay=0-sed=0'. Did you mean `{ALL[0]}`?" in capsys.readouterr().err
