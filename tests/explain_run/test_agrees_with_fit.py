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
from torch_geometric.data import Data

from attree.cli import main
from attree.data import GraphDataModule
from attree.data.counts import Counts
from attree.evaluation import Evaluation
from attree.evaluation.config import choose_targets
from attree.io.files import read_metrics
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
    return fit(tmp_path_factory.mktemp("nodes"), "--trainer.max_epochs=20", *EXPLAINED)


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


def explain(run: Path, out: Path, *arguments: str) -> dict[str, float]:
    assert command("explain", str(run), f"--out={out}", "--figures=0", "--show=0", f"--allow={RINGS}", *arguments) == 0
    return read_metrics(out / "metrics.json")


def faithfulness(metrics: Mapping[str, float]) -> dict[str, float]:
    """What is measured of the drawn targets; what is measured of all that have a true explanation, and time, is not."""
    return {name: value for name, value in metrics.items() if name.count("/") == 3}


def page(path: Path) -> dict[str, Any]:
    (content,) = re.findall(r'id="attree-data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
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
