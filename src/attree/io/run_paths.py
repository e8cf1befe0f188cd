"""Where a finished run is on disk: its folder, config and checkpoint. Nothing is read or imported for it.

So commands refuse a wrong path at once, before PyTorch is imported, and name the runs that were probably meant.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from attree.errors import MissingDataError

CHECKPOINT = Path("checkpoints", "last.ckpt")
"""The newest state of a run, in its folder."""

CONFIG = "config.yaml"
"""The resolved config of a run, in its folder."""

MAX_RUNS = 5
"""Maximum number of runs to name in a message."""


class RunPaths(NamedTuple):
    """The paths of a run.

    Attributes:
        folder: The run directory.
        config: Its config.
        checkpoint: Its checkpoint.
    """

    folder: Path
    config: Path
    checkpoint: Path


def run_of(checkpoint: Path) -> Path | None:
    """Return the run directory of a checkpoint; None if the checkpoint is not in one."""
    return checkpoint.resolve().parent.parent if checkpoint.parent.name == "checkpoints" else None


def find_run(path: Path, command: str = "") -> RunPaths:
    """Return the paths of a run; raise if files are missing, and name the runs inside the folder if there are some.

    Args:
        path: The run directory, such as `logs/infection/version_0`, or a checkpoint in it.
        command: The command that was typed, such as `attree explain`, for the message to repeat with a run.

    Raises:
        MissingDataError: The run, its config or its checkpoint does not exist.
    """
    # `os.path.isfile` is False for what cannot be a path (too long, a loop of links), where `Path` raises.
    is_file = os.path.isfile(path)
    folder = (run_of(path) or path) if is_file else path
    paths = RunPaths(folder, folder / CONFIG, path if is_file else folder / CHECKPOINT)
    for file in (paths.checkpoint, paths.config):
        if not os.path.isfile(file):
            raise MissingDataError(
                f"Expected {path} to be a run of `attree fit` or its checkpoint, but {file} is not a file."
                f"{_offer(runs_inside(path), command)}"
            )
    return paths


def runs_inside(folder: Path) -> list[Path]:
    """Return the runs in a folder and in its folders, the newest first."""
    try:
        checkpoints = [file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{CHECKPOINT}")]
        newest_first = sorted(checkpoints, key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [file.parent.parent for file in newest_first]


def _offer(runs: list[Path], command: str) -> str:
    """Return a sentence that names runs, the newest first; empty if there are none."""
    if not runs:
        return ""
    others = ", ".join(map(str, runs[1:MAX_RUNS])) + (", ..." if len(runs) > MAX_RUNS else "")
    if command:
        return f" Try: {command} {runs[0]}" + (f" (also there: {others})" if others else "")
    return f" It holds the runs {', '.join(map(str, runs[:MAX_RUNS]))}: name one of them."
