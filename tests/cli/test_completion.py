"""What a shell completes with the printed script, as bash itself does it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attree.cli import main
from attree.cli.commands import COMMANDS
from attree.cli.completion import script
from attree.io.config_files import config_names
from helpers.cli import refusal
from helpers.time_limit import SECONDS

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash not found")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "attree.bash"
    path.write_text(script())
    return path


def complete(file: Path, *words: str) -> list[str]:
    """What bash offers when Tab is pressed after these words, the last of which may be unfinished."""
    code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attree; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", code, "bash", str(file), *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=file.parent,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["fi"], ["fit"]),
        ([""], [*COMMANDS, "--help", "--version"]),
        (["fit", "--config", "inf"], ["infection"]),
        (["fit", "--config", "=", "inf"], ["infection"]),
        (["fit", "--config", "="], config_names()),
        (["fit", "--trainer.max_ep"], ["--trainer.max_epochs"]),
        (["fit", "--data", "Inf"], ["Infection"]),
        (["fit", "--data.edge_p"], ["--data.edge_probability"]),
        (["fit", "--model.net", "GATv"], ["GATv2"]),
        (["test", "--explain.subset", "t"], ["train", "test"]),
        (["fit", "--explain.ground_truth", ""], ["true", "false"]),
        (["sweep", "reg"], ["regularization"]),
        (["sweep", "regularization", "--dr"], ["--dry_run"]),
        (["configs", "pub"], ["pubmed"]),
        (["explain", "--targ"], ["--targets"]),
        (["completion", ""], ["bash", "zsh"]),
        (["paper", "--profile", ""], ["quick", "full"]),
        (["explain", "logs/inf"], []),  # file names, which the shell itself offers
    ],
)
def test_words(file: Path, words: list[str], offered: list[str]) -> None:
    assert complete(file, "attree", *words) == offered


def test_local_configs_are_offered_beside_the_names(file: Path) -> None:
    (file.parent / "infection_mine.yaml").touch()
    (file.parent / "infection.txt").touch()
    assert complete(file, "attree", "fit", "--config", "inf") == ["infection", "infection_mine.yaml"]


def test_zsh_reads_the_same_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["completion", "zsh"])
    assert stop.value.code == 0
    before, _, rest = capsys.readouterr().out.partition("# attree's commands")
    assert before.splitlines()[-1] == "autoload -U bashcompinit && bashcompinit"
    assert f"# attree's commands{rest}" == f"{script()}\n"


def test_a_shell_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["completion", "fish"], capsys)
    assert line.endswith("Expected argument `SHELL` to be bash or zsh, but got 'fish'.")
