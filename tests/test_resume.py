"""A run that is killed and resumed ends as if it had not been."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.processes import WarmCommand
from helpers.time_limit import SECONDS

CONFIG = Path(__file__).parents[1] / "configs" / "infection.yaml"
EPOCHS = 100


def command(folder: Path, *arguments: str) -> list[str]:
    return [
        *("fit", f"--config={CONFIG}", f"--trainer.logger.save_dir={folder}"),
        *("--data.num_nodes=200", "--data.edge_probability=0.01", "--trainer.accelerator=cpu"),
        *("--trainer.enable_progress_bar=false", f"--trainer.max_epochs={EPOCHS}", "--model.net.dropout=0.2"),
        *("--explain.num_targets=5", "--explain.figures=0", "--explain.every_n_epochs=5"),
        *("--checkpoint.every_n_epochs=10", *arguments),
    ]


def curves(run: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    found = {}
    for tag in set(events.Tags()["scalars"]) - {"epoch"}:  # Lightning writes the epoch beside every group of scalars
        points = [(event.step, event.value) for event in events.Scalars(tag)]
        found[tag] = dict(points)
        assert len(points) == len(found[tag]), f"{tag} has a step twice"
    return found


def finish(arguments: list[str]) -> None:
    process = WarmCommand(arguments)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(command(whole))

    last = broken / "infection" / "version_0" / "checkpoints" / "last.ckpt"
    process = WarmCommand(command(broken))
    deadline = time.monotonic() + 120
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (last.parents[1] / "metrics.json").exists()

    finish(command(broken, f"--ckpt_path={last}"))
    assert [path.name for path in (broken / "infection").iterdir()] == ["version_0"]
    unbroken, resumed = (folder / "infection" / "version_0" for folder in (whole, broken))
    first, second = (json.loads((run / "metrics.json").read_text()) for run in (unbroken, resumed))
    for ends, same in ((first.pop(name), second.pop(name)) for name in ("intervals", "verdict")):
        assert same == ends
    expected, found = first, second
    for name, value in expected.items():
        if name != "explain/seconds":
            assert found[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name

    expected_curves, found_curves = curves(unbroken), curves(resumed)
    for tag in ("train/loss", "val/acc", "explain/gatt/truth_auroc", "explain/gatt/weight/pc_pearson"):
        assert found_curves[tag] == pytest.approx(expected_curves[tag], abs=1e-9, nan_ok=True), tag
