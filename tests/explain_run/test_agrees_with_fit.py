"""One run, one conclusion: the fit, `attree explain`, TensorBoard, the page and the Parquet files say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_geometric.data import Data

import attree
from attree import defaults
from attree.cli import main
from attree.cli.subcommand_parsers import serve_parser
from attree.data import Counts, GraphDataModule
from attree.evaluation import Evaluation
from attree.evaluation.metric_names import truth_note
from attree.io.files import read_metrics
from attree.runs import load_run
from attree.serve.page_server import run_server
from attree.source import choose_targets
from helpers.cli import command, fit
from helpers.small_fits import curves

DIGITS = 2e-7
"""What Lightning and TensorBoard keep of a logged number: float32."""

NUM_GRAPHS, NUM_TARGETS = 40, 6
EXPLAINED = (f"--explain.num_targets={NUM_TARGETS}",)


class Rings(GraphDataModule):
    """Molecules in small: rings of atoms of three kinds, of which class 1 has a chain in front."""

    name = "Rings"
    counts = Counts(None, None, 3, 2, graphs=NUM_GRAPHS)
    class_names = ("ring", "ring with a chain")
    node_types = ("C", "N", "O")

    def __init__(
        self, val_fraction: float = 0.2, test_fraction: float = 0.2, batch_size: int = 8, seed: int = 0
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)

    def load(self) -> list[Data]:
        generator = torch.Generator().manual_seed(0)
        graphs = []
        for number in range(NUM_GRAPHS):
            size = 4 + number % 3
            ring = [(node, (node + 1) % size) for node in range(size)]
            chain = [(0, size), (size, size + 1)] if number % 2 else []
            edges = torch.tensor(ring + chain).t()
            kinds = torch.randint(3, (size + 2 * (number % 2),), generator=generator)
            x = torch.nn.functional.one_hot(kinds, 3).float()
            graphs.append(Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.tensor([number % 2])))
        return graphs


RINGS = f"{Rings.__module__}.Rings"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tmp_path_factory.mktemp("nodes"), "--trainer.max_epochs=20", "--explain.figures=1", *EXPLAINED)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    net = ["--model.net=GAT", "--model.net.hidden_channels=8", "--model.net.num_layers=2"]
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.max_epochs=15"]
    explained = [
        *EXPLAINED,
        f"--trainer.logger.save_dir={folder}",
        "--seed_everything=0",
    ]
    main(["fit", f"--data={RINGS}", "--model=GraphClassifier", "--model.lr=0.05", *net, *quiet, *explained])
    return folder / "runs" / "version_0"


def fit_config(config: str, folder: Path, *arguments: str) -> Path:
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.max_epochs=2"]
    main(["fit", f"--config={config}", *quiet, *EXPLAINED, f"--trainer.logger.save_dir={folder}", *arguments])
    return folder / config / "version_0"


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit_config("hetero_infection", tmp_path_factory.mktemp("types"))


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory, data_root: str) -> Path:
    return fit_config("cora_links", tmp_path_factory.mktemp("links"), f"--data.root={data_root}")


def explain(run: Path, out: Path, *arguments: str) -> dict[str, float]:
    assert command("explain", str(run), f"--out={out}", "--figures=0", "--show=0", f"--allow={RINGS}", *arguments) == 0
    return read_metrics(out / "metrics.json")


def faithfulness(metrics: Mapping[str, float]) -> dict[str, float]:
    """What is measured of the drawn targets; what is measured of all that have a true explanation, and time, is not."""
    return {name: value for name, value in metrics.items() if name.count("/") == 3}


def page(path: Path) -> dict[str, Any]:
    return page_content(path.read_text(encoding="utf-8"))


def page_content(html: str) -> dict[str, Any]:
    (content,) = re.findall(r'id="attree-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(content)


@pytest.mark.parametrize("level", ["nodes", pytest.param("graphs", marks=pytest.mark.long)])
def test_fit_and_explain_say_the_same_of_the_same_targets(
    level: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run: Path = request.getfixturevalue(level)
    fitted = read_metrics(run / "metrics.json")
    found = explain(run, tmp_path, f"--targets=random:{NUM_TARGETS}")
    assert {name.split("/")[2] for name in faithfulness(fitted)} == {"weight", "removal"}  # the defaults
    assert faithfulness(found).keys() == faithfulness(fitted).keys()
    for name, value in faithfulness(fitted).items():
        assert found[name] == pytest.approx(value, abs=DIGITS, nan_ok=True), name
    assert found.get("explain/bypass") == pytest.approx(fitted.get("explain/bypass"), abs=DIGITS)
    last = {name: points[-1][1] for name, points in curves(run).items()}
    for name, value in faithfulness(fitted).items():
        assert last[name] == pytest.approx(value, abs=DIGITS, nan_ok=True), name

    count = 200 if level == "nodes" else NUM_GRAPHS
    ids = choose_targets(NUM_TARGETS, count, seed=0).tolist()
    rows = pd.read_parquet(tmp_path / "scores")
    assert rows.target.drop_duplicates().tolist() == ids
    pages = [path for path in (tmp_path / "page.html", run / "page.html") if path.exists()]
    for shown in map(page, pages):
        assert sorted(target["id"] for target in shown["targets"]) == sorted(ids)
    result = Evaluation.load(tmp_path)
    np.testing.assert_allclose(rows.gatt, result.pair_scores["gatt"], atol=1e-6)
    for protocol in ("weight", "removal"):
        np.testing.assert_allclose(rows[f"dpc_{protocol}"], result.reductions[protocol].delta_pc, atol=1e-6)


def test_ground_truth_of_all_targets_that_have_some(nodes: Path, tmp_path: Path) -> None:
    fitted, found = (
        read_metrics(nodes / "metrics.json"),
        explain(nodes, tmp_path, "--targets=truth"),
    )
    named = {name: value for name, value in fitted.items() if name.endswith("/truth_auroc")}
    assert len(named) == 5
    for name, value in named.items():
        assert found[name] == pytest.approx(value, abs=DIGITS), name


def without_truth(lines: list[str]) -> list[str]:
    """The lines of a verdict without the sentences on true edges."""
    kept = [
        " ".join(part for part in re.split(r"(?<=\.)\s+(?=[A-Z])", line) if "true edges" not in part) for line in lines
    ]
    return [line for line in kept if line]


def test_serve_shows_what_a_fit_shows(nodes: Path) -> None:
    """The same methods, of the same targets: so the same numbers, and the same verdict."""
    parsed = serve_parser().parse_args([str(nodes)])
    assert parsed.targets == f"random:{defaults.NUM_TARGETS}"
    targets = f"random:{NUM_TARGETS}"  # so many were measured in this fit
    with run_server(nodes, targets, parsed.methods, parsed.protocols) as server:
        served = page_content(server.page.decode())
    fitted = page(nodes / "page.html")
    assert [method["name"] for method in served["methods"]] == [method["name"] for method in fitted["methods"]]
    assert "occlusion" in {method["name"] for method in served["methods"]}

    def measured(content: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
        return {
            (row["method"], row["protocol"], row["name"]): row["value"]
            for row in content["metrics"]
            if row.get("protocol") and row.get("method")
        }

    assert measured(served) == pytest.approx(measured(fitted), abs=1e-6, nan_ok=True)
    assert without_truth(served["verdict"]) == without_truth(fitted["verdict"])


@pytest.mark.parametrize(
    "level",
    [
        "nodes",
        pytest.param("graphs", marks=pytest.mark.long),
        pytest.param("types", marks=pytest.mark.long),
        pytest.param("links", marks=[pytest.mark.long, pytest.mark.needs("planetoid/Cora")]),
    ],
)
def test_every_door_has_the_same_headline_methods_and_name(
    level: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The fit, TensorBoard, the page, `evaluate`, `explain` and `serve`."""
    run: Path = request.getfixturevalue(level)
    targets = f"random:{NUM_TARGETS}"
    explain(run, tmp_path, f"--targets={targets}")
    loaded = load_run(run, allow=[RINGS]) if level == "graphs" else load_run(run)
    model = loaded.module if level in ("graphs", "links") else loaded.net
    result = attree.evaluate(model, loaded, num_targets=NUM_TARGETS)
    parsed = serve_parser().parse_args([str(run), f"--allow={RINGS}"])
    with run_server(run, targets, parsed.methods, parsed.protocols, allow=parsed.allow) as server:
        served = page_content(server.page.decode())
    (text,) = EventAccumulator(str(run)).Reload().Tensors("attree/results/text_summary")
    first = [line.strip("*") for line in text.tensor_proto.string_val[0].decode().split("\n") if line.startswith("**")]
    fitted, explained = page(run / "page.html"), page(tmp_path / "page.html")
    recorded = json.loads((run / "metrics.json").read_text())["headline"]
    headlines = {
        "evaluate": result.verdict.headline,
        "fit's page": fitted["headline"],
        "explain's page": explained["headline"],
        "serve": served["headline"],
        "TensorBoard": "\n".join(first[: len(recorded.splitlines())]),
    }
    # Where one door knows true edges, it says more at once, and each of its intervals is wider: compared below.
    said = {door: without_truth(re.sub(r" \[.*?\]", "", text).splitlines()) for door, text in headlines.items()}
    assert said == dict.fromkeys(headlines, without_truth(re.sub(r" \[.*?\]", "", recorded).splitlines()))
    explained_again = Evaluation.load(tmp_path)
    for method in ("gatt", "avgatt"):
        statistic = (method, "removal", "within_pearson")
        assert explained_again.interval(*statistic) == pytest.approx(result.interval(*statistic), abs=1e-9)
    pages = (fitted, explained, served)
    names = list(result.pair_scores)
    assert "occlusion" in names
    assert [[method["name"] for method in shown["methods"]] for shown in pages] == [names] * 3
    assert {shown["title"] for shown in pages} == {result.title}
    assert {shown["opensWith"] for shown in pages} == {"occlusion"}
    assert all(sorted(shown["classNames"] or []) == sorted(fitted["classNames"] or []) for shown in pages)


def test_every_table_says_which_targets_ground_truth_is_of(
    nodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = load_run(nodes).data.truth.targets
    capsys.readouterr()
    explain(nodes, tmp_path, "--targets=truth:3")
    assert truth.numel() > 3
    assert truth_note(3) in " ".join(capsys.readouterr().out.split())
    assert any(truth_note(3) in fact for _, fact in page(tmp_path / "page.html")["summary"])
    assert any(truth_note(truth.numel()) == fact for _, fact in page(nodes / "page.html")["summary"])
