"""`attree explain RUN --graph FOLDER` writes the rows that the run's own graph in memory gives."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import attree
from attree.attribution import make_methods
from attree.cli import main
from attree.data import Infection, OnDisk, OnDiskGraph, write_graph
from attree.evaluation.on_disk import DiskSubjects
from attree.explain_run.on_disk import ExplainedDiskNodes
from attree.explain_run.targets import ExplainRequest
from attree.faithfulness import resolve_protocols
from attree.io.files import read_metrics
from attree.serve.page_server import run_server
from helpers.cli import CONFIGS, fit, refusal

METHODS = "--methods=gatt,uniform,occlusion"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("--trainer.max_epochs=3", "--data.num_nodes=150", "--data.edge_probability=0.01")
    return fit(tmp_path_factory.mktemp("run"), *options)


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = attree.load_run(run).data.graph
    return write_graph(data, tmp_path_factory.mktemp("graph") / "infection", "Infection").folder


def explain(run: Path, out: Path, *arguments: str) -> pd.DataFrame:
    quiet = [] if any(argument.startswith("--figures") for argument in arguments) else ["--figures=0", "--show=0"]
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(run), f"--out={out}", *quiet, *arguments])
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


def embedded(page: Path) -> dict[str, Any]:
    """The content of a page, with the edges of each target by their nodes: their order is that of the folder."""
    text = page.read_text().partition('id="attree-data">')[2].partition("</script>")[0]
    content: dict[str, Any] = json.loads(text)
    kinds = {"f4": "<f4", "u1": "<u1", "u2": "<u2", "i4": "<i4"}

    def numbers(packed: dict[str, str]) -> list[float]:
        ((kind, coded),) = packed.items()
        return np.frombuffer(b64decode(coded), kinds[kind]).tolist()

    for target in content["targets"]:
        nodes = numbers(target["nodes"])
        columns = [[nodes[int(place)] for place in numbers(target[end])] for end in ("source", "destination")]
        columns += [numbers(scores) for scores in target["scores"].values()]
        columns += [numbers(effect["pc"]) for effect in target["effects"].values()]
        drawn = [target[name] for name in ("predicted", "confidence", "true", "treeSize", "wholeEdges", "spacing")]
        target.clear()
        target |= {"edges": sorted(zip(*columns, strict=True)), "nodes": sorted(nodes), "drawn": drawn}
    network = content["network"]
    num_rows = network.pop("rows")
    tables = [np.reshape(numbers(values), (num_rows, -1)) for values in network.pop("inputs").values()]
    network["inputs"] = sorted(np.concatenate(tables, axis=1).tolist())  # rows are in the order of the edges
    return content


@pytest.mark.long
def test_summary_is_that_of_memory(
    run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Infection, "truth", None)  # graphs on disk have none
    arguments = (METHODS, "--targets=random:12", "--figures=2", "--show=2")
    printed, files, pages = [], [], []
    for place, more in (("memory", ()), ("disk", (f"--graph={folder}",))):
        explain(run, tmp_path / place, *arguments, *more)
        printed.append(capsys.readouterr().out.replace(str(tmp_path / place), "OUT"))
        files.append({path.relative_to(tmp_path / place) for path in (tmp_path / place).rglob("*")})
        pages.append(embedded(tmp_path / place / "page.html"))
    assert printed[1] == printed[0]
    assert files[1] == files[0]
    assert len(pages[0]["targets"]) == 12
    assert pages[1] == pages[0]


def test_targets_that_do_not_fit_together_have_a_summary_of_those_that_do(
    run: Path, folder: Path, tmp_path: Path
) -> None:
    graph = OnDiskGraph(folder)
    loaded = attree.load_run(run)
    subjects = DiskSubjects(loaded.net, graph)
    one, every = (subjects.around(torch.arange(number)) for number in (1, 40))
    sizes = [subjects.room.bytes(cut.nodes.size, cut.edges.size) for cut in (one, every)]
    tight = OnDiskGraph(folder, memory=sum(sizes) / 2)
    methods = make_methods(["gatt", "occlusion"])
    request = ExplainRequest("0-39", 0, methods, resolve_protocols(["removal"], loaded.net))
    explained = ExplainedDiskNodes(loaded, tight, request, has_methods=True)
    sample = explained.fitting(torch.arange(40), 10**6)
    assert 1 <= sample.ids.numel() < 40
    assert sample.subject.graph.whole_nodes(sample.positions).tolist() == sample.ids.tolist()
    wide = ExplainedDiskNodes(loaded, graph, request, has_methods=True)
    assert torch.equal(explained.predictions(), wide.predictions())
    assert wide.fitting(torch.arange(40), 10**6) is wide


def test_what_is_refused(run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    explain(run, out, METHODS, "--targets=1,2", f"--graph={folder}")
    assert "Metrics and figures: " in capsys.readouterr().out
    other = attree.load_run(run).data.graph
    other.x = other.x.flip(0)
    write_graph(other, tmp_path / "flipped")
    call = ["explain", str(run), f"--out={out}", METHODS, "--targets=1,2", f"--graph={tmp_path / 'flipped'}"]
    assert "other data" in refusal(call, capsys)
    assert "ids, random:N or all for a graph on disk, but got errors" in refusal([*call, "--targets=errors"], capsys)
    assert "to be left out for a graph on disk" in refusal([*call, "--by_neighbourhood"], capsys)
    assert "has no graph.json" in refusal([*call[:-1], f"--graph={tmp_path}"], capsys)


@pytest.mark.long
def test_a_run_on_a_graph_on_disk_is_opened_by_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "--data.source.init_args"
    options = (f"{source}.num_nodes=200", f"{source}.edge_probability=0.01", "--trainer.max_epochs=2")
    quiet = ("--explain.figures=0", "--explain.num_targets=5", "--trainer.enable_progress_bar=false")
    main(["fit", f"--config={CONFIGS / 'on_disk.yaml'}", *options, *quiet, "--trainer.accelerator=cpu"])
    folder = tmp_path / "logs" / "on_disk" / "version_0"
    rows = explain(folder, tmp_path / "out", "--targets=3,44", METHODS)
    assert rows["target"].unique().tolist() == [3, 44]
    loaded = attree.load_run(folder)
    assert isinstance(loaded.data, OnDisk)
    in_memory = loaded.data.graph.to_data()
    methods = ["gatt", "occlusion"]
    of_disk, of_memory = (
        attree.evaluate(loaded.net, data, [3, 44], methods, mode="multiclass_classification")
        for data in (loaded, in_memory)
    )
    assert of_disk.metrics == pytest.approx(of_memory.metrics, nan_ok=True)
    explanation = attree.explain(loaded.net, loaded, 44, mode="multiclass_classification")
    assert explanation.target == 44
    expected = attree.explain(loaded.net, in_memory, 44, mode="multiclass_classification")
    assert explanation.sentence == expected.sentence
    assert [node.name for node in explanation.nodes] == [node.name for node in expected.nodes]
    with pytest.raises(ValueError, match="`data` to be in memory, but got a graph on disk"):
        attree.attention_tests(loaded.net, loaded)
    with run_server(folder, "3,44", methods, ["removal"]) as server:
        edges = rows[rows["target"] == 44]
        answer = server.answer({"target": 1, "edges": [0], "protocol": "removal"})
    assert len(edges) > 0
    assert sum(answer["now"]) == pytest.approx(1)
