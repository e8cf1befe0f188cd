"""The progress bar of loaders that have none."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from attree.data.datasets.third_party import fetch_progress, folder_size


def shown(folder: Path, terminal: bool = True) -> str:
    """What appears while 3,000 bytes arrive in a folder."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with fetch_progress("Cora", folder, console):
        (folder / "raw").mkdir(parents=True)
        (folder / "raw" / "part").write_bytes(b"x" * 3000)
        time.sleep(0.9)
    return out.getvalue()


def test_bytes_that_have_arrived_are_shown(tmp_path: Path) -> None:
    text = shown(tmp_path / "Cora")
    assert "fetching and reading Cora" in text
    assert "3.0 kB" in text


def test_nothing_is_shown_off_terminals_or_for_processed_data(tmp_path: Path) -> None:
    assert "Cora" not in shown(tmp_path / "piped", terminal=False)
    (tmp_path / "known" / "processed").mkdir(parents=True)
    assert "Cora" not in shown(tmp_path / "known")


def test_folder_size_counts_files_at_any_depth(tmp_path: Path) -> None:
    assert folder_size(tmp_path / "absent") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "two").write_bytes(b"123")
    assert folder_size(tmp_path) == 8


def test_folders_may_vanish_while_their_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, unpacked = tmp_path / "MUTAG", tmp_path / "MUTAG" / "unpacked"
    unpacked.mkdir(parents=True)
    (unpacked / "part").write_bytes(b"12345")
    (folder / "kept").write_bytes(b"123")
    scan = os.scandir

    def move_then_scan(path: str) -> object:
        if Path(path) == unpacked:
            unpacked.rename(tmp_path / "elsewhere")
        return scan(path)

    monkeypatch.setattr(os, "scandir", move_then_scan)
    assert folder_size(folder) == 3
    assert not unpacked.exists()
