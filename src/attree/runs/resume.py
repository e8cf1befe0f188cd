"""Going on with a run: in its own folder, and as what it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attree.errors import ArgumentError
from attree.io.yaml_files import read_yaml
from attree.runs.checkpoint import run_of
from attree.runs.classes import LINKS

PARTS = ("data", "model", "optimizer", "lr_scheduler")
"""What a run's numbers depend on, beside its seed."""

MAY_DIFFER = ("data.root", "data.num_workers")
"""Arguments of data and model that have no say in what is computed."""


def resume_logger(logger: Any, checkpoint: Path, step: int) -> bool:
    """Point a TensorBoard logger's config at a checkpoint's run, to forget what came after it; False if it cannot."""
    run = run_of(checkpoint)
    if run is None or not str(getattr(logger, "class_path", "")).endswith("TensorBoardLogger"):
        return False
    logger.init_args.save_dir, logger.init_args.name = str(run.parent.parent), run.parent.name
    logger.init_args.version = run.name
    logger["dict_kwargs"] = {"purge_step": step}
    return True


def check_same_run(asked: Mapping[str, Any], path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Refuse settings that a resumed run cannot take up: its data, network and optimiser are those it began with.

    They are compared with the run's `config.yaml`, or, if the checkpoint has been moved away from it, with what
    the checkpoint says of itself. Settings of the trainer, the explanations and the checkpoints may differ.

    Args:
        asked: The config of this command.
        path: The checkpoint's file.
        checkpoint: Its content.
    """
    now, before = settings(asked), settings(_config_of(path, checkpoint))
    differing = [
        f"{key} is {now[key]!r} ({before[key]!r} in the run)"
        for key in now
        if key in before and now[key] != before[key] and key not in MAY_DIFFER and not _is_of_the_data(key, now[key])
    ]
    if differing:
        raise ArgumentError(
            f"Expected the settings of the run that {path} resumes, but {', '.join(differing)}: "
            "what a run has learned belongs to them. Start a new run without --ckpt_path, or leave them as they were."
        )


def _is_of_the_data(key: str, value: Any) -> bool:
    """Whether a setting is a size of the network that the data decides, once it is read."""
    *_, part, argument = ["", *key.split(".")]
    return value is None and argument in LINKS.get(part, ())


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run what it is, by dotted name: data, model, and the seed if it is a number.

    >>> settings({"seed_everything": True, "model": {"class_path": "A", "init_args": {"lr": 0.1}}, "explain": {}})
    {'model': 'A', 'model.lr': 0.1}
    """
    found = {f"{part}{key}": value for part in PARTS for key, value in _flat(config.get(part))}
    seed = config.get("seed_everything")
    return found if seed is None or isinstance(seed, bool) else {**found, "seed_everything": seed}


def _flat(content: Any) -> list[tuple[str, Any]]:
    """Pairs of `.dotted.name` and value of nested mappings, without the words that only a config needs."""
    if not isinstance(content, Mapping):
        return []
    pairs = []
    for name, value in content.items():
        step = "" if name in ("class_path", "init_args", "dict_kwargs") else f".{name}"
        pairs += [(step + key, one) for key, one in _flat(value)] if isinstance(value, Mapping) else [(step, value)]
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
