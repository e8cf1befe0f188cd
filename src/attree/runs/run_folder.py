"""The run directory: its path, its lock, and the config that is saved in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn

from attree.errors import ArgumentError
from attree.io.files import FolderLock, write_text

_NUMBERED: WeakKeyDictionary[Logger, Path] = WeakKeyDictionary()
"""Run directories that were numbered here, by logger, for loggers without a version."""


def is_logger(logger: Any, *kinds: str) -> bool:
    """Whether the class of a logger, or one of its base classes, has one of these names.

    Names are compared, so that `lightning` and `pytorch_lightning` are treated equally, and no missing package is
    imported.
    """
    return any(base.__name__ in kinds for base in type(logger).__mro__)


def flush_logger(logger: Any) -> None:
    """Make a logger write all buffered data to disk."""
    logger.save()
    if is_logger(logger, "TensorBoardLogger"):
        logger.experiment.flush()


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run directory of a trainer, the same in all processes; None without a logger, as with `fast_dev_run`.

    TensorBoard's and the CSV logger choose it themselves. For any other logger it is `save_dir/name/version`, where
    Lightning also saves its checkpoints; for W&B and MLflow, the version is the run's id. (Lightning's
    `trainer.log_dir` would be `save_dir`, the same for all runs.) A logger without a version gets the next free number.

    All processes must call this together: the first one broadcasts its path.
    """
    if not trainer.loggers or is_logger(trainer.loggers[0], "DummyLogger"):
        return None
    folder = str(_folder_of(trainer.loggers[0], Path(trainer.default_root_dir))) if trainer.is_global_zero else ""
    return Path(trainer.strategy.broadcast(folder))


def stage_folder(trainer: Trainer) -> Path | None:
    """Return the folder for a call's results: the run directory for `fit`, else its subfolder `validate` or `test`."""
    folder, stage = run_folder(trainer), trainer.state.fn
    return folder if folder is None or stage in (None, TrainerFn.FITTING) else folder / str(stage.value)


def _folder_of(logger: Logger, root: Path) -> Path:
    """Return the run directory of a logger; for a logger without a version, create `version_<n>` with a free number."""
    if is_logger(logger, "TensorBoardLogger", "CSVLogger"):
        return Path(str(logger.log_dir))
    experiments = Path(logger.save_dir or root) / str(logger.name or "")
    version = logger.version
    if version is not None and version != "":
        return experiments / (version if isinstance(version, str) else f"version_{version}")
    if logger not in _NUMBERED:
        existing = {path.name for path in experiments.glob("version_*")}
        number = next(k for k in range(len(existing) + 1) if f"version_{k}" not in existing)
        _NUMBERED[logger] = experiments / f"version_{number}"
        _NUMBERED[logger].mkdir(parents=True, exist_ok=True)
    return _NUMBERED[logger]


TRACES = ("events.out.tfevents.*", "config.yaml", "metrics*.json", "metrics.csv", "checkpoints/*")
"""Patterns of the files in a run directory."""


class RunLock:
    """Allocates or reopens the run directories of a run's loggers, and locks them until the run ends.

    A logger without a version gets a new directory: `version_<n>` for a fit, `<command>_<n>` for other commands, so
    that their curves and files do not mix with the fit's. Two commands that start at the same moment get different
    directories. A given version must be new, or the one that is resumed.

    Args:
        loggers: The loggers. Loggers other than TensorBoard's and the CSV logger are ignored.
        command: The command that is run.
        resumed: Whether a fit is resumed in its directory.
    """

    def __init__(self, loggers: Iterable[Logger], command: str, resumed: bool) -> None:
        self.path: Path | None = None
        self._locks: list[FolderLock] = []
        self._new_folders: list[Path] = []
        prefix = "version" if command == "fit" else command
        try:
            for logger in loggers:
                if isinstance(logger, TensorBoardLogger | CSVLogger) and "://" not in logger.root_dir:
                    folder = self._claim(logger, prefix, resumed)
                    self.path = self.path or folder
        except OSError as error:
            self.release()
            where = error.filename or "of the run"
            raise ArgumentError(f"The log folder {where} cannot be written to: {error.strerror}.") from error
        except BaseException:
            self.release()
            raise

    def release(self, discard: bool = False) -> None:
        """Unlock the directories, and remove new ones that are empty.

        Args:
            discard: Remove new directories with their content, because the run was refused before it began.
        """
        for folder in self._new_folders:
            if folder.is_dir() and (discard or not any(folder.iterdir())):
                shutil.rmtree(folder)
        for lock in self._locks:
            lock.release()
        self._new_folders, self._locks = [], []

    def _claim(self, logger: TensorBoardLogger | CSVLogger, prefix: str, resumed: bool) -> Path:
        """Return the run directory of a logger, locked; raise if the directory holds a run that is not resumed."""
        root = Path(logger.root_dir)
        if logger._version is None:
            folder = self._make_new(root, prefix)
            logger._version = folder.name
            self._lock(folder)
            return folder
        folder = Path(logger.log_dir) if isinstance(logger, CSVLogger) else root / _version_name(logger)
        self._lock(folder)
        if not resumed and any(path for trace in TRACES for path in folder.glob(trace)):
            raise ArgumentError(
                f"Expected argument `trainer.logger.version` to be a new one, but {folder} holds a run already: leave "
                "the version out, or resume that run with --ckpt_path."
            )
        return folder

    def _make_new(self, root: Path, prefix: str) -> Path:
        """Create the directory with the next free number. If another process creates it first, try the next number."""
        root.mkdir(parents=True, exist_ok=True)
        suffixes = [path.name.removeprefix(f"{prefix}_") for path in root.glob(f"{prefix}_*")]
        number = max((int(suffix) for suffix in suffixes if suffix.isdigit()), default=-1) + 1
        while True:
            folder = root / f"{prefix}_{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                self._new_folders.append(folder)
                return folder

    def _lock(self, folder: Path) -> None:
        self._locks.append(FolderLock(folder).acquire())


def _version_name(logger: TensorBoardLogger) -> str:
    return logger.version if isinstance(logger.version, str) else f"version_{logger.version}"


class SaveConfig(Callback):
    """Writes the resolved config to `config.yaml` in the run directory, and shows it as a text card in TensorBoard.

    It is written when the run begins, after the checkpoint's weights were loaded, so that a refused command does not
    overwrite the config of the run it would have resumed.

    Args:
        text: The config.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                logger.experiment.add_text("config", "\n".join(f"    {line}" for line in self.text.splitlines()))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.validating:
            self._write(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        folder = run_folder(trainer)  # all processes must call this
        if folder is not None and trainer.is_global_zero:
            write_text(folder / "config.yaml", self.text)
