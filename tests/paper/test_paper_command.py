"""The command as users type it: names, refusals, what is left out, and going on after being killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from attree.paper import run
from attree.paper.command import CONTENTS
from attree.paper.tables import ITEMS
from helpers.cli import command
from helpers.processes import WarmCommand
from helpers.time_limit import SECONDS

TINY = ["--datasets", "cornell,texas", "--models", "gat", "--seeds", "1", "--epochs", "3", "--targets", "5"]


def test_list_names_every_item_with_its_place_data_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("paper", "list") == 0
    printed = capsys.readouterr().out
    for name, entry in CONTENTS.items():
        assert name in printed
        assert entry.place in printed
        assert entry.data in printed


def test_every_listed_item_can_be_made() -> None:
    assert list(ITEMS) == list(CONTENTS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "Expected argument `NAME` to be list, all or one of faithfulness,"),
        (["faithfulness", "--datasets", "reddit"], "Expected argument `datasets` to be names among Cora,"),
        (["faithfulness", "--models", "GCN"], "Expected argument `models` to be names among GAT,"),
        (["faithfulness", "--protocols", "none"], "Expected argument `protocols` to be names among coefficient,"),
        (["faithfulness", "--seeds", "0"], "Expected argument `seeds` to be an integer >= 1, but got '0'."),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert command("paper", *arguments) == 2
    assert sentence in capsys.readouterr().err


def test_absent_data_is_said_and_nothing_else_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command("paper", "graph_level", "--datasets", "hin", "--root", str(tmp_path), "--out", str(tmp_path / "out"))
        == 0
    )
    assert "HIN is left out: " in " ".join(capsys.readouterr().out.split())
    assert "HIN is left out: " in (tmp_path / "out" / "graph_level" / "report.md").read_text()


@pytest.mark.long
@pytest.mark.needs("webkb/cornell", "webkb/texas")
def test_killed_and_started_again_gives_the_same_tables(
    data_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def arguments(out: str) -> list[str]:
        return ["faithfulness", *TINY, "--root", data_root, "--out", str(tmp_path / out)]

    broken = WarmCommand(["paper", *arguments("broken")])
    cells = tmp_path / "broken" / "cells"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(cells.glob("faithfulness-*.json")):
        time.sleep(0.01)
    broken.kill()
    broken.wait(timeout=SECONDS)
    finished = len(list(cells.glob("faithfulness-*.json")))
    assert 1 <= finished < 4
    assert not (tmp_path / "broken" / "faithfulness").exists()

    assert command("paper", *arguments("broken")) == 0
    assert f"{finished} of 4 cells already finished, not repeated" in capsys.readouterr().out
    assert command("paper", *arguments("whole")) == 0
    same_files(tmp_path / "broken" / "faithfulness", tmp_path / "whole" / "faithfulness")
    rows = pd.read_csv(tmp_path / "whole" / "faithfulness" / "faithfulness_networks.csv")
    assert {"low", "high", "changed", "pairs"} <= set(rows.columns)
    assert len(rows.drop_duplicates(["dataset", "layers", "seed"])) == 4


@pytest.mark.slow
@pytest.mark.needs("webkb/cornell", "webkb/texas")
def test_several_at_a_time_give_the_same_tables(data_root: str, tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        own = ["--root", data_root, "--out", str(tmp_path / jobs), "--jobs", jobs]
        assert command("paper", "faithfulness", *TINY, *own) == 0
    same_files(tmp_path / "1" / "faithfulness", tmp_path / "2" / "faithfulness")


def same_files(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    assert len(names) >= 5
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.long
@pytest.mark.needs("webkb/texas")
def test_a_polite_end_says_how_to_go_on(
    data_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*arguments: object) -> Iterator[tuple[object, object]]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield from ()

    monkeypatch.setattr(run, "measure_cells", measure)
    before = signal.getsignal(signal.SIGTERM)
    assert command("paper", "faithfulness", "--datasets", "texas", "--root", data_root, "--out", str(tmp_path)) == 143
    assert "Run the same command again to continue." in " ".join(capsys.readouterr().out.split())
    assert signal.getsignal(signal.SIGTERM) is before
