"""Each run has a folder of its own."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from attree.errors import ArgumentError
from attree.io.files import FolderLock
from attree.runs.run_folder import RunLock
from helpers.cli import files, refusal, run, tiny
from helpers.processes import fork_server


def claim(folder: Path, name: str, both: Barrier) -> None:
    """Claim many folders, at the same time as the other process, and note them."""
    both.wait(60)
    with (folder / name).open("w") as notes:
        for _ in range(40):
            claimed = RunLock([TensorBoardLogger(folder, name="runs")], "fit", False)
            (claimed.path / "mine").touch()
            print(claimed.path, file=notes)


def test_versions_claimed_at_the_same_moment_differ(tmp_path: Path) -> None:
    context = fork_server()
    both = context.Barrier(2)
    claimers = [context.Process(target=claim, args=(tmp_path, name, both)) for name in ("one", "other")]
    for claimer in claimers:
        claimer.start()
    for claimer in claimers:
        claimer.join(60)
        assert claimer.exitcode == 0
    claimed = [line for name in ("one", "other") for line in (tmp_path / name).read_text().split()]
    assert len(claimed) == len(set(claimed)) == 80
    assert set(claimed) == {str(tmp_path / "runs" / f"version_{number}") for number in range(80)}


@pytest.mark.parametrize("logger_class", [TensorBoardLogger, CSVLogger])
def test_folders_by_command(logger_class: type, tmp_path: Path) -> None:
    for command, expected in (("fit", "version_0"), ("test", "test_0"), ("test", "test_1"), ("fit", "version_1")):
        logger = logger_class(tmp_path, name="runs")
        folder = RunLock([logger], command, False)
        assert folder.path is not None
        assert folder.path.name == expected
        assert Path(logger.log_dir) == folder.path
        (folder.path / "something").touch()
        folder.release()


def test_a_folder_in_which_nothing_was_written_goes(tmp_path: Path) -> None:
    RunLock([TensorBoardLogger(tmp_path, name="runs")], "fit", False).release()
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("version", ["version_0", "0"])
def test_a_version_that_holds_a_run_is_refused(version: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trained / "infection" / "version_0"
    before = files(trained)
    line = refusal(tiny("fit", trained, f"--trainer.logger.version={version}"), capsys)
    assert f"{first} holds a run already" in line
    line = refusal(
        tiny("test", trained, f"--trainer.logger.version={version}", f"--ckpt_path={first}/checkpoints/last.ckpt"),
        capsys,
    )
    assert f"{first} holds a run already" in line
    assert files(trained) == before


def test_a_given_version_that_is_new_is_taken(tmp_path: Path) -> None:
    (tmp_path / "infection" / "mine").mkdir(parents=True)
    (tmp_path / "infection" / "mine" / "output.log").touch()
    run("fit", tmp_path, "--trainer.logger.version=mine")
    assert (tmp_path / "infection" / "mine" / "metrics.json").is_file()


def test_a_folder_in_use_is_refused(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = logs / "infection" / "version_0"
    before = files(first)
    with FolderLock(first):
        resume = f"--ckpt_path={first / 'checkpoints' / 'last.ckpt'}"
        assert f"{first} is in use by" in refusal(tiny("fit", logs, resume, "--trainer.max_epochs=4"), capsys)
    with FolderLock(logs / "infection" / "mine"):
        line = refusal(tiny("fit", logs, "--trainer.logger.version=mine"), capsys)
        assert f"{logs / 'infection' / 'mine'} is in use by" in line
    assert files(first) == before


def test_several_loggers_are_claimed_together_or_not_at_all(tmp_path: Path) -> None:
    table, curves = CSVLogger(tmp_path, name="table"), TensorBoardLogger(tmp_path, name="curves", version="mine")
    with FolderLock(tmp_path / "curves" / "mine"), pytest.raises(ArgumentError, match="in use"):
        RunLock([table, curves], "fit", False)
    assert list((tmp_path / "table").iterdir()) == []
