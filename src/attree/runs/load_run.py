"""Load a finished run: its network with the trained weights, its data, its config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from attree.errors import ArgumentError, MissingDataError, expect
from attree.io.yaml_files import read_yaml
from attree.runs.checkpoint import mismatch, read_checkpoint, run_of
from attree.runs.classes import build_run


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, loaded from disk.

    Attributes:
        folder: The run directory.
        config: The resolved config.
        module: The LightningModule with the weights of the checkpoint, in eval mode.
        data: The data module, made as in the run: the same seed, the same graph, the same split.
    """

    folder: Path
    config: dict[str, Any]
    module: LightningModule
    data: LightningDataModule

    @property
    def net(self) -> nn.Module:
        """The network inside the module, if it has one, else the module."""
        net = getattr(self.module, "net", None)
        return net if isinstance(net, nn.Module) else self.module


def load_run(path: str | Path, allow: Sequence[str] = ()) -> FinishedRun:
    """Load a finished run of `attree fit`, without running code from its files.

    A run's config names classes. Attree's classes are always allowed. Any other class must be allowed by name, because
    the config decides which arguments it is called with. The checkpoint is read as tensors and plain values only.

    Args:
        path: The run directory, such as `logs/infection/version_0`, or a checkpoint `.../checkpoints/last.ckpt` in it.
        allow: Import paths of other classes that the run may use, as written in its config:
            `["mypkg.MyModule", "torch_geometric.nn.GAT"]`.

    Raises:
        ArgumentError: The config names a class that is not allowed.
        MissingDataError: The run, its config or its checkpoint does not exist.

    .. code-block:: python

        run = attree.load_run("logs/infection/version_0")
        print(attree.evaluate(run.net, run.data.graph, num_targets=20))
    """
    expect(isinstance(path, str | Path), "path", "a run's folder or checkpoint", path)
    is_list = isinstance(allow, Sequence) and not isinstance(allow, str)
    are_names = is_list and all(isinstance(name, str) for name in allow)
    expect(are_names, "allow", 'import paths of classes, as ["mypkg.MyModule"]', allow)
    path = Path(path)
    checkpoint = path if os.path.isfile(path) else path / "checkpoints" / "last.ckpt"
    # `os.path.isfile` is False for what cannot be a path (too long, a loop of links), where `Path` raises.
    folder = (run_of(checkpoint) if os.path.isfile(checkpoint) else None) or path
    config_file = folder / "config.yaml"
    for file in (checkpoint, config_file):
        if not os.path.isfile(file):
            raise MissingDataError(
                f"Expected {path} to be a run of `attree fit` or its checkpoint, but {file} is not a file."
                f"{_runs_inside(path)}"
            )
    config = read_yaml(config_file)
    if not isinstance(config, dict) or not {"model", "data"} <= set(config):
        raise ArgumentError(f"Expected {config_file} to be a run's config, with `model` and `data`, but it is not.")
    data, module = build_run(config, config_file, allow)
    if not (isinstance(data, LightningDataModule) and isinstance(module, LightningModule)):
        raise ArgumentError(
            f"Expected {config_file} to name a LightningDataModule and a LightningModule, but it names "
            f"{type(data).__name__} and {type(module).__name__}."
        )
    state = read_checkpoint(checkpoint)["state_dict"]
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise mismatch(error, str(checkpoint)) from error
    return FinishedRun(folder, config, module.eval(), data)


def _runs_inside(folder: Path) -> str:
    """Return a sentence with the runs in a folder, the newest first; empty if there are none."""
    try:
        runs = [file.parent.parent for file in folder.glob("*/checkpoints/last.ckpt")]
        newest_first = sorted(runs, key=lambda run: -(run / "checkpoints" / "last.ckpt").stat().st_mtime)
    except OSError:
        return ""
    if not newest_first:
        return ""
    return f" It holds the runs {', '.join(map(str, newest_first))}: name one of them."
