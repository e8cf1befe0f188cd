"""What the front door says, and that it opens quickly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attree import __version__
from attree.cli import main
from attree.cli.commands import COMMANDS
from helpers.cli import empty_run
from helpers.time_limit import SECONDS


def test_help_lists_every_command_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert f"  {name:<11}{command.summary}" in lines
    assert "Start with:  attree fit --config infection" in lines


@pytest.fixture(autouse=True)
def _no_text_of_the_last_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


LIGHT = [name for name, command in COMMANDS.items() if command.parser is not None]


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "fti", "configs", "paper list", "explain --targets", *(f"{name} --help" for name in LIGHT)],
)
def test_the_front_door_imports_nothing_heavy(arguments: str) -> None:
    """What takes seconds is imported by the command that needs it; a list of commands needs none."""
    code = (
        "import sys\nfrom attree.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'lightning', 'pandas', 'numpy', 'matplotlib', 'yaml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, *arguments.split()], check=True, capture_output=True, timeout=SECONDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"attree {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fti"], "but got 'fti'. Did you mean `fit`?"),
        (["swep", "x.yaml"], "but got 'swep'. Did you mean `sweep`?"),
        (["--unheard-of"], "but got '--unheard-of'."),
    ],
)
def test_what_is_no_command(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    line = capsys.readouterr().err
    commands = "fit, validate, test, predict, explain, serve, convert, sweep, "
    assert line.startswith(f"attree: error: Expected a command ({commands}")
    assert line.endswith(f"{sentence}\n")


def test_help_of_fit_begins_with_what_is_attrees(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    headings = [line.partition(":")[0] for line in lines if line and not line.startswith(" ")][2:]
    assert headings == ["data", "model", "explain", "checkpoint", "optimizer", "lr_scheduler", "the run", "trainer"]
    first = "\n".join(lines[:15])
    for name in ("Infection", "MUTAG", "NodeClassifier", "GATv2"):
        assert name in first
    assert "--trainer.max_epochs" in text
    flowing = " ".join(text.split())
    assert "Number of epochs between two evaluations; 0 evaluates only after the last epoch." in flowing
    assert "known subclasses" not in flowing
    assert "MaskedTensor" not in flowing


def test_help_of_a_class_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--data.help", "Infection"])
    assert stop.value.code == 0
    assert "--data.edge_probability" in capsys.readouterr().out


def test_ctrl_c_while_a_command_is_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attree.cli.commands.import_module", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(empty_run(tmp_path))])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "attree: stopped by Ctrl-C.\n"
