"""Allocates or reopens a run's folder, and locks it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from attree.errors import ArgumentError
from attree.io.lock import FolderLock

TRACES = ("events.out.tfevents.*", "config.yaml", "metrics*.json", "metrics.csv", "checkpoints/*")
"""What a run leaves in its folder."""


class RunLock:
    """The folders that the loggers of one run write to, claimed when it begins and locked until it ends.

    A logger without a version gets a new folder: `version_<n>` for a fit, `<command>_<n>` for what only reads a
    trained network, so that neither its curves nor its files mix with the fit's. Two commands that start at the same
    moment get different ones. A version that is given must be new, or the one that is resumed.

    Args:
        loggers: The loggers; those that have no such folders are left alone.
        command: The command that is run.
        resumed: Whether the fit goes on in a folder of its own.
    """

    def __init__(self, loggers: Iterable[Logger], command: str, resumed: bool) -> None:
        self.path: Path | None = None
        self._locks: list[FolderLock] = []
        self._made: list[Path] = []
        prefix = "version" if command == "fit" else command
        try:
            for logger in loggers:
                if isinstance(logger, TensorBoardLogger | CSVLogger) and "://" not in logger.root_dir:
                    folder = self._claim(logger, prefix, resumed)
                    self.path = self.path or folder
        except OSError as error:
            self.release()
            raise ArgumentError(f"The log folder {error.filename} cannot be written to: {error.strerror}.") from error
        except BaseException:
            self.release()
            raise

    def release(self, discard: bool = False) -> None:
        """Let others have the folders, and remove new ones in which nothing was written.

        Args:
            discard: Remove new folders whatever loggers have written there: the run was refused before it began.
        """
        for folder in self._made:
            if folder.is_dir() and (discard or not any(folder.iterdir())):
                shutil.rmtree(folder)
        for lock in self._locks:
            lock.release()
        self._made, self._locks = [], []

    def _claim(self, logger: TensorBoardLogger | CSVLogger, prefix: str, resumed: bool) -> Path:
        root = Path(logger.root_dir)
        if logger._version is None:
            folder = self._make_new(root, prefix)
            logger._version = folder.name
            self._lock(folder)
            return folder
        folder = Path(logger.log_dir) if isinstance(logger, CSVLogger) else root / _name(logger)
        self._lock(folder)
        if not resumed and any(found for trace in TRACES for found in folder.glob(trace)):
            raise ArgumentError(
                f"Expected argument `trainer.logger.version` to be a new one, but {folder} holds a run already: leave "
                "the version out, or go on with that run by --ckpt_path."
            )
        return folder

    def _make_new(self, root: Path, prefix: str) -> Path:
        """Make the next folder; whoever makes it first has it."""
        root.mkdir(parents=True, exist_ok=True)
        taken = [one.name.removeprefix(f"{prefix}_") for one in root.glob(f"{prefix}_*")]
        number = max((int(one) for one in taken if one.isdigit()), default=-1) + 1
        while True:
            folder = root / f"{prefix}_{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                self._made.append(folder)
                return folder

    def _lock(self, folder: Path) -> None:
        self._locks.append(FolderLock(folder).acquire())


def _name(logger: TensorBoardLogger) -> str:
    return logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
