"""The command as users type it: names, refusals, what is left out, and going on after being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from attree.paper.command import main
from attree.paper.tables import ITEMS

TINY = ["--datasets", "cornell,texas", "--models", "gat", "--seeds", "2", "--epochs", "3", "--targets", "10"]


def test_list_names_every_item_with_its_place_data_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for item in ITEMS.values():
        assert item.name in printed
        assert item.place in printed
        assert item.data in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "Expected argument `NAME` to be list, all or one of faithfulness,"),
        (["faithfulness", "--datasets", "reddit"], "Expected argument `datasets` to be names among Cora,"),
        (["faithfulness", "--models", "GCN"], "Expected argument `models` to be names among GAT,"),
        (["faithfulness", "--protocols", "none"], "Expected argument `protocols` to be names among coefficient,"),
        (["faithfulness", "--seeds", "0"], "Expected argument `seeds` to be an integer >= 1, but got 0."),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_absent_data_is_said_and_nothing_else_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["graph_level", "--datasets", "hin", "--root", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "HIN is left out: " in " ".join(capsys.readouterr().out.split())
    assert "HIN is left out: " in (tmp_path / "out" / "graph_level" / "report.md").read_text()


@pytest.mark.needs("webkb/cornell", "webkb/texas")
def test_killed_and_started_again_gives_the_same_tables(data_root: str, tmp_path: Path) -> None:
    def command(out: str, *more: str) -> list[str]:
        own = [sys.executable, "-m", "attree.cli", "paper", "faithfulness", *TINY]
        return [*own, "--root", data_root, "--out", str(tmp_path / out), *more]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    broken = subprocess.Popen(command("broken"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    cells = tmp_path / "broken" / "cells"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(list(cells.glob("faithfulness-*.json"))) < 2:
        time.sleep(0.02)
    broken.kill()
    broken.communicate(timeout=30)
    finished = len(list(cells.glob("faithfulness-*.json")))
    assert 2 <= finished < 8
    assert not (tmp_path / "broken" / "faithfulness").exists()

    again = subprocess.run(command("broken"), env=environment, capture_output=True, text=True, timeout=240, check=True)
    assert f"{finished} of 8 cells finished before, not done again" in again.stdout
    subprocess.run(command("whole", "--jobs", "2"), env=environment, capture_output=True, timeout=240, check=True)
    folders = (tmp_path / "broken" / "faithfulness", tmp_path / "whole" / "faithfulness")
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    for name in names[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name

    rows = pd.read_csv(folders[0] / "faithfulness_networks.csv")
    assert {"low", "high", "changed", "pairs"} <= set(rows.columns)
    assert len(rows.drop_duplicates(["dataset", "layers", "seed"])) == 8


@pytest.mark.needs("webkb/texas")
def test_a_polite_end_says_how_to_go_on(data_root: str, tmp_path: Path) -> None:
    own = [sys.executable, "-m", "attree.cli", "paper", "faithfulness", "--datasets", "texas", "--epochs", "100000"]
    running = subprocess.Popen(
        [*own, "--root", data_root, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    time.sleep(1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.poll() is None:
        # Until it has imported everything, the signal ends it in Python's own way.
        if Path(data_root, "webkb", "texas", "processed").exists():
            break
        time.sleep(0.1)
    time.sleep(3)
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert "The same command goes on with the cells that are not finished." in " ".join(output.split())
