"""The parser of a command: errors of one sentence with a suggestion, options that take lists, checked numbers."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from attree.cli.failure import fail
from attree.errors import did_you_mean
from attree.io.run_paths import runs_inside

EXAMPLE_RUN = "logs/infection/version_0"
"""The run in the examples of the help."""


class CommandParser(argparse.ArgumentParser):
    """An argparse parser that keeps line breaks, refuses abbreviations and reports errors in one sentence.

    Args:
        name: Name of the command.
        description: What the command does.
        epilog: Examples.
    """

    def __init__(self, name: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"attree {name}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._options: list[str] = []
        self._example = epilog.partition("\n")[0].partition(":")[2].strip()

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an argument. A help text is required."""
        assert settings.get("help"), names
        action = super().add_argument(*names, **settings)
        vars(self).setdefault("_options", []).extend(action.option_strings)  # argparse adds --help before this class
        return action

    def add_list(self, name: str, default: Sequence[str] | None, help: str, **settings: Any) -> None:
        """Add an option that takes a list of names."""
        settings = {"type": word_list, "default": default, "metavar": "NAME,..."} | settings
        self.add_argument(name, help=help, **settings)

    def error(self, message: str) -> NoReturn:
        """Print the error in one sentence, then exit with status 2."""
        fail(self._sentence(message))

    def _sentence(self, message: str) -> str:
        """Return argparse's error message as a sentence in attree's form; unknown messages stay unchanged."""
        if match := re.match(r"unrecognized arguments: (-\S+)", message):
            name = match[1].partition("=")[0]
            return f"There is no argument `{name}`.{did_you_mean(name, self._options)}"
        if match := re.match(r"unrecognized arguments: (.*)", message):
            return f"Expected nothing after the arguments of {self.prog}, but got {match[1]!r}."
        if match := re.match(r"the following arguments are required: (.*)", message):
            return f"Expected `{match[1].replace(', ', '` and `')}` to be given. Try: {self._suggestion()}"
        if match := re.match(r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", message):
            choices = match[3].replace("'", "").replace(", ", " or ")
            return f"Expected argument `{_without_dashes(match[1])}` to be {choices}, but got {match[2]}."
        if match := re.match(r"argument (\S+): (to be .*)", message):
            return f"Expected argument `{_without_dashes(match[1])}` {match[2]}"
        if match := re.match(r"argument (\S+): expected one argument", message):
            return f"Expected argument `{_without_dashes(match[1])}` to have a value, but got none."
        return message

    def _suggestion(self) -> str:
        """Return a command to type: the help's first example, with the newest run in `logs` if it takes a run."""
        runs = runs_inside(Path("logs")) if EXAMPLE_RUN in self._example else []
        return self._example.replace(EXAMPLE_RUN, str(runs[0])) if runs else self._example


class JoinWords(argparse.Action):
    """Stores several words as one text."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, " ".join(values))


def _without_dashes(names: str) -> str:
    """Return all names of an argument without dashes, because argparse does not say which one was typed."""
    return "` or `".join(name.removeprefix("--") for name in names.split("/"))


def word_list(text: str) -> list[str]:
    """Parse a list of words, written `a,b` or `[a,b]`.

    >>> word_list("gatt, avgatt"), word_list("[gatt,'avgatt']"), word_list("")
    (['gatt', 'avgatt'], ['gatt', 'avgatt'], [])
    """
    inside = text.strip().removeprefix("[").removesuffix("]")
    return [word for part in inside.split(",") if (word := part.strip().strip("'\""))]


def positive(text: str) -> float:
    """Parse a finite number above 0.

    >>> positive("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"to be a number above 0, but got {text!r}.")
    return number


def integer(at_least: int) -> Callable[[str], int]:
    """Return an argument type for integers >= `at_least`."""

    def read(text: str) -> int:
        if re.fullmatch(r"[+-]?\d+", text.strip()) is None or int(text) < at_least:
            raise argparse.ArgumentTypeError(f"to be an integer >= {at_least}, but got {text!r}.")
        return int(text)

    return read
