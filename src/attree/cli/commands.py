"""The table of `attree`'s commands, `main`, which runs one of them, and the cache of help texts.

A command's function is imported only when the command runs, because importing PyTorch and Lightning takes seconds. The
help of `attree fit` is generated from code, so it takes as long: the key of a cached text is a hash of attree's code,
the versions of Python and of the packages that define options, and the width of the terminal.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from attree import __version__
from attree.cli.command_parser import CommandParser
from attree.cli.failure import fail, one_line_errors
from attree.cli.subcommand_parsers import (
    check_run,
    check_sweep,
    check_training,
    completion_parser,
    configs_parser,
    convert_parser,
    explain_parser,
    paper_parser,
    serve_parser,
    sweep_parser,
)
from attree.errors import MissingPackageError, did_you_mean
from attree.io.config_files import config_names, first_sentence, read_shipped, sweep_names
from attree.io.processes import end_with_parent


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        summary: What the command does, in one line.
        function: The function to call, as `module:name`.
        parser: Returns the command's parser; the parsed arguments are passed to the function. None for LightningCLI's
            commands: their function gets the unparsed arguments.
        check: Refuses wrong arguments before the function is imported; gets the typed and the parsed arguments.
    """

    summary: str
    function: str
    parser: Callable[[], CommandParser] | None = None
    check: Callable[[list[str], Mapping[str, Any]], None] | None = None

    def run(self, typed: list[str], **more: Any) -> int:
        """Run the command and return its exit status.

        Args:
            typed: The arguments after `attree`.
            **more: Further arguments of the function that have no option on the command line.
        """
        arguments = None if self.parser is None else vars(self.parser().parse_args(typed[1:]))
        if self.check is not None and typed[0] in COMMANDS:
            self.check(typed, arguments or {})
        module, _, name = self.function.partition(":")
        try:
            with loading():
                function = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            raise MissingPackageError(
                f"`attree {typed[0]}` needs the package {package}: pip install 'attree[{EXTRAS[package]}]'"
            ) from error
        return int(function(typed, **more) if arguments is None else function(**arguments, **more))


@contextmanager
def loading() -> Iterator[None]:
    """Show on a terminal that PyTorch and Lightning are imported, which takes seconds. The line disappears after it."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        print(f"attree {__version__}: loading PyTorch ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


EXTRAS = {"optuna": "sweep", "pyarrow": "parquet", "duckdb": "disk"}
"""Packages that only some commands need, each with the extra of attree that installs it."""

_FIT = "attree.cli.lightning_cli:run"

COMMANDS = {
    "fit": Command("train a network, and follow how well its attention explains it", _FIT, check=check_training),
    "validate": Command("measure a trained network on the validation data", _FIT, check=check_training),
    "test": Command("measure a trained network on the test data", _FIT, check=check_training),
    "predict": Command("write a trained network's class probabilities to a file", _FIT, check=check_training),
    "explain": Command(
        "write the explanations of a finished run: scores, figures, a page",
        "attree.explain_run.command:explain_run",
        explain_parser,
        check_run,
    ),
    "serve": Command(
        "open a finished run's page with its live model: remove edges and see the new prediction",
        "attree.serve.page_server:serve",
        serve_parser,
        check_run,
    ),
    "convert": Command(
        "write a dataset as a folder that is read from disk, for graphs larger than memory",
        "attree.cli.convert:convert_dataset",
        convert_parser,
    ),
    "sweep": Command(
        "fit one config many times, with different settings and seeds, and summarise the results",
        "attree.sweep.command:sweep",
        sweep_parser,
        check_sweep,
    ),
    "paper": Command(
        "make the paper's tables and figures, with the printed numbers beside them",
        "attree.paper.command:paper",
        paper_parser,
    ),
    "configs": Command(
        "list the configs that come with attree, or print one", "attree.cli.commands:configs", configs_parser
    ),
    "completion": Command(
        "print a script that makes bash or zsh complete commands and options",
        "attree.cli.completion:completion",
        completion_parser,
    ),
}
"""Every command of `attree` by name."""

HELP = f"""usage: attree COMMAND [options]

Train attention GNNs and measure, while they train, how well their attention explains them.

commands:
{chr(10).join(f"  {name:<11}{command.summary}" for name, command in COMMANDS.items())}

options:
  -h, --help   show this text; `attree COMMAND --help` shows a command's options
  --version    show attree's version

Start with:  attree fit --config infection
Then look:   tensorboard --logdir logs
Go on:       attree fit --resume logs/infection/version_0
Test:        attree test --config infection --ckpt_path logs/infection/version_0/checkpoints/last.ckpt
Explain:     attree explain logs/infection/version_0 --targets random:20
Grids:       attree sweep regularization
The paper:   attree paper list"""


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: The arguments after `attree`; None takes those of the process.
    """
    end_with_parent()
    typed = sys.argv[1:] if args is None else list(args)
    first = typed[0] if typed else ""
    if first in ("", "-h", "--help", "help"):
        print(HELP)
    elif first == "--version":
        print(f"attree {__version__}")
    elif first in COMMANDS or (first.startswith("-") and not COMMANDS.keys().isdisjoint(typed)):
        with one_line_errors():
            name = first if first in COMMANDS else "fit"  # options of LightningCLI may come before its command
            command = partial(COMMANDS[name].run, typed)
            if _is_cached(name, typed):
                show_cached(typed, command)
            status = command()
            if COMMANDS[name].parser is not None:
                raise SystemExit(status)
    else:
        fail(f"Expected a command ({', '.join(COMMANDS)}), but got {first!r}.{did_you_mean(first, COMMANDS)}")


def _is_cached(name: str, typed: list[str]) -> bool:
    """Whether the output is cached: it takes seconds to make, and depends only on the installed code."""
    if typed[1:] in (["-h"], ["--help"]):
        return COMMANDS[name].parser is None
    return name == "completion"


def configs(name: str | None) -> int:
    """Print one of the configs, or a list of all, and return the exit status."""
    if name is not None:
        print(read_shipped(name), end="")
        return 0
    parts = {"attree fit --config NAME": config_names(), "attree sweep NAME": sweep_names()}
    width = max(len(name) for names in parts.values() for name in names)
    lines = []
    for command, names in parts.items():
        lines += [f"{command}", *(f"  {name:<{width}}  {first_sentence(read_shipped(name))}" for name in names), ""]
    print("\n".join([*lines, "attree configs NAME prints one."]))
    return 0


PACKAGES = ("docstring-parser", "jsonargparse", "lightning", "shtab", "torch", "torch-geometric", "typeshed-client")
"""Packages that the help and the completion depend on, besides attree."""

MAX_TEXTS = 40
"""Maximum number of cached texts."""


def show_cached(arguments: Sequence[str], command: Callable[[], object]) -> NoReturn:
    """Print a command's output, from the cache if possible, and exit with the command's status.

    Args:
        arguments: The arguments after `attree`.
        command: Prints the text, and may raise SystemExit. The text is cached if the command succeeds.
    """
    path = cache_folder() / f"{text_key(arguments)}.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        text = ""
    if text:
        print(text, end="")
        raise SystemExit(0)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            command()
        status: int | str | None = 0
    except SystemExit as stop:
        status = stop.code
    print(printed.getvalue(), end="")
    if status in (0, None):
        with suppress(OSError):  # the home directory may be read-only
            _store(path, printed.getvalue())
    raise SystemExit(status)


def cache_folder() -> Path:
    """Return the folder of the cache: `$XDG_CACHE_HOME/attree`, or `~/.cache/attree`."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return Path(folder if os.path.isabs(folder) else os.path.expanduser("~/.cache"), "attree")


def text_key(arguments: Sequence[str]) -> str:
    """Return a hash of everything that the text depends on."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    facts = [*arguments, sys.version, shutil.get_terminal_size().columns, config_names(), sweep_names()]
    digest.update(repr([*facts, [_version(name) for name in PACKAGES]]).encode())
    return digest.hexdigest()[:32]


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as all of this module

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _store(path: Path, text: str) -> None:
    """Write a text, and remove the oldest texts beyond `MAX_TEXTS`."""
    from attree.io.files import write_text  # imports NumPy

    write_text(path, text)
    for old in sorted(path.parent.glob("*.txt"), key=lambda file: file.stat().st_mtime)[:-MAX_TEXTS]:
        old.unlink(missing_ok=True)
