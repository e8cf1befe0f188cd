"""The commands beside LightningCLI's: what they say of themselves, how they take lists, what they refuse."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attree import __version__, attribution, defaults, faithfulness, load_run
from attree.cli import main, subcommand_parsers
from attree.cli.command_parser import word_list
from attree.cli.commands import COMMANDS, loading
from attree.cli.parser_internals import actions_of
from attree.cli.subcommand_parsers import with_resumed
from attree.errors import MissingDataError
from helpers.cli import refusal

PARSERS = {name: command.parser for name, command in COMMANDS.items() if command.parser is not None}


def function_of(name: str) -> Any:
    module, _, function = COMMANDS[name].function.partition(":")
    return getattr(import_module(module), function)


@pytest.mark.parametrize("name", PARSERS)
def test_every_argument_is_explained_and_is_one_of_the_function(name: str) -> None:
    actions = [action for action in actions_of(PARSERS[name]()) if action.dest != "help"]
    assert all(action.help for action in actions)
    parameters = inspect.signature(function_of(name)).parameters
    required = [one.name for one in parameters.values() if one.default is inspect.Parameter.empty]
    assert sorted(action.dest for action in actions) == sorted(required)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_function(name: str) -> None:
    assert callable(function_of(name))


def test_help_names_all_methods_and_protocols_and_the_true_defaults() -> None:
    labels = {name: label for name, (label, _) in defaults.ALL_METHODS.items()}
    assert {name: attribution.method_label(name) for name in attribution.METHODS} == labels
    assert all(attribution.METHODS[name].name == name for name in labels)
    assert list(faithfulness.PROTOCOLS) == list(defaults.ALL_PROTOCOLS)
    for command in (subcommand_parsers.explain_parser(), subcommand_parsers.serve_parser()):
        assert ", ".join(faithfulness.protocol_names()) in " ".join(command.format_help().split())
    assert tuple(attribution.DEFAULT_METHODS) == defaults.METHODS
    assert tuple(faithfulness.DEFAULT_PROTOCOLS) == defaults.PROTOCOLS


@pytest.mark.parametrize("text", ["a,b", "[a,b]", " [ a , b ] ", "['a', \"b\"]", "a,b,"])
def test_a_list_is_written_alike_everywhere(text: str) -> None:
    assert word_list(text) == ["a", "b"]
    for command, option in (
        ("explain", "methods"),
        ("explain", "protocols"),
        ("paper", "datasets"),
        ("paper", "models"),
    ):
        parsed = PARSERS[command]().parse_args(["x", f"--{option}={text}"])
        assert getattr(parsed, option) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["explain"], "Expected `run` to be given. Try: attree explain logs/infection/version_0 --targets random:20"),
        (["explain", "x", "--method", "gatt"], "There is no argument `--method`. Did you mean `--methods`?"),
        (["explain", "x", "--figures=-1"], "Expected argument `figures` to be an integer >= 0, but got '-1'."),
        (["explain", "x", "--part_rows", "0"], "Expected argument `part_rows` to be an integer >= 1, but got '0'."),
        (["explain", "x", "--seed"], "Expected argument `seed` to have a value, but got none."),
        (["sweep", "x", "--jobs", "many"], "argument `workers` or `jobs` to be an integer >= 1, but got 'many'."),
        (["paper", "all", "--jobs", "many"], "Expected argument `jobs` to be an integer >= 1, but got 'many'."),
        (
            ["sweep", "networks", "--dry_run", "--collect"],
            "`run` to be given without --dry_run and --collect, but got '--dry_run",
        ),
        (["sweep", "x", "y"], "Expected nothing after the arguments of attree sweep, but got 'y'."),
        (["paper", "all", "--profile", "slow"], "Expected argument `profile` to be quick or full, but got 'slow'."),
        (["explain", "x"], "Expected x to be a run of `attree fit` or its checkpoint, but x/checkpoints/last.ckpt is"),
        (["configs", "infectoin"], "but got 'infectoin'. Did you mean `infection`?"),
        (["completion", "fish"], "Expected argument `SHELL` to be bash or zsh, but got 'fish'."),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sentence in refusal(arguments, capsys)


def test_attree_alone_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert "Start with:  attree fit --config infection" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["paper", "faithfulnes"], "Did you mean `faithfulness`?"),
        (["paper", "tabel", "1"], "Did you mean `table1`?"),
        (["fit"], "Try: attree fit --config infection (`attree configs` lists the configs)."),
        (["test"], "Try: attree test --config infection --ckpt_path logs/infection/version_0/checkpoints/last.ckpt ("),
        (["fit", "--config", "infectoin"], "but got 'infectoin', which does not exist. Did you mean `infection`?"),
        (["sweep", "regularisation"], "'regularisation' does not exist. Did you mean `regularization`?"),
        (["fit", "--resume", "logs"], "Expected logs to be a run of `attree fit` or its checkpoint, but logs/check"),
        (["fit", "--resume"], "Expected argument `resume` to be a run, such as logs/infection/version_0, but got ''."),
        (["test", "--resume", "logs"], "`resume` to be given once, to `attree fit`"),
    ],
)
def test_refusals_say_what_to_type(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in capsys.readouterr().err


def test_resume_is_the_config_and_the_checkpoint_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    config, checkpoint = tmp_path / "config.yaml", tmp_path / "checkpoints" / "last.ckpt"
    config.touch()
    checkpoint.touch()
    expected = ["fit", "--config", str(config), "--ckpt_path", str(checkpoint), "--trainer.max_epochs", "9"]
    assert with_resumed(["fit", "--resume", str(tmp_path), "--trainer.max_epochs", "9"]) == expected
    assert with_resumed(["fit", "--trainer.max_epochs", "9", f"--resume={tmp_path}"]) == expected


def test_a_folder_of_runs_names_them(trained: Path) -> None:
    with pytest.raises(MissingDataError, match=r"It holds the runs .*infection/version_0: name one of them"):
        load_run(trained / "infection")


@pytest.mark.parametrize("typed", [["explain"], ["serve"], ["fit", "--resume"]])
@pytest.mark.parametrize("folder", ["logs", "logs/infection"])
def test_a_folder_of_runs_offers_the_newest(
    typed: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for version in (0, 1):
        checkpoint = tmp_path / f"logs/infection/version_{version}/checkpoints/last.ckpt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        os.utime(checkpoint, (version, version))
    line = refusal([*typed, folder], capsys)
    assert f"Try: attree {' '.join(typed)} logs/infection/version_1 (also there: logs/infection/version_0)" in line


def test_a_missing_run_is_answered_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs/mine/version_3/checkpoints").mkdir(parents=True)
    (tmp_path / "logs/mine/version_3/checkpoints/last.ckpt").touch()
    assert refusal(["serve"], capsys).endswith("Try: attree serve logs/mine/version_3")


@pytest.mark.parametrize(
    ("option", "said"),
    [("--methods=gat", "but got 'gat'. Did you mean `gatt`?"), ("--protocols=removl", "Did you mean `removal`?")],
)
def test_misspelt_names_are_refused_before_anything_is_loaded(
    option: str, said: str, trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attree.cli.commands.import_module", None)
    for command in ("explain", "serve"):
        assert said in refusal([command, str(trained / "infection" / "version_0"), option], capsys)


def test_a_terminal_says_at_once_that_pytorch_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with loading():
        assert capsys.readouterr().err == f"attree {__version__}: loading PyTorch ..."
    assert capsys.readouterr().err == "\r\033[K"  # the line is gone


def test_a_number_of_the_paper_is_one_name() -> None:
    assert PARSERS["paper"]().parse_args(["Table", "1", "--jobs=2"]).name == "Table 1"
