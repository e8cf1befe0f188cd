"""Load a finished run (network, weights, data, config) and its checkpoints, which are checked before use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn

from attree.errors import ArgumentError, expect
from attree.io.files import zip_damage
from attree.io.run_paths import find_run, run_of
from attree.io.yaml_files import read_yaml
from attree.runs.classes import LINKS, build_run

NEEDED = ("state_dict", "epoch", "global_step", "pytorch-lightning_version")
"""Keys that Lightning reads from every checkpoint."""


def read_checkpoint(path: str | Path, needed: tuple[str, ...] = NEEDED) -> dict[str, Any]:
    """Read a checkpoint without running code from it, and check that it is complete."""
    if not Path(path).is_file():
        _refuse(path, "a checkpoint file", "which does not exist" + _why_not(str(path)))
    with Path(path).open("rb") as stream:  # errors of the system are not about the file's content
        is_zip = stream.read(2) == b"PK"
    damage = zip_damage(Path(path)) if is_zip else None
    if damage is not None:
        _refuse(path, "a whole checkpoint file", f"which is cut off or damaged ({damage}): use another checkpoint")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        _refuse(path, "a checkpoint of tensors and plain values alone", cause=error)
    except Exception as error:  # torch raises any error on damaged bytes, also OSError
        _refuse(path, "a checkpoint file", "which is empty, cut off or damaged", cause=error)
    missing = [name for name in needed if not isinstance(content, Mapping) or name not in content]
    if missing:
        _refuse(path, "a checkpoint of Lightning", f"which has no `{missing[0]}`")
    return dict(content)


def mismatch(error: Exception, path: str) -> ArgumentError:
    """Return the error for a checkpoint whose weights do not fit the network."""
    first = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
    if key_error := re.match(r'(Missing|Unexpected) key\(s\) in state_dict: "([^"]+)"', first):
        has, has_not = ("this network", "it") if key_error[1] == "Missing" else ("it", "this network")
        first = f"{has} has {key_error[2]}, {has_not} has not."
    config = (run_of(Path(path)) or Path()) / "config.yaml"
    hint = f" Its own config is {config}." if config.is_file() else ""
    return ArgumentError(
        f"Expected argument `ckpt_path` to be a checkpoint of this network, but {path} is of another one: {first}{hint}"
    )


def _why_not(path: str) -> str:
    """Return a hint on Lightning's names for checkpoints that only the process that wrote them knows."""
    return ": in a new process a file has to be named" if path in ("best", "last", "hpc") else ""


def _refuse(path: str | Path, expected: str, reason: str = "", cause: Exception | None = None) -> NoReturn:
    actual = f"{str(path)!r}, {reason}" if reason else f"{str(path)!r}"
    raise ArgumentError(f"Expected argument `ckpt_path` to be {expected}, but got {actual}.") from cause


PARTS = ("data", "model", "optimizer", "lr_scheduler")
"""Parts of the config that a run's numbers depend on, besides the seed."""

MAY_DIFFER = ("data.root", "data.num_workers")
"""Settings that do not change a run's numbers."""


def resume_logger(logger: Any, checkpoint: Path, step: int) -> bool:
    """Make a TensorBoard logger continue the checkpoint's run, without points after `step`; False if it cannot."""
    run = run_of(checkpoint)
    if run is None or not str(getattr(logger, "class_path", "")).endswith("TensorBoardLogger"):
        return False
    logger.init_args.save_dir, logger.init_args.name = str(run.parent.parent), run.parent.name
    logger.init_args.version = run.name
    logger["dict_kwargs"] = {"purge_step": step}
    return True


def check_same_run(config: Mapping[str, Any], path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other data, another network or another optimiser.

    The settings are compared with the run's `config.yaml`, or, if the checkpoint was moved, with the hyperparameters in
    the checkpoint. Settings of the trainer, the explanations and the checkpoints may differ.

    Args:
        config: The config of this command.
        path: The checkpoint file.
        checkpoint: Its content.
    """
    now, before = settings(config), settings(_config_of(path, checkpoint))
    differing = [
        f"{key} is {now[key]!r} ({before[key]!r} in the run)"
        for key in now
        if key in before and now[key] != before[key] and key not in MAY_DIFFER and not _is_of_the_data(key, now[key])
    ]
    if differing:
        raise ArgumentError(
            f"Expected the settings of the run that {path} resumes, but {', '.join(differing)}: "
            "a run keeps its settings. Start a new run without --ckpt_path, or use the run's settings."
        )


def _is_of_the_data(key: str, value: Any) -> bool:
    """Whether a setting is a width of the network that is taken from the data."""
    *_, part, argument = ["", *key.split(".")]
    return value is None and argument in LINKS.get(part, ())


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's numbers depend on, by dotted name: data, model, optimiser and seed.

    >>> settings({"seed_everything": True, "model": {"class_path": "A", "init_args": {"lr": 0.1}}, "explain": {}})
    {'model': 'A', 'model.lr': 0.1}
    """
    by_name = {f"{part}{key}": value for part in PARTS for key, value in _flat(config.get(part))}
    seed = config.get("seed_everything")
    return by_name if seed is None or isinstance(seed, bool) else {**by_name, "seed_everything": seed}


def _flat(content: Any) -> list[tuple[str, Any]]:
    """Return pairs of `.dotted.name` and value of nested mappings, without `class_path`, `init_args`, `dict_kwargs`."""
    if not isinstance(content, Mapping):
        return []
    pairs = []
    for name, value in content.items():
        step = "" if name in ("class_path", "init_args", "dict_kwargs") else f".{name}"
        pairs += [(step + key, item) for key, item in _flat(value)] if isinstance(value, Mapping) else [(step, value)]
    return pairs


def _config_of(path: Path, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    run = run_of(path)
    if run is not None and (run / "config.yaml").is_file():
        return dict(read_yaml(run / "config.yaml"))
    parts = {"model": "hyper_parameters", "data": "datamodule_hyper_parameters"}
    return {part: _config_of_hyperparameters(checkpoint.get(key) or {}) for part, key in parts.items()}


def _config_of_hyperparameters(content: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {name: value for name, value in content.items() if not name.startswith("_")}
    return {"class_path": content.get("_class_path"), "init_args": arguments}


def nothing_left(checkpoint: Mapping[str, Any], trainer: Trainer) -> str | None:
    """Return a message if the run has already trained for the trainer's epochs or steps; None if it has not.

    Args:
        checkpoint: The content of the checkpoint.
        trainer: The trainer that would resume the run.
    """
    progress = checkpoint.get("loops", {}).get("fit_loop", {}).get("epoch_progress", {}).get("current", {})
    done = {"max_epochs": int(progress.get("processed", 0)), "max_steps": int(checkpoint["global_step"])}
    for limit, reached in done.items():
        most = getattr(trainer, limit)
        if most is not None and 0 <= most <= reached:
            unit = limit.removeprefix("max_")
            return (
                f"Nothing to do: this run has trained {reached} {unit}, and the limit is {most}. "
                f"To train longer, raise it: --trainer.{limit} {2 * reached}"
            )
    return None


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
    folder, config_file, checkpoint = find_run(Path(path))
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
