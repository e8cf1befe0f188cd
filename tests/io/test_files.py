"""Files are written whole, with the rights that the umask gives."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from attree.cli import main
from attree.io.files import FolderLock, replacing
from helpers.cli import fit


@pytest.mark.long
@pytest.mark.parametrize("mask", [0o077, pytest.param(0o002, marks=pytest.mark.slow)])
def test_all_files_of_a_fit_and_its_explanations_have_the_rights_that_the_umask_gives(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(mask)
    try:
        run = fit(tmp_path)
        for arguments in (["explain", str(run), "--targets=1,2", "--figures=1"], ["fit", "--help"]):
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            assert not stop.value.code
        with FolderLock(tmp_path / "another"):
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            modes = {str(path.relative_to(tmp_path)): oct(stat.S_IMODE(path.stat().st_mode)) for path in files}
    finally:
        os.umask(before)
    assert len(modes) > 15
    assert {name: mode for name, mode in modes.items() if mode != oct(0o666 & ~mask)} == {}


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert [one.name for one in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "old"
