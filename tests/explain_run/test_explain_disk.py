"""`attree explain RUN --graph FOLDER` writes the rows that the run's own graph in memory gives."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import attree
from attree.cli import main
from attree.data import write_graph
from attree.io.files import read_metrics
from helpers.cli import fit, refusal

METHODS = "--methods=gatt,uniform,occlusion"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("--trainer.max_epochs=3", "--data.num_nodes=150", "--data.edge_probability=0.01")
    return fit(tmp_path_factory.mktemp("run"), *options)


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = attree.load_run(run).data.graph
    return write_graph(data, tmp_path_factory.mktemp("graph") / "infection").folder


def explain(run: Path, out: Path, *arguments: str) -> pd.DataFrame:
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(run), f"--out={out}", "--figures=0", "--show=0", *arguments])
    assert stop.value.code == 0
    return pd.read_parquet(out / "scores")


@pytest.mark.parametrize("protocols", ["removal,weight", "none"])
def test_rows_are_those_of_memory(run: Path, folder: Path, tmp_path: Path, protocols: str) -> None:
    methods = METHODS if protocols != "none" else "--methods=gatt,uniform"
    arguments = (methods, f"--protocols={protocols}", "--targets=random:12")
    expected = explain(run, tmp_path / "memory", *arguments)
    rows = explain(run, tmp_path / "disk", *arguments, f"--graph={folder}", "--part_rows=60")
    pd.testing.assert_frame_equal(rows, expected, check_exact=True)
    assert len(list((tmp_path / "disk" / "scores").glob("part-*"))) > 1
    if protocols != "none":
        metrics, of_memory = (read_metrics(tmp_path / place / "metrics.json") for place in ("disk", "memory"))
        name = "explain/gatt/removal/within_pearson"
        assert metrics[name] == of_memory[name]


def test_what_is_refused(run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    explain(run, out, METHODS, "--targets=1,2", f"--graph={folder}")
    assert "Metrics: " in capsys.readouterr().out
    other = attree.load_run(run).data.graph
    other.x = other.x.flip(0)
    write_graph(other, tmp_path / "flipped")
    call = ["explain", str(run), f"--out={out}", METHODS, "--targets=1,2", f"--graph={tmp_path / 'flipped'}"]
    assert "other data" in refusal(call, capsys)
    assert "ids, random:N or all for a graph on disk, but got errors" in refusal([*call, "--targets=errors"], capsys)
    assert "to be left out with --graph" in refusal([*call, "--by_neighbourhood"], capsys)
    assert "has no graph.json" in refusal([*call[:-1], f"--graph={tmp_path}"], capsys)
