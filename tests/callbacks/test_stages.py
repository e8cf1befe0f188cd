"""A fit, a validation and a test of one trainer keep their files and curves apart."""

from __future__ import annotations

from pathlib import Path

import pytest

import attree
from attree.callbacks import ExplainCallback
from attree.data import Infection
from attree.io.files import read_metrics
from helpers import cli
from helpers.small_fits import classifier, curves, infection, trainer


@pytest.mark.long
def test_test_and_validate_leave_what_the_fit_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = infection()
    model = classifier(data)
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=1)], epochs=2)
    run.fit(model, datamodule=data)
    folder = Path(run.log_dir)
    fitted = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".json", ".npz", ".png")}
    tags = curves(folder)
    assert len(fitted) == 5
    printed = capsys.readouterr().out
    assert " ".join(printed.split()).count("true edges: AUROC") == 1  # the note of one table

    (tested,) = run.test(model, datamodule=data)
    assert capsys.readouterr().out.count("explain/gatt/truth_auroc") == 1  # Lightning's table, and no other
    run.validate(model, datamodule=data, verbose=False)
    assert capsys.readouterr().out.count("AUROC") == 0
    assert all(path.read_bytes() == content for path, content in fitted.items())
    assert read_metrics(folder / "test" / "metrics.json") == pytest.approx(tested, nan_ok=True)
    validated = read_metrics(folder / "validate" / "metrics.json")
    fit_metrics = read_metrics(folder / "metrics.json")
    for name in ("gatt/truth_auroc", "avgatt/weight/pc_pearson"):
        for stage, metrics in (("test", tested), ("validate", validated)):
            assert metrics[f"{stage}/explain/{name}"] == pytest.approx(fit_metrics[f"explain/{name}"], abs=1e-6)
    later = curves(folder)
    for tag, points in tags.items():
        if tag.startswith("explain/"):
            assert len(later[tag]) == len(points)
    assert {"test/explain/gatt/truth_auroc", "validate/explain/gatt/truth_auroc"} <= set(later) - set(tags)
    for stage in ("test", "validate"):
        assert (folder / stage / "explanations" / "gatt.npz").is_file()
        assert list((folder / stage / "figures").glob("*.png"))


def test_the_command_tests_on_data_of_another_size(tmp_path: Path) -> None:
    """Targets of the fit mean nothing there: others are drawn, as `attree.evaluate` draws them."""
    folder = cli.fit(tmp_path)
    checkpoint = folder / "checkpoints" / "last.ckpt"
    cli.run("test", tmp_path, "--data.num_nodes=120", f"--ckpt_path={checkpoint}")
    (file,) = (tmp_path / "infection").glob("test_*/test/metrics.json")
    tested = read_metrics(file)
    loaded = attree.load_run(folder)
    assert isinstance(loaded.data, Infection)
    assert loaded.data.graph.num_nodes == 200
    other = Infection(**{**dict(loaded.data.hparams), "num_nodes": 120})
    assert other.graph.num_nodes == 120
    found = attree.evaluate(loaded.net, other.graph, num_targets=5, truth=other.truth).metrics
    names = [name for name in found if name.startswith(("explain/gatt/", "explain/avgatt/"))]
    assert len(names) == 2 * (2 * 9 + 1)
    for name in names:
        assert tested[f"test/{name}"] == pytest.approx(found[name], abs=1e-6, nan_ok=True), name
