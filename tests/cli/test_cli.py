"""The `attree` command as a user types it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.cli import main

REPO = Path(__file__).parents[2]
CONFIGS = REPO / "configs"
TINY = [
    "--data.num_nodes=200",
    "--data.edge_probability=0.01",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--explain.figures=0",
    "--explain.num_targets=5",
]


def fit(folder: Path, *arguments: str) -> Path:
    """Run a tiny Infection fit in `folder`; returns the folder of the run."""
    main(["fit", f"--config={CONFIGS / 'infection.yaml'}", *TINY, f"--trainer.logger.save_dir={folder}", *arguments])
    return sorted((folder / "infection").iterdir())[-1]


def test_fit_leaves_curves_config_checkpoint_and_explanations(tmp_path: Path) -> None:
    run = fit(tmp_path, "--trainer.max_epochs=3", "--explain.every_n_epochs=1", "--model.net=attree.models.GATv2")
    scalars = EventAccumulator(str(run)).Reload()
    for tag in ("val/acc", "explain/gatt/truth_auroc", "explain/avgatt/truth_auroc", "explain/random/truth_auroc"):
        assert [event.step for event in scalars.Scalars(tag)] == [0, 1, 2]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["net"]["class_path"] == "attree.models.GATv2"
    assert config["data"]["init_args"]["num_nodes"] == 200
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert (run / "explanations" / "gatt.npz").is_file()
    assert "config/text_summary" in scalars.Tags()["tensors"]


def test_validate_test_and_predict_read_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path, "--trainer.max_epochs=2")
    for command in ("validate", "test", "predict"):
        arguments = [f"--config={CONFIGS / 'infection.yaml'}", *TINY, f"--trainer.logger.save_dir={tmp_path / command}"]
        main([command, *arguments, f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}"])
    printed = capsys.readouterr().out
    assert "val/acc" in printed
    assert "test/acc" in printed


def test_same_seed_and_config_give_the_same_numbers(tmp_path: Path) -> None:
    metrics = [(fit(tmp_path / name, "--trainer.max_epochs=3") / "metrics.json").read_text() for name in ("a", "b")]
    first, second = (
        {name: value for name, value in yaml.safe_load(text).items() if name != "explain/seconds"} for text in metrics
    )
    assert str(first) == str(second)


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_parses_and_begins_with_its_command(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={config}", "--print_config"])
    assert stop.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["class_path"].startswith("attree.data.")
    assert config.read_text().startswith(f"# attree fit --config configs/{config.name}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data=Coraa"], "argument `data` to be a dataset (Arxiv, BAShapes, HIN, Infection,"),
        (["--model.net=attree.models.GCN"], "argument `net` to be a network (GAT, GATv2, SuperGAT or your own)"),
        (["--model.net.num_layers=-1"], "argument `num_layers` to be an integer >= 1, but got -1."),
        (["--config=configs/none.yaml"], "argument `config` to be a YAML file, but got "),
        (["--data.num_nodes=many"], "argument `num_nodes` to be a <class 'int'>, but got 'many'."),
        (["--explain.methods=[gat]"], "argument `methods` to be names among gatt, gatt_sim"),
        (["--ckpt_path=nowhere.ckpt"], "argument `ckpt_path` to be a checkpoint file, but got 'nowhere.ckpt'."),
        (["--unheard-of=1"], "unrecognized arguments: --unheard-of=1"),
    ],
)
def test_mistakes_get_one_clear_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={CONFIGS / 'infection.yaml'}", *arguments])
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "Seed set" not in line]
    assert len(errors) == 1
    assert errors[0].startswith("attree: error: ")
    assert sentence in errors[0]


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.touched),)


def test_resuming_runs_no_code_from_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, touched = tmp_path / "run" / "version_0" / "checkpoints" / "last.ckpt", tmp_path / "touched"
    path.parent.mkdir(parents=True)
    torch.save({"global_step": 3, "hyper_parameters": Payload(touched)}, path)
    with pytest.raises(SystemExit) as stop:
        fit(tmp_path, f"--ckpt_path={path}")
    assert stop.value.code == 2
    assert "argument `ckpt_path` to be a checkpoint of tensors and plain values alone" in capsys.readouterr().err
    assert not touched.exists()


def test_help_explains_the_callback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--explain.every_n_epochs" in text
    assert "Epochs between two evaluations; 0 evaluates only at the last epoch." in text
