"""The map in CONTRIBUTING.md is that of the tree: every file of the folders it lists, and no file that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attree

SOURCE = Path(attree.__file__).parent
TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
LISTED = {
    folder: re.findall(r"^\| `(\w+\.py)` \|", table, flags=re.MULTILINE)
    for folder, table in re.findall(r"^`([\w/]+)/`\n\n((?:\|.*\n)+)", TEXT, flags=re.MULTILINE)
}
"""The files of each folder that has a table of its own."""


@pytest.mark.parametrize("folder", ["attention", "subject", "faithfulness", "faithfulness/exact"])
def test_every_file_has_one_line(folder: str) -> None:
    files = [path.name for path in (SOURCE / folder).glob("*.py") if path.name != "__init__.py"]
    assert sorted(LISTED[folder]) == sorted(files)


def test_the_table_of_folders_has_every_folder_and_file() -> None:
    rows = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \| .* \|$", TEXT, flags=re.MULTILINE)
    names = {name.rstrip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)}
    top = {path.name for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert top - {"__init__.py"} <= names


def test_files_in_the_table_of_folders_exist() -> None:
    """A file that a row names is in the folder of this row, or its path is written from the package."""
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert rows
    gone = [
        f"{folder}/{name}"
        for folder, content in rows
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", content)
        if not any((parent / name).exists() for parent in (SOURCE / folder, SOURCE))
    ]
    assert gone == []
