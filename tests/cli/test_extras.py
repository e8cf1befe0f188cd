"""What only some commands need is imported by them alone; without it they say in one sentence how to get it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from attree.cli import main
from helpers.cli import empty_run, refusal
from helpers.time_limit import SECONDS

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['optuna', 'pyarrow', 'fcntl'])); "


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["sweep", "networks"], "optuna", "sweep"),
        (["explain", "logs/run"], "pyarrow", "parquet"),
        (["serve", "logs/run"], "pyarrow.parquet", "parquet"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    arguments: list[str],
    package: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty_run(tmp_path)
    monkeypatch.chdir(tmp_path)

    def without(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("attree.cli.commands.import_module", without)
    line = refusal(arguments, capsys)
    command, package = arguments[0], package.partition(".")[0]
    assert line.endswith(f"`attree {command}` needs the package {package}: pip install 'attree[{extra}]'")


def test_other_missing_packages_are_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> ModuleType:
        return import_module("attree.no_such_module")

    monkeypatch.setattr("attree.cli.commands.import_module", without)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        main(["sweep", "networks"])


@pytest.mark.long  # it imports PyTorch again
@pytest.mark.parametrize(
    "code",
    [
        "from attree import ExplainCallback, evaluate, explain, load_run; import attree.cli.lightning_cli",
        "from attree.cli import main; main(['fit', '--help'])",
    ],
)
def test_evaluating_explaining_and_fitting_need_none_of_them(code: str) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT + code], check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)


@pytest.mark.long
@pytest.mark.parametrize(("command", "extra"), [("sweep networks", "sweep"), ("explain logs/run", "parquet")])
def test_the_sentence_is_that_of_a_real_process(command: str, extra: str, tmp_path: Path) -> None:
    empty_run(tmp_path)
    code = f"{WITHOUT} from attree.cli import main; main({command.split()!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"pip install 'attree[{extra}]'")
