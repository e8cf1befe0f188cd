"""The dataset that `attree explain` writes: whole, the same however it is made, and refused where it is another's."""

from __future__ import annotations

import json
import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import attree
from attree.attribution import GAtt
from attree.cli import main
from attree.errors import ArgumentError
from attree.evaluation import Evaluation
from attree.explain_run.parts import PartFolder
from attree.explain_run.rows import strongest_rows
from attree.io.files import read_metrics
from helpers.cli import CONFIGS, files, fit, refusal
from helpers.processes import fork_server
from helpers.time_limit import SECONDS

ENDS = ["target", "source", "destination"]
SCORES = ("--methods=gatt,avgatt,random", "--protocols=none", "--part_rows=500", "--targets=all", "--figures=0")
NODES = 250
"""More than a summary is made of."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("--trainer.max_epochs=5", f"--data.num_nodes={NODES}", "--data.edge_probability=0.01")
    return fit(tmp_path_factory.mktemp("run"), *options)


def explain(run: Path, out: Path, *arguments: str) -> pd.DataFrame:
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(run), f"--out={out}", *arguments])
    assert stop.value.code == 0
    return pd.read_parquet(out / "scores")


def work(run: Path, out: Path, rank: int, arguments: tuple[str, ...]) -> None:
    """One of two processes that share nothing but the folder."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    main(["explain", str(run), f"--out={out}", *arguments])


def start(run: Path, out: Path, *arguments: str) -> list[ForkServerProcess]:
    """Start both, from a server that has the libraries."""
    context = fork_server()
    processes = [context.Process(target=work, args=(run, out, rank, arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    return processes


def path(out: Path, number: int) -> Path:
    return out / "scores" / f"part-{number:06d}.parquet"


def numbers(out: Path) -> list[int]:
    return sorted(int(one.stem.removeprefix("part-")) for one in (out / "scores").glob("part-*.parquet"))


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    out = tmp_path_factory.mktemp("whole")
    return out, explain(run, out, *SCORES)


def test_every_flow_of_every_node_is_a_row(run: Path, whole: tuple[Path, pd.DataFrame]) -> None:
    out, table = whole
    assert list(table.columns) == [*ENDS, "gatt", "avgatt", "random"]
    loaded = attree.load_run(run)
    expected = GAtt().attribute(attree.capture_attention(loaded.net, loaded.data.graph.x, loaded.data.graph.edge_index))
    for name, values in expected.to_pandas().items():
        column = "gatt" if name == "score" else str(name)
        np.testing.assert_allclose(table[column], values, rtol=1e-5, atol=1e-7)
    manifest = json.loads((out / "scores" / "_manifest.json").read_text())
    assert manifest["parts"] == len(numbers(out)) > 5
    assert manifest["targets"] == NODES
    assert len(Evaluation.load(out).targets) == 200  # as many as a page shows
    assert (out / "page.html").exists()


def test_few_targets_say_the_same_as_many(run: Path, whole: tuple[Path, pd.DataFrame], tmp_path: Path) -> None:
    few = explain(run, tmp_path, "--methods=gatt,avgatt,random", "--protocols=none", "--targets=40-45", "--figures=0")
    assert (tmp_path / "page.html").exists()
    expected = whole[1][whole[1].target.between(40, 45)].reset_index(drop=True)
    pd.testing.assert_frame_equal(few, expected, rtol=1e-4, atol=1e-6)


def test_neighbourhoods_say_the_same_as_the_whole_graph(
    run: Path, whole: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    pd.testing.assert_frame_equal(explain(run, tmp_path, *SCORES, "--by_neighbourhood"), whole[1], rtol=1e-4, atol=1e-6)


def test_the_metrics_are_those_of_the_rows(run: Path, tmp_path: Path) -> None:
    options = ("--methods=gatt", "--protocols=removal,weight", "--figures=0")
    table = explain(run, tmp_path / "few", "--targets=0-29", *options)
    metrics = read_metrics(tmp_path / "few" / "metrics.json")
    for protocol in ("removal", "weight"):
        for short, column in (("pc", f"dpc_{protocol}"), ("ne", f"dne_{protocol}")):
            expected = metrics[f"explain/gatt/{protocol}/{short}_pearson"]
            assert table["gatt"].corr(table[column]) == pytest.approx(expected, abs=1e-6)
        assert table[f"changed_{protocol}"].dtype == bool
    streamed = explain(run, tmp_path / "many", "--targets=all", *options, "--part_rows=20000")
    assert len(numbers(tmp_path / "many")) > 1
    own = streamed[streamed.target < 30].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, table, rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.needs("tu/MUTAG/raw")
def test_graphs_stream_with_nodes_numbered_in_their_graph(
    data_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(
        [
            *("fit", f"--config={CONFIGS / 'mutag.yaml'}", f"--data.root={data_root}", "--trainer.max_epochs=1"),
            *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--explain.figures=0"),
            *(f"--trainer.logger.save_dir={tmp_path}", "--explain.num_targets=3"),
        ]
    )
    run = next((tmp_path / "mutag").iterdir())
    options = ("--methods=gatt", "--protocols=removal", "--part_rows=400", "--targets=5,17,3,100-140", "--figures=0")
    few = explain(run, tmp_path / "few", *options)
    monkeypatch.setattr("attree.explain_run.command.MOST_TARGETS", 1)
    many = explain(run, tmp_path / "many", *options)
    pd.testing.assert_frame_equal(many, few, rtol=1e-4, atol=1e-6)
    assert many.target.drop_duplicates().tolist() == [5, 17, 3, *range(100, 141)]
    graphs = attree.load_run(run).data.graphs
    for target, rows in many.groupby("target"):
        graph = graphs[int(target)]
        assert len(rows) == graph.num_edges + graph.num_nodes
        ends = {(int(source), int(destination)) for source, destination in graph.edge_index.t().tolist()}
        ends |= {(node, node) for node in range(graph.num_nodes)}
        assert set(zip(rows.source, rows.destination, strict=True)) == ends


def test_shares_make_the_same_dataset(run: Path, whole: tuple[Path, pd.DataFrame], tmp_path: Path) -> None:
    for share in ("2/3", "3/3"):
        explain(run, tmp_path, *SCORES, f"--share={share}")
    assert numbers(tmp_path) == [number for number in numbers(whole[0]) if number % 3 > 0]
    explain(run, tmp_path, *SCORES, "--share=1/3")
    assert files(tmp_path) == {tmp_path / "scores" / file.name: content for file, content in scores(whole[0]).items()}
    explain(run, tmp_path, *SCORES)  # all parts are there: the summary alone is added
    assert scores(tmp_path).keys() < files(tmp_path).keys()
    assert read_metrics(tmp_path / "metrics.json") == read_metrics(whole[0] / "metrics.json")


def test_rows_that_were_evaluated_are_those_of_shares(run: Path, tmp_path: Path) -> None:
    """A single process writes the rows that its summary was made of, if they are one part."""
    options = ("--targets=0-29", "--methods=gatt,integrated_gradients,random", "--figures=0", "--show=0")
    for name, more in (("one", ()), ("share", ("--share=1/2",)), ("parts", ("--part_rows=500",))):
        explain(run, tmp_path / name, *options, *more)
    assert len(numbers(tmp_path / "one")) == 1 < len(numbers(tmp_path / "parts"))
    explain(run, tmp_path / "parts_shared", *options, "--part_rows=500", "--share=1/2")
    explain(run, tmp_path / "parts_shared", *options, "--part_rows=500", "--share=2/2")
    for single, shared in (("one", "share"), ("parts", "parts_shared")):
        assert contents(tmp_path / single) == contents(tmp_path / shared)


def contents(out: Path) -> dict[str, bytes]:
    return {file.name: content for file, content in scores(out).items()}


def scores(out: Path) -> dict[Path, bytes]:
    return files(out / "scores")


@pytest.mark.long
def test_ranks_are_killed_and_started_again_and_make_the_same_dataset(
    run: Path, whole: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    options = (*SCORES[:2], "--part_rows=1", *SCORES[3:])
    end = time.monotonic() + SECONDS
    first = start(run, tmp_path, *options)
    while len(numbers(tmp_path)) < 20 and time.monotonic() < end:
        time.sleep(0.01)
    for process in first:
        process.kill()
        process.join()
    assert [process.exitcode for process in first] == [-signal.SIGKILL] * 2
    kept = {number: path(tmp_path, number).stat().st_mtime_ns for number in numbers(tmp_path)}
    assert 20 <= len(kept) < NODES
    for process in start(run, tmp_path, *options):
        process.join(SECONDS)
        process.kill()
        assert process.exitcode == 0
    assert numbers(tmp_path) == list(range(NODES))
    for number, written in kept.items():
        assert path(tmp_path, number).stat().st_mtime_ns == written
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "scores"), whole[1])
    assert [one.name for one in tmp_path.iterdir()] == ["scores"]  # nothing is left behind


@pytest.mark.long
def test_a_damaged_part_is_made_again(run: Path, whole: tuple[Path, pd.DataFrame], tmp_path: Path) -> None:
    explain(run, tmp_path, *SCORES)
    first, second, third, fourth = (path(tmp_path, number) for number in range(4))
    first.write_bytes(first.read_bytes()[:100])
    second.write_bytes(b"")
    third.write_bytes(fourth.read_bytes())  # whole, but another
    pd.testing.assert_frame_equal(explain(run, tmp_path, *SCORES), whole[1])


def test_another_call_is_refused_and_replaced_only_if_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["explain", str(run), f"--out={tmp_path}", "--methods=gatt", "--figures=1", "--protocols=removal"]
    explain(run, tmp_path, *call[3:], "--targets=4")
    before = sorted(tmp_path.rglob("*"))
    for change, named in (
        (["--targets=5"], "other targets"),
        (["--targets=4", "--methods=gatt,random"], "other methods"),
        (["--targets=4", "--protocols=weight"], "other protocols"),
    ):
        assert f"({named})" in refusal([*call, *change], capsys)
    assert sorted(tmp_path.rglob("*")) == before
    table = explain(run, tmp_path, *call[3:], "--targets=5", "--overwrite")
    assert table.target.unique().tolist() == [5]
    assert {one.stem for one in (tmp_path / "figures").glob("case_study*")} == {"case_study_5"}


def test_another_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path, "--trainer.max_epochs=2")
    explain(run, tmp_path / "out", "--targets=4", "--figures=0")
    checkpoint = run / "checkpoints" / "last.ckpt"
    content = torch.load(checkpoint, weights_only=True)
    next(iter(content["state_dict"].values())).add_(1.0)
    torch.save(content, checkpoint)
    call = ["explain", str(run), f"--out={tmp_path / 'out'}", "--targets=4", "--figures=0"]
    assert "(other weights)" in refusal(call, capsys)


def test_a_folder_of_other_files_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scores").mkdir()
    pq.write_table(pq.read_table(_some_part(run, tmp_path)), tmp_path / "scores" / "mine.parquet")
    call = ["explain", str(run), f"--out={tmp_path}", "--targets=4", "--overwrite"]
    assert "mine.parquet" in refusal(call, capsys)
    assert [one.name for one in (tmp_path / "scores").iterdir()] == ["mine.parquet"]


def _some_part(run: Path, folder: Path) -> Path:
    explain(run, folder / "other", "--targets=1", "--figures=0")
    return next((folder / "other" / "scores").glob("*.parquet"))


def part_folder(folder: Path, targets: str = "1") -> PartFolder:
    return PartFolder(folder / "scores", {"targets": targets}, 2)


def test_a_part_may_be_written_twice_and_unfinished_ones_are_removed_at_the_end(tmp_path: Path) -> None:
    first, second = part_folder(tmp_path), part_folder(tmp_path)
    assert not first.open({})
    assert not second.open({})
    first.write(0, pa.table({"target": [1]}))
    content = path(tmp_path, 0).read_bytes()
    second.write(0, pa.table({"target": [1]}))
    assert path(tmp_path, 0).read_bytes() == content
    unfinished = tmp_path / ".scores_unfinished" / "killed.1"
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_bytes(b"half a part")
    first.tidy()
    assert unfinished.exists(), "another process may be writing it"
    assert second.missing() == [1]
    second.write(1, pa.table({"target": [2, 2]}))
    second.tidy()
    assert (first.missing(), first.count()) == ([], (2, 3))
    assert [file.name for file in tmp_path.iterdir()] == ["scores"]


def test_a_part_that_another_process_finished_and_tidied_away_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = part_folder(tmp_path), part_folder(tmp_path)
    slow.open({})
    quick.write(1, pa.table({"target": [2]}))
    write = pq.write_table

    def write_while_another_ends(table: pa.Table, where: Path, **options: object) -> None:
        write(table, where, **options)
        monkeypatch.setattr(pq, "write_table", write)
        quick.write(0, table)
        quick.tidy()

    monkeypatch.setattr(pq, "write_table", write_while_another_ends)
    slow.write(0, pa.table({"target": [1]}))
    assert slow.count() == (2, 2)


def test_a_call_whose_folder_was_replaced_stops_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, other = part_folder(tmp_path), part_folder(tmp_path, "2")
    running.open({})
    running.write(0, pa.table({"target": [1]}))
    with pytest.raises(ArgumentError, match="--overwrite"):
        other.open({})
    write = pq.write_table

    def write_while_replaced(table: pa.Table, where: Path, **options: object) -> None:
        write(table, where, **options)
        assert other.open({}, overwrite=True)

    monkeypatch.setattr(pq, "write_table", write_while_replaced)
    with pytest.raises(ArgumentError, match="other targets"):
        running.write(1, pa.table({"target": [1]}))
    monkeypatch.setattr(pq, "write_table", write)
    with pytest.raises(ArgumentError, match="other targets"):
        running.write(1, pa.table({"target": [1]}))
    assert numbers(tmp_path) == []
    assert other.count() == (0, 0)


def test_parts_beyond_the_last_are_removed(tmp_path: Path) -> None:
    """A process that replaces another call may be killed between the manifest and the parts."""
    parts = part_folder(tmp_path)
    parts.open({})
    parts.write(0, pa.table({"target": [1]}))
    path(tmp_path, 7).write_bytes(path(tmp_path, 0).read_bytes())
    assert not parts.open({})
    assert numbers(tmp_path) == [0]


def test_a_folder_without_the_manifest_of_the_call_is_refused(tmp_path: Path) -> None:
    parts = part_folder(tmp_path)
    with pytest.raises(ArgumentError, match=r"no _manifest.json\. All processes must see the same folder"):
        parts.write(0, pa.table({"target": [1]}))
    assert list(tmp_path.iterdir()) == []


def test_the_strongest_edges_of_each_target_are_kept(
    run: Path, whole: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    top = explain(run, tmp_path, *SCORES, "--top=3")
    ranks = whole[1].groupby("target")["gatt"].rank(method="first", ascending=False)
    pd.testing.assert_frame_equal(top, whole[1][ranks <= 3].reset_index(drop=True))


def test_undefined_scores_are_the_weakest_and_ties_keep_their_order() -> None:
    scores = [0.5, float("nan"), 0.5, 0.5, float("nan"), 0.1]
    table = pa.table({"target": [7, 7, 7, 7, 3, 3], "place": list(range(6)), "gatt": scores})
    assert strongest_rows(table, "gatt", 2)["place"].to_pylist() == [0, 2, 4, 5]
    assert strongest_rows(table, "gatt", 1)["place"].to_pylist() == [0, 5]
    assert strongest_rows(table.slice(0, 0), "gatt", 1).num_rows == 0


def test_what_neighbourhoods_cannot_do_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["explain", str(run), f"--out={tmp_path}", "--by_neighbourhood", "--targets=4"]
    assert "`protocols`" in refusal(call, capsys)
    assert "saliency" in refusal([*call, "--protocols=none", "--methods=saliency"], capsys)
    assert "`targets`" in refusal([*call[:-1], "--targets=errors", "--protocols=none"], capsys)
