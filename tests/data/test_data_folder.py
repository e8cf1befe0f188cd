"""Where data modules look for files: an explicit root, then the variable, then `data`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attree.cli import main
from attree.data import HIN, MUTAG, Arxiv, BAShapes, DatasetModule, Infection, Planetoid, WebKB
from attree.errors import MissingDataError


@pytest.mark.parametrize(
    "make",
    [
        HIN,
        MUTAG,
        Arxiv,
        BAShapes,
        Infection,
        lambda **root: Planetoid("Cora", **root),
        lambda **root: WebKB("Texas", **root),
    ],
)
def test_an_explicit_root_comes_before_the_variable_and_that_before_the_default(
    make: Callable[..., DatasetModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATTREE_DATA", raising=False)
    assert make().root == Path("data")
    assert make(root="mine").root == Path("mine")
    monkeypatch.setenv("ATTREE_DATA", "/elsewhere")
    assert make().root == Path("/elsewhere")
    assert make(root="data").root == Path("data")
    monkeypatch.setenv("ATTREE_DATA", "")
    assert make().root == Path("data")


def test_files_are_read_from_the_folder_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTREE_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=str(tmp_path / "gatt_paper" / "ba_shapes.npz")):
        BAShapes(source="authors").setup("fit")
    (tmp_path / "hin").mkdir()
    np.savez(tmp_path / "hin" / "hin.npz", x=np.zeros((2, 5)))
    with pytest.raises(Exception, match="node_ptr"):  # the file is found, and is none
        HIN().setup("fit")


def test_paper_takes_its_folder_from_the_variable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its note on data that are not at hand names the folder that was looked in; a file is no folder."""
    monkeypatch.setenv("ATTREE_DATA", str(tmp_path / "none"))
    arguments = ["paper", "trees", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(arguments)
    assert str(tmp_path / "none" / "gatt_paper") in capsys.readouterr().out.replace("\n", "")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--root", str(file)])
    assert stop.value.code == 2
    assert f"argument `root` to be a folder, but got '{file}'." in capsys.readouterr().err
