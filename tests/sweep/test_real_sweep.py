from __future__ import annotations

import fnmatch
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.sweep import DEFAULT_METRICS, metrics_of_run
from helpers.cli import command

CONFIG = Path(__file__).parents[2] / "configs/infection.yaml"


@pytest.mark.long
def test_sweep_of_real_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {
        "name": "mini",
        "config": str(CONFIG),
        "set": {
            "data.init_args.num_nodes": 300,
            "data.init_args.edge_probability": 0.007,
            "trainer.max_epochs": 2,
            "trainer.accelerator": "cpu",
            "explain.every_n_epochs": 1,
            "explain.figures": 0,
        },
        "keys": {
            "dropout": ["model.init_args.net.init_args.dropout", "model.init_args.net.init_args.attention_dropout"],
            "seed": ["seed_everything", "data.init_args.seed"],
        },
        # The last one is refused by the network: a fit that ends with an error.
        "runs": [{"list": [{"dropout": 0.5}, {"dropout": 2.0}]}],
        "seeds": [4],
        "objectives": {"val/acc": "maximize", "explain/gatt/truth_auroc": "maximize"},
    }
    Path("mini.yaml").write_text(yaml.safe_dump(content))

    assert command("sweep", "mini.yaml", "--jobs", "2", "--folder", "out") == 1

    assert "failed: dropout=2.0-seed=4" in capsys.readouterr().out
    assert "Expected argument `dropout`" in Path("out/mini/dropout=2.0-seed=4/output.log").read_text()
    results = pd.read_csv("out/mini/results.csv")
    assert results["run"].tolist() == ["dropout=0.5-seed=4"]
    assert results["val/acc"].between(0, 1).all()
    assert results["explain/gatt/truth_auroc"].between(0, 1).all()
    for pattern in DEFAULT_METRICS:
        assert fnmatch.filter(results.columns, pattern), f"no fit logs {pattern}"
    assert Path("out/mini/results.png").is_file()

    run = Path("out/mini/dropout=0.5-seed=4")
    (best,) = Path("out/mini/best").iterdir()
    assert command("fit", "--config", str(best)) == 0  # as it stands, and it gives the trial's numbers
    again, wanted = (metrics_of_run(folder) or {} for folder in (Path("logs/mini_best/version_0"), run))
    for metrics in (again, wanted):
        del metrics["explain/seconds"]
    assert again == pytest.approx(wanted, rel=1e-4, abs=1e-6, nan_ok=True)

    saved = yaml.safe_load((run / "config.yaml").read_text())
    net = saved["model"]["init_args"]["net"]["init_args"]
    assert (net["dropout"], net["attention_dropout"]) == (0.5, 0.5)
    assert (saved["seed_everything"], saved["data"]["init_args"]["seed"]) == (4, 4)
    events = EventAccumulator(str(run)).Reload()
    assert len(events.Scalars("val/acc")) == 2
