"""What a newcomer wants first: every answer of docs/how_to/index.md is one command or at most five lines, and works."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.cli import main
from attree.io import terminal
from attree.sweep import FINGERPRINT_FILE, METRICS_FILE, folder_of_run, load_plan
from attree.sweep.summary import draw_figures
from helpers.cli import TINY, command

LABELS = ("agents", "rules", "theory")
"""Labels of the nodes in the CSV files, in the order of the classes."""

PAGE = (Path(__file__).parents[1] / "docs" / "how_to" / "index.md").read_text()
HEAD, *SECTIONS = re.split(r"^## ", PAGE, flags=re.M)
TASKS = {text.partition("\n")[0]: text for text in SECTIONS}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def typed(words: str, place: int = 0) -> list[str]:
    """A command of the section whose heading has these words, without `attree`."""
    (found,) = [text for title, text in TASKS.items() if words in title]
    first, *rest = shlex.split(blocks(found, "sh")[place])
    assert first == "attree"
    return rest


@dataclass
class Done:
    """What the page's Python left behind: its names, its files, what each section printed, and progress bars."""

    names: dict[str, Any]
    folder: Path
    printed: dict[str, str]
    bars: str


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    folder = tmp_path_factory.mktemp("newcomer")
    torch.manual_seed(0)
    x, edge_index, y = torch.randn(60, 8), torch.randint(0, 60, (2, 200)), torch.randint(0, 3, (60,))
    torch.save(GAT(8, 16, 2, out_channels=3).state_dict(), folder / "model.pt")
    torch.save(Data(x=x, edge_index=edge_index, y=y), folder / "graph.pt")
    ids, labels = [f"p{node}" for node in range(60)], [LABELS[number] for number in y.tolist()]
    pd.DataFrame(x.numpy()).assign(id=ids, label=labels).to_csv(folder / "nodes.csv", index=False)
    named = pd.DataFrame(edge_index.T.numpy(), columns=["source", "target"]).map("p{}".format)
    named.to_csv(folder / "edges.csv", index=False)
    friends = nx.DiGraph([("Ann", "Bo"), ("Bo", "Cem"), ("Cem", "Ann"), ("Bo", "Ann")])
    nx.set_node_attributes(friends, {name: {"age": 0.1 * len(name), "income": 1.0} for name in friends})
    nx.write_gml(friends, folder / "friends.gml")
    names: dict[str, Any] = {"__name__": "how_to"}
    printed, bars = {}, io.StringIO()  # bars as a terminal shows them, from the first moment
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(terminal, "SHOWN_AFTER", 0.0)
        patch.setattr(terminal, "plain_console", lambda **_: Console(file=bars, force_terminal=True, width=100))
        exec(blocks(HEAD, "python")[0], names)
        for title, text in TASKS.items():
            with contextlib.redirect_stdout(io.StringIO()) as out:
                for block in blocks(text, "python"):
                    exec(compile(block, title, "exec"), names)
            printed[title] = out.getvalue()
    yield Done(names, folder, printed, bars.getvalue())
    plt.close("all")


@pytest.mark.parametrize("title", TASKS)
def test_every_answer_is_one_command_or_at_most_five_lines(title: str) -> None:
    python, shell = blocks(TASKS[title], "python"), blocks(TASKS[title], "sh")
    assert len(python) + len(shell) > 0
    for block in python:
        assert len([line for line in block.splitlines() if line.strip()]) <= 5
    for block in shell:
        assert len(block.splitlines()) == 1


def test_node_42_of_a_pt_file_as_a_picture(done: Done) -> None:
    assert (done.folder / "node42.png").read_bytes()[:4] == b"\x89PNG"


def test_a_misclassified_node(done: Done) -> None:
    node = int(done.names["wrong"][0])
    said = done.printed["Ask why a node is misclassified"]
    explanation = attree.explain(done.names["model"], done.names["graph"], node)
    assert explanation.predicted != explanation.true_class == int(done.names["graph"].y[node])
    assert f"labelled class {explanation.true_class}" in said


def test_own_data_from_csv(done: Done) -> None:
    """Ids and labels are words; the same graph with names predicts and explains the same."""
    stored = attree.explain(done.names["model"], done.names["graph"], 42).sentence
    expected = re.sub(r"class (\d)", lambda match: LABELS[int(match[1])], stored)
    expected = re.sub(r"(\d+) -> (\d+)", r"p\1 -> p\2", expected)
    sentences = [line for line in done.printed["Use my own data from CSV files"].splitlines() if "predicts" in line]
    assert sentences[0] == expected
    # Trained on, too, and explained in the same words.
    assert re.match(rf"The network predicts ({'|'.join(LABELS)}) ", sentences[1])
    logged = pd.read_csv(done.folder / "logs" / "own" / "version_0" / "metrics.csv")
    assert logged["explain/gatt/removal/within_pearson"].notna().sum() >= 1


def test_the_callback_logs_in_two_lines(done: Done) -> None:
    said = done.printed["Log explanations while my own module trains"]
    headline = done.names["callback"].latest.verdict.headline
    assert headline
    assert headline in said
    folder = done.folder / "logs" / "mine" / "version_0"
    assert "explain/gatt/removal/within_pearson" in pd.read_csv(folder / "metrics.csv")
    assert (folder / "page.html").is_file()


def test_own_data_from_csv_with_numbers(done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that are numbers in any order, and labels that are numbers, work too."""
    pd.DataFrame({"id": [30, 10, 20], "a": 1.0, "b": [0.0, 1.0, 2.0], "label": [5, 3, 5]}).to_csv(
        tmp_path / "nodes.csv", index=False
    )
    pd.DataFrame({"source": [10, 20], "target": [30, 10]}).to_csv(tmp_path / "edges.csv", index=False)
    monkeypatch.chdir(tmp_path)
    block = blocks(TASKS["Use my own data from CSV files"], "python")[0]
    names = dict(done.names) | {"model": GAT(2, 4, 2, out_channels=2)}
    exec(block.replace('"p42"', '"20"'), names)
    own = names["own"]
    assert own.edge_index.tolist() == [[1, 2], [0, 1]]
    assert (own.y.tolist(), own.class_names, own.node_names) == ([1, 0, 1], ["3", "5"], ["30", "10", "20"])


def test_own_data_from_networkx(done: Done) -> None:
    said = done.printed["Use my own data from NetworkX"]
    assert "Ann" in said
    own = done.names["own"]
    assert own.x.shape == (3, 2)
    assert [(own.node_names[a], own.node_names[b]) for a, b in own.edge_index.T.tolist()] == [
        ("Ann", "Bo"),
        ("Bo", "Cem"),
        ("Bo", "Ann"),
        ("Cem", "Ann"),
    ]


def test_export_to_networkx_graphml_and_csv(done: Done) -> None:
    graph = done.names["explanation"].to_networkx()
    assert nx.read_graphml(done.folder / "node42.graphml").number_of_edges() == graph.number_of_edges() > 0
    table = pd.read_csv(done.folder / "node42.csv")
    assert table["effect"].sum() == pytest.approx(sum(effect for *_, effect in graph.edges(data="effect")))


def test_learned_against_uniform_attention_with_an_interval(done: Done) -> None:
    gain = done.names["gain"]
    assert gain.low <= gain.value <= gain.high
    assert (
        f"{gain.value:+.3f}"
        in done.printed["Find out whether the network's attention is better than uniform attention"]
    )


def test_a_notebook_has_bars(done: Done) -> None:
    assert re.search(r"GNNExplainer, epochs.*\b\d+/100", done.bars)
    assert "explain/gnn_explainer/removal/faithfulness" in done.names["result"].metrics


def test_three_networks_over_weight_decay_in_one_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = typed("Compare GAT, GATv2 and SuperGAT")
    plan = load_plan(given[1])
    assert len(plan.runs) == 36
    # The fits themselves take minutes; here each leaves its metrics, and the command sums them up.
    for place, run in enumerate(plan.runs):
        own = folder_of_run(plan, run, Path("logs/sweeps"))
        own.mkdir(parents=True)
        (own / METRICS_FILE).write_text(f'{{"val/acc": {place / 100}, "explain/gatt/weight/faithfulness": 0.5}}')
        (own / FINGERPRINT_FILE).write_text(run.fingerprint)
    assert command(*given, "--collect") == 0
    assert Path("logs/sweeps/networks/curves.png").is_file()
    results = pd.read_csv("logs/sweeps/networks/results.csv").assign(setting="")
    axes = draw_figures(plan, results, ["val/acc"])["curves"].axes[0]
    assert axes.lines[1].get_ydata()[0] == pytest.approx(results["val/acc"][12:15].mean())
    assert len(axes.lines) == 3


def test_networks_weight_decay_and_dropout_are_one_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = typed("Compare GAT, GATv2 and SuperGAT", 1)
    plan = load_plan(given[1])
    assert len(plan.runs) == 54
    for place, run in enumerate(plan.runs):
        own = folder_of_run(plan, run, Path("logs/sweeps"))
        own.mkdir(parents=True)
        (own / METRICS_FILE).write_text(f'{{"val/acc": {place / 100}, "explain/gatt/removal/within_pearson": 0.5}}')
        (own / FINGERPRINT_FILE).write_text(run.fingerprint)
    assert command(*given, "--collect") == 0
    assert Path("logs/sweeps/networks_dropout/curves.png").is_file()
    results = pd.read_csv("logs/sweeps/networks_dropout/results.csv").assign(setting="")
    figure = draw_figures(plan, results, ["val/acc"])["curves"]
    charts = [axes for axes in figure.axes if axes.lines]
    assert len(charts) == 3  # a chart for each rate of dropout
    assert all(len(axes.lines) == 3 for axes in charts)  # a curve for each network


def test_a_pyg_dataset_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_root: str) -> None:
    """The command as it is typed, with a dataset whose files are here."""
    monkeypatch.chdir(tmp_path)
    given = typed("any PyG dataset")
    given[given.index("Amazon")], given[given.index("Photo")] = "WebKB", "Texas"
    quick = ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--explain.figures=0"]
    main([*given, f"--data.options.root={data_root}/webkb", *quick, "--explain.num_targets=5"])
    (metrics,) = tmp_path.rglob("metrics.json")
    assert "explain/gatt/removal/within_pearson" in metrics.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "words", "shown"),
    [
        pytest.param("mutag", "molecules", r"[CNOF]\d+ -> [CNOF]\d+.*mutagenic", marks=pytest.mark.needs("tu/MUTAG")),
        pytest.param("acm", "several types", r"(author|subject) \d+ -> paper \d+", marks=pytest.mark.needs("hetero")),
    ],
)
def test_names_of_atoms_types_and_classes(
    config: str, words: str, shown: str, data_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--explain.figures=0"]
    main(["fit", f"--config={config}", f"--data.root={data_root}", *quick, "--explain.num_targets=5"])
    capsys.readouterr()
    assert command(*typed(words), "--figures=0") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(shown, said)
    names = "mutagenic" if config == "mutag" else "database|wireless communication|data mining"
    assert re.search(rf"The network predicts (not )?({names})", said)


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["fit", "--config=infection", *TINY, "--trainer.max_epochs=1"])
    assert main([*typed("stopped"), "--trainer.max_epochs=2"]) in (None, 0)
    last = torch.load("logs/infection/version_0/checkpoints/last.ckpt", weights_only=False)
    assert last["epoch"] == 1  # the second


def test_a_run_logged_to_csv_is_explained_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main([*typed("Log to a CSV"), *TINY, "--trainer.max_epochs=1"])
    tables = [pd.read_csv(path) for path in tmp_path.rglob("metrics.csv")]
    assert any("explain/gatt/removal/within_pearson" in table for table in tables)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("Next: attree explain ")
    assert command("explain", *shlex.split(line)[3:], "--figures=0", "--protocols=none") == 0


def test_what_changed_is_told_for_this_version(done: Done) -> None:
    assert attree.__version__ in done.printed["See what changed in this version"]
    changes = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    newest, *_ = re.findall(r"^## \[([^\]]+)\]", changes, flags=re.M)
    assert newest in ("Unreleased", attree.__version__)  # what is installed is what the first section tells


@pytest.mark.long
@pytest.mark.needs("planetoid/Cora")
def test_the_papers_table_1_for_cora(data_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--models", "gat", "--seeds", "1", "--epochs", "1", "--targets", "3", "--root", data_root]
    quick += ["--protocols", "authors"]
    assert command(*typed("Table 1 for Cora"), *quick) == 0
    report = Path("logs/paper/faithfulness/report.md").read_text()
    assert "| Cora | GAT | dPC Pearson |" in report
    assert "(0.847, " in report  # what the paper prints for GAtt of a GAT with two layers


@pytest.mark.long
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (the extra `wandb`)")
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_SILENT", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    try:
        main([*typed("Weights & Biases"), *TINY, "--trainer.max_epochs=1"])
    finally:
        sys.modules["wandb"].teardown()
    (run,) = tmp_path.glob("logs/wandb/offline-run-*/*.wandb")
    assert run.stat().st_size > 0
    (config,) = (path for path in tmp_path.rglob("config.yaml") if "wandb" not in path.parts)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"Next: attree explain {config.parent.relative_to(tmp_path)} --targets random:20"
    assert command("explain", *shlex.split(line)[3:], "--figures=0", "--protocols=none") == 0
