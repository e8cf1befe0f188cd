"""Callbacks of the user's config run beside attree's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from lightning.pytorch.callbacks import ProgressBar
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.callbacks import EpochProgress
from attree.cli import main
from attree.cli.lightning_cli import AttreeCLI
from helpers.cli import fit, refusal, tiny
from helpers.versions import since

CALLBACKS = "lightning.pytorch.callbacks"


def config_with(folder: Path, *callbacks: dict[str, object] | str) -> str:
    path = folder / "callbacks.yaml"
    listed = [one if isinstance(one, dict) else {"class_path": f"{CALLBACKS}.{one}"} for one in callbacks]
    path.write_text(yaml.safe_dump({"trainer": {"callbacks": listed}}))
    return f"--config={path}"


def test_learning_rate_monitor_and_model_checkpoint_run(tmp_path: Path) -> None:
    best = {"class_path": f"{CALLBACKS}.ModelCheckpoint", "init_args": {"monitor": "val/acc", "filename": "best"}}
    run = fit(tmp_path / "logs", config_with(tmp_path, "LearningRateMonitor", best))
    scalars = EventAccumulator(str(run)).Reload()
    assert {round(event.value, 6) for event in scalars.Scalars("lr-Adam")} == {0.005}
    assert scalars.Scalars("explain/gatt/truth_auroc")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]


def test_early_stopping_stops(tmp_path: Path) -> None:
    stopping = {
        "class_path": f"{CALLBACKS}.EarlyStopping",
        "init_args": {"monitor": "val/loss", "mode": "max", "patience": 1},
    }
    run = fit(tmp_path / "logs", config_with(tmp_path, stopping), "--trainer.max_epochs=50")
    assert len(EventAccumulator(str(run)).Reload().Scalars("val/loss")) == 2  # the loss falls, at once and again


def test_early_stopping_on_a_metric_that_is_not_there_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopping = {"class_path": f"{CALLBACKS}.EarlyStopping", "init_args": {"monitor": "val/f1"}}
    line = refusal(tiny("fit", tmp_path / "logs", config_with(tmp_path, stopping)), capsys)
    assert "Early stopping conditioned on metric `val/f1` which is not available" in line


@since("jsonargparse", "4.47", "cannot parse the theme of RichProgressBar")
@pytest.mark.parametrize("given", [[], ["RichProgressBar"]])
def test_attrees_bar_is_there_unless_another_is_given(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[type] = []

    def look(self: AttreeCLI, subcommand: str) -> None:
        bars.extend(type(one) for one in self.trainer.callbacks if isinstance(one, ProgressBar))

    monkeypatch.setattr(AttreeCLI, "_run_subcommand", look)
    main([*tiny("fit", tmp_path), config_with(tmp_path, *given), "--trainer.enable_progress_bar=true"])
    assert [bar.__name__ for bar in bars] == (given or [EpochProgress.__name__])
