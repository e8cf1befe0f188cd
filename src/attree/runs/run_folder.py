"""Where the files of a run are kept: one folder for each run, whatever its logger."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn

_NUMBERED: WeakKeyDictionary[Logger, Path] = WeakKeyDictionary()
"""Folders that were numbered here, by the logger that has no version of its own."""


def is_logger(logger: Any, *kinds: str) -> bool:
    """Whether a logger's class, or one that it derives from, has one of these names.

    By name, so that `lightning` and `pytorch_lightning` are alike, and nothing is imported that the user does not have.
    """
    return any(base.__name__ in kinds for base in type(logger).__mro__)


def flush_logger(logger: Any) -> None:
    """Have a logger write all that it was given to disk."""
    logger.save()
    if is_logger(logger, "TensorBoardLogger"):
        logger.experiment.flush()


def run_folder(trainer: Trainer) -> Path | None:
    """The folder of a trainer's run, the same in all processes; None without a logger, as with `fast_dev_run`.

    TensorBoard's and the CSV logger name it themselves. For any other logger it is `save_dir/name/version`, which is
    where Lightning puts such a run's checkpoints; a W&B run's version is its id, an MLflow run's too. (`save_dir`
    alone, Lightning's `trainer.log_dir`, is one folder for all runs.) A logger without a version gets the next free
    number.

    To be asked in all processes, as the first one's answer goes to all.
    """
    if not trainer.loggers or is_logger(trainer.loggers[0], "DummyLogger"):
        return None
    own = str(_folder_of(trainer.loggers[0], Path(trainer.default_root_dir))) if trainer.is_global_zero else ""
    return Path(trainer.strategy.broadcast(own))


def stage_folder(trainer: Trainer) -> Path | None:
    """Where what a call came to is saved: a fit's in the run's folder, others' in its `validate` and `test` folders."""
    folder, stage = run_folder(trainer), trainer.state.fn
    return folder if folder is None or stage in (None, TrainerFn.FITTING) else folder / str(stage.value)


def _folder_of(logger: Logger, root: Path) -> Path:
    if is_logger(logger, "TensorBoardLogger", "CSVLogger"):
        return Path(str(logger.log_dir))
    experiments = Path(logger.save_dir or root) / str(logger.name or "")
    version = logger.version
    if version is not None and version != "":
        return experiments / (version if isinstance(version, str) else f"version_{version}")
    if logger not in _NUMBERED:
        taken = {path.name for path in experiments.glob("version_*")}
        number = next(k for k in range(len(taken) + 1) if f"version_{k}" not in taken)
        _NUMBERED[logger] = experiments / f"version_{number}"
        _NUMBERED[logger].mkdir(parents=True, exist_ok=True)
    return _NUMBERED[logger]
