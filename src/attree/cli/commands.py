"""The table of `attree`'s commands, and `main`, which runs one of them.

A command's function is imported only when the command runs, because importing PyTorch and Lightning takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from attree import __version__
from attree.cli.arguments import (
    completion_parser,
    configs_parser,
    explain_parser,
    paper_parser,
    serve_parser,
    sweep_parser,
)
from attree.cli.command_parser import CommandParser
from attree.cli.failure import fail, one_line_errors
from attree.cli.text_cache import show_cached
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
    """

    summary: str
    function: str
    parser: Callable[[], CommandParser] | None = None

    def run(self, given: list[str], **more: Any) -> int:
        """Run the command and return its exit status.

        Args:
            given: The arguments after `attree`.
            **more: Further arguments of the function that have no option on the command line.
        """
        arguments = None if self.parser is None else vars(self.parser().parse_args(given[1:]))
        module, _, name = self.function.partition(":")
        try:
            function = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            raise MissingPackageError(
                f"`attree {given[0]}` needs the package {package}: pip install 'attree[{EXTRAS[package]}]'"
            ) from error
        return int(function(given, **more) if arguments is None else function(**arguments, **more))


EXTRAS = {"optuna": "sweep", "pyarrow": "parquet"}
"""Packages that only some commands need, each with the extra of attree that installs it."""

_FIT = "attree.cli.lightning_cli:run"

COMMANDS = {
    "fit": Command("train a network, and follow how well its attention explains it", _FIT),
    "validate": Command("measure a trained network on the validation data", _FIT),
    "test": Command("measure a trained network on the test data", _FIT),
    "predict": Command("write a trained network's class probabilities to a file", _FIT),
    "explain": Command(
        "write the explanations of a finished run: scores, figures, a page",
        "attree.explain_run.command:explain_run",
        explain_parser,
    ),
    "serve": Command(
        "open a finished run's page with its live model: remove edges and see the new prediction",
        "attree.serve.command:serve",
        serve_parser,
    ),
    "sweep": Command(
        "fit one config many times, with different settings and seeds, and summarise the results",
        "attree.sweep.command:sweep",
        sweep_parser,
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
Go on:       attree fit --config infection --ckpt_path logs/infection/version_0/checkpoints/last.ckpt
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
    given = sys.argv[1:] if args is None else list(args)
    first = given[0] if given else ""
    if first in ("-h", "--help", "help"):
        print(HELP)
    elif first == "--version":
        print(f"attree {__version__}")
    elif first in COMMANDS or (first.startswith("-") and not COMMANDS.keys().isdisjoint(given)):
        with one_line_errors():
            name = first if first in COMMANDS else "fit"  # options of LightningCLI may come before its command
            command = partial(COMMANDS[name].run, given)
            if _is_cached(name, given):
                show_cached(given, command)
            status = command()
            if COMMANDS[name].parser is not None:
                raise SystemExit(status)
    else:
        got = f"but got {first!r}.{did_you_mean(first, COMMANDS)}" if first else "but got none; see attree --help."
        fail(f"Expected a command ({', '.join(COMMANDS)}), {got}")


def _is_cached(name: str, given: list[str]) -> bool:
    """Whether the output is cached: it takes seconds to make, and depends only on the installed code."""
    if given[1:] in (["-h"], ["--help"]):
        return COMMANDS[name].parser is None
    return name == "completion"


def configs(name: str | None) -> int:
    """Print one of the configs, or a list of all, and return the exit status."""
    print(_config_list() if name is None else read_shipped(name), end="")
    return 0


def _config_list() -> str:

    parts = {"attree fit --config NAME": config_names(), "attree sweep NAME": sweep_names()}
    width = max(len(name) for names in parts.values() for name in names)
    lines = []
    for command, names in parts.items():
        lines += [f"{command}", *(f"  {name:<{width}}  {first_sentence(read_shipped(name))}" for name in names), ""]
    return "\n".join([*lines, "attree configs NAME prints one.\n"])
