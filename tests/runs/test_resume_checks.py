"""A resumed run is the run that it was, and nothing of a checkpoint is run or imported."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.cli import files, fit, refusal, run, tiny

LAST = Path("infection", "version_0", "checkpoints", "last.ckpt")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model.lr=0.5"], "model.lr is 0.5 (0.005 in the run)"),
        (["--data.seed=3"], "data.seed is 3 (0 in the run)"),
        (["--model.net=GATv2"], "model.net is 'attree.models.GATv2' ('attree.models.GAT' in the run)"),
        (["--model.net.dropout=0.5"], "model.net.dropout is 0.5 (0.0 in the run)"),
        (["--seed_everything=7"], "seed_everything is 7 (0 in the run)"),
        (["--data.seed=3", "--model.lr=1"], "data.seed is 3 (0 in the run), model.lr is 1.0 (0.005 in the run)"),
    ],
)
def test_settings_that_a_resumed_run_cannot_take_up_are_refused(
    arguments: list[str], sentence: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(trained)
    line = refusal(tiny("fit", trained, *arguments, f"--ckpt_path={trained / LAST}"), capsys)
    assert f"Expected the settings of the run that {trained / LAST} resumes, but {sentence}: " in line
    assert files(trained) == before


def test_a_checkpoint_without_its_run_knows_its_data_and_learning_rate(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = Path(shutil.move(logs / LAST, tmp_path / "moved.ckpt"))
    line = refusal(tiny("fit", logs, "--data.seed=3", "--model.lr=1", f"--ckpt_path={checkpoint}"), capsys)
    assert "data.seed is 3 (0 in the run), model.lr is 1.0 (0.005 in the run)" in line
    run("fit", logs, f"--ckpt_path={checkpoint}")


def test_settings_that_take_effect_may_differ_and_the_run_goes_on_in_its_folder(logs: Path) -> None:
    first = logs / "infection" / "version_0"
    allowed = ["--trainer.max_epochs=4", "--explain.num_targets=3", "--checkpoint.every_n_epochs=1", "--data.root=x"]
    run("fit", logs, *allowed, "--explain.every_n_epochs=1", f"--ckpt_path={first / 'checkpoints' / 'last.ckpt'}")
    assert [path.name for path in first.parent.iterdir()] == ["version_0"]
    steps = [event.step for event in EventAccumulator(str(first)).Reload().Scalars("val/acc")]
    assert steps == [0, 1, 2, 3]
    saved = yaml.safe_load((first / "config.yaml").read_text())
    assert saved["trainer"]["max_epochs"] == 4
    assert saved["trainer"]["logger"]["init_args"]["version"] is None  # a config that starts new runs


def test_a_seed_that_was_drawn_does_not_stand_against_resuming(tmp_path: Path) -> None:
    first = fit(tmp_path, "--seed_everything=true")
    run("fit", tmp_path, "--seed_everything=true", f"--ckpt_path={first / 'checkpoints' / 'last.ckpt'}")


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.touched),)


def plant(checkpoint: Path, **content: Any) -> None:
    torch.save({**torch.load(checkpoint, weights_only=True), **content}, checkpoint)


@pytest.mark.parametrize("command", ["fit", "test"])
def test_no_code_from_a_checkpoint_is_run(
    command: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touched = tmp_path / "touched"
    plant(logs / LAST, hyper_parameters=Payload(touched))
    line = refusal(tiny(command, logs, f"--ckpt_path={logs / LAST}"), capsys)
    assert "argument `ckpt_path` to be a checkpoint of tensors and plain values alone" in line
    assert not touched.exists()


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_no_class_that_a_checkpoint_names_is_imported(
    command: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning's own CLI merges a checkpoint's hyperparameters, class names included, into the config."""
    checkpoint = logs / LAST
    (tmp_path / "planted_module.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'touched')!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = {"class_path": "planted_module.Net", "init_args": {}}
    known = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    plant(checkpoint, hyper_parameters={**known, "_class_path": "planted_module.Net", "net": names})
    run(command, logs, f"--ckpt_path={checkpoint}")
    assert not (tmp_path / "touched").exists()
    assert "planted_module" not in sys.modules


def test_values_of_a_checkpoint_do_not_override_what_is_asked(logs: Path) -> None:
    checkpoint = logs / LAST
    known = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    plant(checkpoint, hyper_parameters={**known, "lr": 123.0})
    run("test", logs, f"--ckpt_path={checkpoint}")
    saved = yaml.safe_load((logs / "infection" / "test_0" / "config.yaml").read_text())
    assert saved["model"]["init_args"]["lr"] == 0.005
