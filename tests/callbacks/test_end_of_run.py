"""What is saved at the end of a run does not depend on what can be shown, and a diverged run ends like any other."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch_geometric.nn import GAT as PyGGAT

from attree.attribution import Attribution
from attree.callbacks import ExplainCallback, LastCheckpoint
from attree.callbacks.tensorboard import TensorBoardWriter
from attree.data import MUTAG
from attree.evaluation import attention_tests
from attree.models import GAT, GraphClassifier, NodeClassifier
from helpers.small_fits import classifier, curves, infection, trainer


def reject_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def check_saved(run: Path) -> dict[str, Any]:
    """Check that a run left everything that it should; return its metrics."""
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["epoch"] >= 0
    Attribution.load(run / "explanations" / "gatt.npz")
    return json.loads((run / "metrics.json").read_text(), parse_constant=reject_constant)


def test_a_network_of_pyg_with_a_module_for_its_dropout(tmp_path: Path) -> None:
    data = infection()
    model = NodeClassifier(PyGGAT(data.num_features, 8, 2, data.num_classes, dropout=0.25))
    run = trainer(tmp_path, [ExplainCallback(num_targets=5), LastCheckpoint()], epochs=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be made")
        run.fit(model, datamodule=data)
    assert "val/acc" in check_saved(Path(run.log_dir))


def broken(*args: object, **kwargs: object) -> Any:
    raise RuntimeError("no fonts\nhere")


@pytest.mark.parametrize(
    ("owner", "method", "named"),
    [
        (TensorBoardWriter, "write_hyperparameters", "HParams"),
        (TensorBoardWriter, "write_layout", "custom scalars"),
        (TensorBoardWriter, "write_scores", "Pictures"),
        (Figure, "savefig", "(Figures|Pictures)"),
    ],
)
def test_what_cannot_be_shown_is_a_warning_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, named: str
) -> None:
    monkeypatch.setattr(owner, method, broken)
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(num_targets=5), LastCheckpoint()], epochs=2)
    with pytest.warns(UserWarning, match="could not be made") as said:
        run.fit(classifier(data), datamodule=data)
    lines = [str(one.message) for one in said if "could not be made" in str(one.message)]
    assert all(re.search(named, line) and "RuntimeError: no fonts here" in line and "\n" not in line for line in lines)
    check_saved(Path(run.log_dir))
    assert not list(Path(run.log_dir).rglob("*.png")) or method != "savefig"


def check_diverged(run: Path, said: Any) -> None:
    metrics = check_saved(run)
    assert metrics["val/loss"] is None
    shown = [name for name in metrics if name.startswith(("explain/gatt/", "explain/avgatt/"))]
    assert shown
    assert all(metrics[name] is None for name in shown)
    assert all(math.isnan(value) for _, value in curves(run)["explain/gatt/weight/faithfulness"])
    lines = [str(one.message) for one in said if "diverged" in str(one.message)]
    assert len(lines) == 1
    assert "NaN or infinite" in lines[0]
    assert not [one for one in said if "could not be made" in str(one.message)]


def test_a_diverged_run_goes_on(tmp_path: Path) -> None:
    data = infection()
    model = classifier(data)
    model.lr = 1e30
    run = trainer(tmp_path, [ExplainCallback(num_targets=10), LastCheckpoint()], epochs=4)
    with warnings.catch_warnings(record=True, action="always") as said:
        run.fit(model, datamodule=data)
    assert run.current_epoch == 4
    check_diverged(Path(run.log_dir), said)


@pytest.mark.needs("tu/MUTAG/raw")
def test_a_diverged_run_on_graphs_goes_on(tmp_path: Path, data_root: str) -> None:
    data = MUTAG(root=data_root)
    model = GraphClassifier(GAT(data.num_features, data.num_classes), lr=1e30)
    run = trainer(tmp_path, [ExplainCallback(num_targets=4), LastCheckpoint()], epochs=2)
    with warnings.catch_warnings(record=True, action="always") as said:
        run.fit(model, datamodule=data)
    check_diverged(Path(run.log_dir), said)


def test_attention_is_tested_at_the_end_of_a_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain.tests true`: a file of its own, words on the screen, and the numbers of `attree.attention_tests`."""
    data = infection()
    callback = ExplainCallback(num_targets=5, figures=0, tests=True)
    run, model = trainer(tmp_path, [callback], epochs=2), classifier(data)
    run.fit(model, datamodule=data)
    folder = Path(run.log_dir)
    saved = json.loads((folder / "attention_tests.json").read_text(), parse_constant=reject_constant)
    said = saved.pop("verdict")

    graph, targets = data.graph, callback.targets
    with torch.no_grad():
        right = model.eval()(graph.x, graph.edge_index).argmax(dim=1)[targets] == graph.y[targets]
    assert saved["network_attention/accuracy"] == float(right.double().mean())
    by_hand = attention_tests(model, graph, targets)
    assert saved == pytest.approx(by_hand.to_dict(), abs=1e-3)  # ranks of float32 scores
    tests = ("network_attention", "uniform_attention", "permuted_attention", "other_attention")
    assert {name.split("/")[0] for name in saved} == {*tests, "last_layer_shuffled", "last_2_layers_shuffled"}

    screen = capsys.readouterr().out
    assert "predictions moved" in screen
    assert "Tests of attention: " in screen
    assert said == by_hand.sentences
    assert all(sentence in screen for sentence in said)
    assert not any(
        "shuffled" in name or "permuted" in name for name in json.loads((folder / "metrics.json").read_text())
    )
