"""A fit that is told to end says how to go on, and does not look as if it had finished."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path

import pytest
import torch

from attree.cli import main
from helpers.cli import tiny
from helpers.processes import WarmCommand
from helpers.time_limit import SECONDS

ENDLESS = ["--trainer.max_epochs=1000000", "--checkpoint.every_n_epochs=1", "--explain.every_n_epochs=0"]
PROCESSES = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.enable_progress_bar=true"]


def stop(arguments: list[str], number: signal.Signals, when: Path) -> tuple[int, list[str]]:
    """Start `attree`, signal it when a file is there; return its status and its words."""
    process = WarmCommand(arguments)
    deadline = time.monotonic() + SECONDS
    while not when.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    try:
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert "Traceback" not in errors
    assert process.returncode is not None
    return process.returncode, [line for line in errors.splitlines() if line.startswith("attree: ")]


@pytest.mark.parametrize(
    ("number", "status", "name", "processes"),
    [
        (signal.SIGTERM, 143, "SIGTERM", []),
        (signal.SIGINT, 130, "Ctrl-C", []),
        pytest.param(signal.SIGTERM, 143, "SIGTERM", PROCESSES, marks=pytest.mark.long),
    ],
    ids=["SIGTERM", "Ctrl-C", "SIGTERM, two processes"],
)
def test_the_line_that_is_printed_goes_on(
    number: signal.Signals, status: int, name: str, processes: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "logs" / "infection" / "version_0"
    last = run / "checkpoints" / "last.ckpt"
    arguments = tiny("fit", tmp_path / "logs", *ENDLESS, *processes)
    found, lines = stop(arguments, number, last)
    assert found == status
    assert len(lines) == 1
    assert lines[0].startswith(f"attree: stopped by {name}; resume with: attree fit --config=")
    assert lines[0].endswith(f" --ckpt_path {last}")
    assert not (run / "metrics.json").exists()
    assert [path.name for path in run.parent.iterdir()] == ["version_0"]  # its lock is gone
    if not processes:
        command = shlex.split(lines[0].partition("resume with: attree ")[2])
        epochs = torch.load(last, weights_only=True)["epoch"] + 2
        main([*command, f"--trainer.max_epochs={epochs}"])
        assert (run / "metrics.json").exists()


def test_before_the_first_checkpoint_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    config = tmp_path / "infection" / "version_0" / "config.yaml"
    endless = ["--trainer.max_epochs=1000000", "--checkpoint.every_n_epochs=1000000", "--explain.every_n_epochs=0"]
    status, lines = stop(tiny("fit", tmp_path, *endless), signal.SIGTERM, config)
    assert status == 143
    assert lines == ["attree: stopped by SIGTERM; no checkpoint was written yet, so the run cannot be resumed."]
