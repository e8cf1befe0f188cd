"""Every run has a folder of its own, whatever its logger."""

from __future__ import annotations

import json
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.loggers.logger import rank_zero_experiment

from attree.callbacks import ExplainCallback, LastCheckpoint
from attree.runs.run_folder import SaveConfig, run_folder
from helpers.small_fits import classifier, infection, trainer


class Remote(Logger):
    """What loggers of a service share: metrics go elsewhere."""

    def __init__(self, save_dir: Path | None) -> None:
        super().__init__()
        self._save_dir = save_dir

    @property
    def save_dir(self) -> str | None:
        return None if self._save_dir is None else str(self._save_dir)

    @property
    def name(self) -> str | None:
        return "project"

    @property
    def version(self) -> int | str | None:
        return None

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


class LikeWandb(Remote):
    """The id of a run exists once its experiment does; `save_dir` is one folder for all."""

    ids = map("{:04x}".format, count(0xB71C))

    def __init__(self, save_dir: Path | None) -> None:
        super().__init__(save_dir)
        self._id: str | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> object:
        self._id = self._id or next(self.ids)
        return self

    @property
    def version(self) -> int | str | None:
        return self._id


class LikeMLflow(LikeWandb):
    """Name and version are numbers of a server, and `save_dir` is None unless that is local."""

    @property
    def name(self) -> str | None:
        _ = self.experiment
        return "417"


@pytest.mark.parametrize(
    ("kind", "local"),
    [*product([LikeWandb, LikeMLflow, Remote], [True, False]), (CSVLogger, True)],
)
def test_a_second_run_leaves_the_first_alone(
    tmp_path: Path, kind: type, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept: dict[Path, bytes] = {}
    folders = set()
    data = infection()
    for epochs in (1, 2):
        logger = kind(tmp_path / "logs" if local else None)
        callbacks = [ExplainCallback(num_targets=5, figures=0), LastCheckpoint(), ModelCheckpoint()]
        callbacks.append(SaveConfig(f"epochs: {epochs}\n"))
        run = trainer(tmp_path, callbacks, epochs, logger=logger, default_root_dir=tmp_path / "root")
        run.fit(classifier(data), datamodule=data)
        folder = run_folder(run)
        assert folder is not None
        assert folder.is_relative_to(tmp_path / ("logs" if local else "root"))
        assert LastCheckpoint.path(run) == folder / "checkpoints" / "last.ckpt"
        for name in ("metrics.json", "explanations/gatt.npz", "checkpoints/last.ckpt"):
            assert (folder / name).is_file()
        assert (folder / "config.yaml").read_text() == f"epochs: {epochs}\n"
        if kind is not Remote:  # Lightning's own checkpoint is in the same folder
            assert len(list((folder / "checkpoints").glob("epoch=*.ckpt"))) == 1
        assert all(path.read_bytes() == content for path, content in kept.items())
        kept |= {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        folders.add(folder)
    assert len(folders) == 2


def test_a_folder_stays_the_same_while_its_logger_lives(tmp_path: Path) -> None:
    data, logger = infection(), Remote(tmp_path)
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0)], 1, logger=logger)
    run.fit(classifier(data), datamodule=data)
    assert run_folder(run) == tmp_path / "project" / "version_0"
    run.test(classifier(data), datamodule=data, verbose=False)
    assert json.loads((tmp_path / "project" / "version_0" / "test" / "metrics.json").read_text())
    assert run_folder(trainer(tmp_path, [], 1, logger=False)) is None
