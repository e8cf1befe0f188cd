"""A finished run back in one line: its network with the trained weights, its data, its config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from attree.cli.checkpoint import mismatch, read_checkpoint, run_of
from attree.errors import ArgumentError, MissingDataError
from attree.yaml_files import read_yaml


@dataclass(frozen=True)
class FinishedRun:
    """What a run leaves behind.

    Attributes:
        folder: Its folder.
        config: Its config, as it was resolved.
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


def load_run(path: str | Path) -> FinishedRun:
    """Load a finished run of `attree fit`.

    Args:
        path: Its folder, such as `logs/infection/version_0`, or a checkpoint `.../checkpoints/last.ckpt` in it.

    Raises:
        MissingDataError: There is no such run, or its config or checkpoint is gone.
    """
    path = Path(path)
    checkpoint = path if path.is_file() else path / "checkpoints" / "last.ckpt"
    folder = run_of(checkpoint) or path
    config_file = folder / "config.yaml"
    for needed in (checkpoint, config_file):
        if not needed.is_file():
            raise MissingDataError(
                f"Expected {path} to be a run of `attree fit` or its checkpoint, but {needed} is no file."
            )
    config = read_yaml(config_file)
    if not isinstance(config, dict) or not {"model", "data"} <= set(config):
        raise ArgumentError(f"Expected {config_file} to be a run's config, with `model` and `data`, but it is not.")
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    for source, target in (("num_features", "in_channels"), ("num_classes", "out_channels")):
        parser.link_arguments(f"data.{source}", f"model.init_args.net.init_args.{target}", apply_on="instantiate")
    wanted = {"data": config["data"], "model": config["model"]}
    for target in ("in_channels", "out_channels"):  # what the data gives
        wanted["model"].get("init_args", {}).get("net", {}).get("init_args", {}).pop(target, None)
    made = parser.instantiate_classes(parser.parse_object(wanted))
    state = read_checkpoint(checkpoint)["state_dict"]
    try:
        made.model.load_state_dict(state)
    except RuntimeError as error:
        raise mismatch(error, str(checkpoint)) from error
    return FinishedRun(folder, config, made.model.eval(), made.data)
