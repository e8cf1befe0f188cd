"""The `attree` command as a user types it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.cli import main
from attree.data import Infection
from attree.models import GAT
from helpers.cli import CONFIGS, files, fit, refusal, run, tiny


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


def test_reading_a_trained_network_leaves_the_fit_alone_and_prints_once(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = logs / "infection" / "version_0"
    before = {path: path.read_bytes() for path in fitted.rglob("*") if path.is_file()}
    checkpoint = f"--ckpt_path={fitted / 'checkpoints' / 'last.ckpt'}"
    capsys.readouterr()
    for command, accuracy in (("validate", "val/acc"), ("test", "test/acc")):
        run(command, logs, checkpoint)
        assert len(re.findall(accuracy, capsys.readouterr().out)) == 1
    run("predict", logs, checkpoint)
    assert {path: path.read_bytes() for path in fitted.rglob("*") if path.is_file()} == before
    folders = sorted(path.name for path in (logs / "infection").iterdir())
    assert folders == ["predict_0", "test_0", "validate_0", "version_0"]
    run("test", logs, checkpoint)
    assert (logs / "infection" / "test_1").is_dir()


def test_predict_writes_what_the_network_says(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = trained / "infection" / "version_0" / "checkpoints" / "last.ckpt"
    run("predict", tmp_path, f"--ckpt_path={checkpoint}")
    path = tmp_path / "infection" / "predict_0" / "predictions.npz"
    assert f"Predictions: {path}" in capsys.readouterr().out

    data = Infection(num_nodes=200, edge_probability=0.01, num_layers=3)
    net = GAT(data.num_features, data.num_classes, hidden_channels=8, num_layers=3).eval()
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    net.load_state_dict({name.removeprefix("net."): value for name, value in weights.items()})
    with torch.no_grad():
        expected = net(data.graph.x, data.graph.edge_index).softmax(dim=-1).numpy()
    found = np.load(path)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    assert found["predicted"].tolist() == expected.argmax(axis=1).tolist()
    assert found["index"].tolist() == list(range(200))


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_an_untrained_network_is_not_reported(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"the trained network to {command} (--ckpt_path" in refusal(tiny(command, tmp_path), capsys)
    assert not any(tmp_path.iterdir())


def test_same_seed_and_config_give_the_same_numbers(tmp_path: Path) -> None:
    metrics = [(fit(tmp_path / name, "--trainer.max_epochs=3") / "metrics.json").read_text() for name in ("a", "b")]
    first, second = (
        {name: value for name, value in yaml.safe_load(text).items() if name != "explain/seconds"} for text in metrics
    )
    assert str(first) == str(second)


def test_a_finished_fit_says_so_and_how_to_train_on(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted = logs / "infection" / "version_0"
    before = files(logs)
    resume = f"--ckpt_path={fitted / 'checkpoints' / 'last.ckpt'}"
    for limit in ([], ["--trainer.max_epochs=-1", "--trainer.max_steps=2"]):
        capsys.readouterr()
        run("fit", logs, resume, *limit)
        assert "Nothing to do: this run has trained 2 " in capsys.readouterr().out
        assert files(logs) == before
    run("fit", logs, resume, "--trainer.max_epochs=4")
    assert "Nothing to do" not in capsys.readouterr().out
    assert torch.load(fitted / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 4


def test_an_optimizer_and_a_schedule_can_be_chosen_as_in_lightning(tmp_path: Path) -> None:
    chosen = ["--optimizer=SGD", "--optimizer.lr=0.5", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"]
    fitted = fit(tmp_path, *chosen, "--lr_scheduler.gamma=0.1", "--explain.methods=gatt,random")
    saved = torch.load(fitted / "checkpoints" / "last.ckpt", weights_only=True)
    (group,) = saved["optimizer_states"][0]["param_groups"]
    assert "momentum" in group
    assert group["lr"] == pytest.approx(0.5 * 0.1**2)
    config = yaml.safe_load((fitted / "config.yaml").read_text())
    assert config["optimizer"]["class_path"] == "torch.optim.SGD"
    assert config["explain"]["methods"] == ["gatt", "random"]


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_parses_and_begins_with_its_command(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={config}", "--print_config"])
    assert stop.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["class_path"].startswith("attree.data.")
    assert config.read_text().startswith(f"# attree fit --config {config.stem}\n")


@pytest.mark.parametrize("form", [["--model.net", "GAT"], ["--model.net=GAT"], ["--model.net.class_path=GAT"]])
def test_attrees_own_classes_are_found_by_name(
    form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*tiny("fit", tmp_path), *form, "--data", "BAShapes", "--print_config"])
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["model"]["init_args"]["net"]["class_path"] == "attree.models.GAT"
    assert shown["data"]["class_path"] == "attree.data.BAShapes"


def test_attrees_own_classes_are_found_by_name_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("data: Infection\nmodel: {class_path: NodeClassifier, init_args: {net: {class_path: GAT}}}\n")
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(path), "--print_config"])
    assert stop.value.code == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["model"]["init_args"]["net"]["class_path"] == "attree.models.GAT"


@pytest.mark.long
def test_a_fit_of_types_says_how_to_explain_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--data.num_people=300", "--data.num_mosquitoes=200", "--data.num_flies=250", "--data.num_val=10"]
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--explain.figures=0"]
    folder = [f"--trainer.logger.save_dir={tmp_path}", "--trainer.max_epochs=1", "--explain.num_targets=5"]
    main(["fit", f"--config={CONFIGS / 'hetero_infection.yaml'}", *sizes, *quiet, *folder])
    assert capsys.readouterr().out.splitlines()[-1].startswith("Next: attree explain ")
