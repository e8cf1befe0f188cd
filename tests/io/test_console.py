"""Paths and names are printed as they are."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest
import yaml
from rich.table import Table

import attree
from attree.cli import main
from attree.io.terminal import linked, plain_console, print_whole
from helpers.cli import CONFIGS, TINY, command, fit, refusal
from helpers.sweeps import FitHere

NAME = "a[b]c[/d] [red]:smile:x"


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console(soft_wrap=True).print(f"/logs/{NAME}/[/bold]")
    assert capsys.readouterr().out == f"/logs/{NAME}/[/bold]\n"


def test_a_wide_table_is_printed_whole_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    table = Table()
    for number in range(30):
        table.add_column(f"column {number}")
    table.add_row(*(f"0.{number:05d}" for number in range(30)))
    console = plain_console(file=out, width=80)
    print_whole(console, table)
    assert all(f"0.{number:05d}" in out.getvalue() for number in range(30))
    assert console.width == 80


def test_there_is_no_other_console() -> None:
    """Nor a column of a progress bar that reads its text as styles."""
    source = Path(attree.__file__).parent
    texts = {path.name: path.read_text() for path in source.rglob("*.py")}
    other = re.compile(r"\bConsole\(|rich\.print|from rich import print")
    assert [name for name, text in texts.items() if other.search(text)] == ["terminal.py"]
    columns = [found for text in texts.values() for found in re.findall(r"TextColumn\([^)]*\)", text)]
    assert columns
    assert [column for column in columns if "markup=False" not in column] == []


def test_paths_are_links_where_a_terminal_knows_them(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    for is_terminal, expected in ((True, path.as_uri()), (False, None)):
        out = io.StringIO()
        plain_console(file=out, force_terminal=is_terminal, soft_wrap=True, _environ={"TERM": "xterm"}).print(
            linked(path)
        )
        assert str(path) in out.getvalue()
        assert (expected in out.getvalue()) if expected else out.getvalue() == f"{path}\n"


@pytest.mark.long
def test_commands_print_the_paths_that_they_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / NAME
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # paths inside the working directory are printed without it
    run = fit(folder).relative_to(tmp_path)
    printed = capsys.readouterr().out
    assert f"tensorboard --logdir {shlex.quote(str(folder))}" in printed
    assert printed.endswith(f"Next: attree explain {shlex.quote(str(run))} --targets random:20\n")
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(run), "--targets=1", "--figures=0"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert f"Page: {run}/explain/page.html" in printed
    assert printed.endswith(f"Next: attree serve {shlex.quote(str(run))}\n")
    settings = {key.removeprefix("--"): yaml.safe_load(value) for key, value in (one.split("=") for one in TINY)}
    settings = {re.sub(r"^data\.", "data.init_args.", key): value for key, value in settings.items()}
    content = {"name": "mini", "config": str(CONFIGS / "infection.yaml"), "set": settings | {"trainer.max_epochs": 1}}
    Path("mini.yaml").write_text(yaml.safe_dump({**content, "runs": [{"list": [{}]}], "seeds": [0]}))
    assert command("sweep", "mini.yaml", "--folder", str(folder / "out"), launch=FitHere()) == 0
    assert f"All runs: {NAME}/out/mini/results.csv" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["paper", "properties", f"--out={folder / 'paper'}"])
    assert stop.value.code == 0
    assert f"properties: {folder}/paper/properties/index.html" in capsys.readouterr().out


def test_a_file_is_no_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "`root`" in refusal(["paper", "datasets", f"--root={tmp_path / 'file'}", f"--out={tmp_path}"], capsys)
