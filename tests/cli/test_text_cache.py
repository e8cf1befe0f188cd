"""Help is kept from the last time under all that determines it, and never where it could be wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attree.cli import commands, main
from attree.cli.commands import MAX_TEXTS, cache_folder, show_cached, text_key


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attree"


def shown(capsys: pytest.CaptureFixture[str], command: Callable[[], object], *arguments: str) -> tuple[str, object]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        show_cached(arguments, command)
    return capsys.readouterr().out, stop.value.code


def test_a_text_is_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    made = []

    def make() -> None:
        made.append(1)
        print("options é")

    assert [shown(capsys, make, "fit", "--help") for _ in range(3)] == [("options é\n", 0)] * 3
    assert len(made) == 1
    shown(capsys, make, "test", "--help")
    assert len(made) == 2


def test_what_failed_is_not_kept(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    def fail() -> None:
        print("half a text")
        raise SystemExit(2)

    assert shown(capsys, fail) == ("half a text\n", 2)
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_to_does_no_harm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert shown(capsys, lambda: print("text")) == ("text\n", 0)


def test_the_key_is_all_that_determines_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {text_key(["fit", "--help"]), text_key(["test", "--help"])}
    monkeypatch.setenv("COLUMNS", "77")
    keys.add(text_key(["fit", "--help"]))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    keys.add(text_key(["fit", "--help"]))
    monkeypatch.setattr(commands, "config_names", lambda: ["another"])
    keys.add(text_key(["fit", "--help"]))
    assert len(keys) == 5
    assert text_key(["fit", "--help"]) in keys


def test_changed_code_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "package" / "cli"
    home.mkdir(parents=True)
    monkeypatch.setattr(commands, "__file__", str(home / "commands.py"))
    keys = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        (home / name).write_text(text)
        keys.append(text_key([]))
    assert len(set(keys)) == 3


def test_old_texts_go(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    cache.mkdir()
    for index in range(MAX_TEXTS + 5):
        (cache / f"{index}.txt").touch()
    shown(capsys, lambda: print("text"))
    assert len(list(cache.glob("*.txt"))) == MAX_TEXTS
    assert cache_folder() == cache


def test_help_from_the_last_time_imports_nothing_heavy(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code = (
        "import sys\nfrom attree.cli import main\ntry:\n    main(['fit', '--help'])\nexcept SystemExit as stop:\n"
        "    assert stop.code == 0\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    first = capsys.readouterr().out
    second = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert second.stderr == "False\n"
    assert first == second.stdout
    assert "--trainer.max_epochs" in first
