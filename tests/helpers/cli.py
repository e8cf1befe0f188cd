"""Tiny runs of the `attree` command, in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from attree.cli import main
from attree.cli.commands import COMMANDS
from attree.cli.failure import one_line_errors

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = [
    "--data.num_nodes=200",
    "--data.edge_probability=0.01",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--explain.figures=0",
    "--explain.num_targets=5",
]
"""A small graph, no pictures; one epoch takes milliseconds."""


def tiny(command: str, folder: Path, *arguments: str) -> list[str]:
    """The arguments of a tiny Infection run that logs to `folder`."""
    config = f"--config={CONFIGS / 'infection.yaml'}"
    return [command, config, *TINY, "--trainer.max_epochs=2", f"--trainer.logger.save_dir={folder}", *arguments]


def run(command: str, folder: Path, *arguments: str) -> None:
    """Do a tiny run in this process."""
    main(tiny(command, folder, *arguments))


def fit(folder: Path, *arguments: str) -> Path:
    """Do a tiny fit in this process, and return the folder of the newest run."""
    run("fit", folder, *arguments)
    return sorted((folder / "infection").glob("version_*"))[-1]


def empty_run(folder: Path) -> Path:
    """Make what looks like a run until it is read, for commands that must get that far; returns its folder."""
    run_folder = folder / "logs" / "run"
    (run_folder / "checkpoints").mkdir(parents=True)
    for file in ("config.yaml", "checkpoints/last.ckpt"):
        (run_folder / file).touch()
    return run_folder


def command(*given: str, **more: Any) -> int:
    """Run a command of `attree` in this process, and return its exit status.

    Args:
        given: What is typed behind `attree`.
        more: Arguments of the command's function that nobody types.
    """
    try:
        with one_line_errors():
            return COMMANDS[given[0]].run(list(given), **more)
    except SystemExit as stop:
        return int(stop.code or 0)


def files(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder, with its content."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run `attree` with arguments that it must refuse, and return the one line it says."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return only_line(capsys.readouterr().err)


def only_line(errors: str) -> str:
    """The one line on standard error, beside what Lightning says of every run."""
    noise = r"^\s*$|(INFO: )?(Seed set|[GTH]PU available|Restoring states|Loaded model|`Trainer.fit` stopped)"
    lines = [line for line in errors.splitlines() if not re.match(noise, line)]
    assert len(lines) == 1, errors
    assert lines[0].startswith("attree: error: ")
    return lines[0]
