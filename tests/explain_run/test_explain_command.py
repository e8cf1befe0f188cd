"""A finished run looked at: `attree explain` and `attree.load_run`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import attree
from attree.attribution import Attribution, GAtt
from attree.cli import main
from attree.data import MUTAG
from attree.errors import ArgumentError, AttreeError
from attree.evaluation import Evaluation, EvaluationConfig, Evaluator
from attree.explain_run.targets import parse_targets
from attree.io.files import read_metrics
from attree.report.logged_metrics import read_curves
from attree.source import choose_targets
from attree.subject import Subject
from helpers.cli import CONFIGS, fit, refusal
from helpers.small_fits import curves as logged_curves


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tmp_path_factory.mktemp("run"), "--trainer.max_epochs=30", "--model.net.heads=2")


def explain(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def page_data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    (content,) = re.findall(r'<script type="application/json" id="attree-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(content)


def test_a_run_is_loaded_as_it_was(run: Path) -> None:
    loaded = attree.load_run(run)
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for name, value in loaded.module.state_dict().items():
        assert torch.equal(value, saved[name])
    assert loaded.data.graph.num_nodes == 200
    assert not loaded.module.training
    scores = Attribution.load(run / "explanations" / "gatt.npz")
    graph = loaded.data.graph
    again = GAtt().attribute(attree.capture_attention(loaded.net, graph.x, graph.edge_index), scores.targets)
    torch.testing.assert_close(again.scores, scores.scores)


def test_scores_figures_and_a_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = attree.load_run(run)
    target = int(loaded.data.truth.targets[0])
    out = tmp_path / "out"
    assert explain(str(run), f"--targets={target}", "--methods=gatt,avgatt", "--protocols=removal", f"--out={out}") == 0
    printed = capsys.readouterr().out
    assert f"Node {target}, true class" in printed
    assert f"Strongest paths (product of attention):\n  {target} <- " in printed
    result = Evaluation.load(out)
    assert result.targets.tolist() == [target]
    graph = loaded.data.graph
    attention = attree.capture_attention(loaded.net, graph.x, graph.edge_index)
    expected = GAtt().attribute(attention, target).dense(target)
    torch.testing.assert_close(Attribution.load(out / "scores_gatt.npz").dense(target), expected, atol=1e-5, rtol=1e-4)
    drawn = {path.name for path in (out / "figures").iterdir()}
    names = (f"case_study_{target}", "deletion", "dpc_removal", "scores_removal", f"tree_{target}")
    assert drawn == {f"{name}{suffix}" for name in names for suffix in (".png", ".svg")}
    content = page_data(out / "page.html")
    curves = {curve["name"]: curve["points"] for curve in content["curves"]}
    logged = {name: [list(point) for point in points] for name, points in logged_curves(run).items()}
    for name in ("val/acc", "train/loss", "explain/gatt/weight/faithfulness", "explain/gatt/truth_auroc"):
        np.testing.assert_allclose(
            np.array(curves[name], dtype=float), np.array(logged[name], dtype=float), equal_nan=True
        )


def test_ground_truth_is_that_of_the_named_targets(run: Path, tmp_path: Path) -> None:
    data = attree.load_run(run).data
    true = data.truth.targets.tolist()
    none = next(node for node in range(data.graph.num_nodes) if node not in true)
    few = ",".join(map(str, [none, *true[:3]]))
    for name, targets in (("none", str(none)), ("few", few), ("all", "truth")):
        assert explain(str(run), f"--targets={targets}", "--figures=0", "--show=1", f"--out={tmp_path / name}") == 0
    metrics = {name: read_metrics(tmp_path / name / "metrics.json") for name in ("none", "few", "all")}
    truth = "explain/gatt/truth_auroc"
    assert truth not in metrics["none"]
    subject = Subject.of_data(attree.load_run(run).net, data.graph)
    for name, chosen in (("few", torch.tensor(true[:3])), ("all", data.truth.targets)):
        expected = (
            Evaluator(subject, chosen, EvaluationConfig(["gatt"], ()), data.truth.of_targets(chosen))
            .evaluate()
            .metrics[truth]
        )
        assert metrics[name][truth] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--figures=-1", "argument `figures` to be an integer >= 0, but got '-1'"),
        ("--show=-1", "argument `show` to be an integer >= 0, but got '-1'"),
        ("--protocols=", "argument `protocols` to be names of protocols, or none, but got"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    argument: str, sentence: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refusal(["explain", str(run), f"--out={tmp_path / 'out'}", argument], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.needs("tu/MUTAG/raw")
def test_graphs_are_explained_by_their_place_in_the_dataset(
    data_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        [
            *("fit", f"--config={CONFIGS / 'mutag.yaml'}", f"--data.root={data_root}", "--trainer.max_epochs=1"),
            *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--explain.figures=0"),
            *(f"--trainer.logger.save_dir={tmp_path}", "--explain.num_targets=3"),
        ]
    )
    run = next((tmp_path / "mutag").iterdir())
    assert explain(str(run), "--targets=5,17", "--methods=gatt", "--figures=2") == 0
    drawn = {path.stem for path in (run / "explain" / "figures").glob("*.png")}
    of_all = {"deletion", "dpc_removal", "dpc_weight", "scores_removal", "scores_weight"}
    assert drawn == {"case_study_5", "case_study_17", *of_all}
    assert len(Evaluation.load(run / "explain").targets) == 2
    rows = pd.read_parquet(run / "explain" / "nodes.parquet")
    for target in (5, 17):  # softmaxes and a sum over nodes: the walk from each node ends somewhere in the graph
        size = int(MUTAG(root=data_root).load()[target].num_nodes)
        nodes = rows[rows["target"] == target]
        assert nodes["node"].tolist() == list(range(size))
        assert nodes["score"].sum() == pytest.approx(size, rel=1e-4)
    kinds = MUTAG(root=data_root).load()[17].x.argmax(1).tolist()
    printed = capsys.readouterr().out.split("Graph 17, true class")[1].split("Graph ")[0]
    edges = re.findall(r"(\w+) -> (\w+)", printed)
    assert edges
    for name in {name for edge in edges for name in edge}:  # the page's and the figures' names: C0, N16
        symbol, number = name.rstrip("0123456789"), name.lstrip("CNOFIlBr")
        assert symbol == ("C", "N", "O", "F", "I", "Cl", "Br")[kinds[int(number)]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", list(range(10))),
        ("3", [3]),
        ("1, 4-6,4", [1, 4, 5, 6]),
        ("[1,4-6]", [1, 4, 5, 6]),
        ("errors", [2, 9]),
        ("errors:5", [2, 9]),
        ("truth:1", [7]),
        ("truth", [7]),
    ],
)
def test_targets_as_people_type_them(text: str, expected: list[int]) -> None:
    assert parse_targets(text, 10, torch.tensor([2, 9]), torch.tensor([7])).tolist() == expected


def test_random_targets_are_seeded() -> None:
    first, second, other = (parse_targets("random:4", 100, seed=seed).tolist() for seed in (0, 0, 1))
    assert first == second != other
    assert len(np.unique(first)) == 4
    wrong = torch.arange(50) * 2
    errors = [parse_targets("errors:5", 100, wrong, seed=seed).tolist() for seed in (0, 0, 1)]
    assert errors[0] == errors[1] != errors[2]
    assert len(set(errors[0])) == 5
    assert set(errors[0]) <= set(wrong.tolist())


@pytest.mark.parametrize(
    "text",
    ["", "x", "3-", "10", "5-2", "random", "random:0", "random:x", "truth", "errors", "errors:0", "errors:-1", "all:3"],
)
def test_targets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="targets"):
        parse_targets(text, 10)


def test_more_targets_than_a_page_shows_give_a_page_of_the_most_instructive_and_scores_of_all(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = attree.load_run(run)
    graph = loaded.data.graph
    right = (loaded.net(graph.x, graph.edge_index).argmax(dim=-1) == graph.y).nonzero().view(-1).tolist()
    assert 4 < len(right) < graph.num_nodes
    monkeypatch.setattr("attree.explain_run.command.MOST_TARGETS", 4)
    options = ("--methods=gatt,random", "--figures=1", "--show=1", f"--out={tmp_path}")
    assert explain(str(run), "--targets=all", *options) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    assert (
        f"Metrics are of 4 of the {graph.num_nodes} targets, drawn at random; the page shows the 4 most instructive"
        in said
    )
    rows = pd.read_parquet(tmp_path / "scores")
    assert rows.target.drop_duplicates().tolist() == list(range(graph.num_nodes))
    result = Evaluation.load(tmp_path)
    assert torch.equal(result.targets, choose_targets(4, graph.num_nodes, 0))  # a sample, not picked for being right
    page = page_data(tmp_path / "page.html")
    shown = [target["id"] for target in page["targets"]]
    assert len(shown) == 4
    assert set(shown) <= set(right)
    assert set(shown) != set(result.targets.tolist())
    assert f"Node {shown[0]}, true class" in printed
    assert (tmp_path / "figures" / f"case_study_{shown[0]}.png").is_file()
    on_page = {(one.get("method"), one.get("protocol"), one["name"]): one["value"] for one in page["metrics"]}
    pearson = result.metrics["explain/gatt/removal/pc_pearson"]
    assert on_page["gatt", "removal", "pc_pearson"] == pytest.approx(pearson)
    for target in result.targets.tolist():  # the summary and the dataset say the same, random scores included
        for method in ("gatt", "random"):
            expected = rows[rows.target == target][method].to_numpy()
            pairs = result.pairs.owner == result.targets.tolist().index(target)
            np.testing.assert_allclose(result.pair_scores[method][pairs].numpy(), expected, atol=1e-6)


def test_the_most_instructive_targets_are_drawn_and_printed_with_significant_digits(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--methods=gatt", "--protocols=removal", "--figures=1", "--show=2", f"--out={tmp_path}")
    assert explain(str(run), "--targets=random:12", *options) == 0
    printed = capsys.readouterr().out
    order = [target["id"] for target in page_data(tmp_path / "page.html")["targets"]]
    assert order[0] != Evaluation.load(tmp_path).targets[0]
    assert re.findall(r"Node (\d+), true class", printed) == [str(target) for target in order[:2]]
    assert [path.stem for path in (tmp_path / "figures").glob("case_study_*.png")] == [f"case_study_{order[0]}"]
    effects = [float(cell) for cell in re.findall(r" ([+-]\d\S*?)\*? ", printed)]
    result = Evaluation.load(tmp_path)
    (position,) = (result.targets == order[0]).nonzero().view(-1).tolist()
    part = slice(*result.pairs.ptr[position : position + 2].tolist())
    known = result.reductions["removal"].delta_pc[part]
    assert effects
    assert min((known - effects[0]).abs() / known.abs().clamp(min=1e-12)) < 0.005


def test_what_is_no_run_is_refused_in_a_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AttreeError, match="to be a run of `attree fit`"):
        attree.load_run(tmp_path)
    assert explain(str(tmp_path)) == 2
    assert explain(str(run), "--targets=9999") == 2
    assert explain(str(run), "--methods=gat") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("attree: error")]
    assert len(errors) == 3


def test_curves_of_a_csv_logger_and_of_none(tmp_path: Path) -> None:
    assert read_curves(tmp_path) == {}
    lines = ["epoch,step,val/acc,train/loss,other", "0,4,0.5,,1", "0,4,,2.0,", "1,9,0.75,1.5,2", "1,9,0.8,,"]
    (tmp_path / "metrics.csv").write_text("\n".join(lines))
    assert read_curves(tmp_path) == {"val/acc": [(4, 0.5), (9, 0.8)], "train/loss": [(4, 2.0), (9, 1.5)]}
    rows = "\n".join(f"{step},{step}" for step in range(1000))
    (tmp_path / "metrics.csv").write_text(f"step,val/acc\n{rows}")
    thin = read_curves(tmp_path, most_points=10)["val/acc"]
    assert len(thin) == 10
    assert (thin[0], thin[-1]) == ((0, 0.0), (999, 999.0))
