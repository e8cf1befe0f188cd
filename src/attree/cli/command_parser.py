"""Base parser of explain, serve, sweep, paper, configs and completion.

This module imports only the standard library, so that `--help` answers at once. Errors are one sentence. Lists are
written `a,b` or `[a,b]`, as in `attree fit`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from attree.cli.failure import fail
from attree.errors import did_you_mean


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
        if found := re.match(r"unrecognized arguments: (-\S+)", message):
            name = found[1].partition("=")[0]
            return f"There is no argument `{name}`.{did_you_mean(name, self._options)}"
        if found := re.match(r"unrecognized arguments: (.*)", message):
            return f"Expected nothing after the arguments of {self.prog}, but got {found[1]!r}."
        if found := re.match(r"the following arguments are required: (.*)", message):
            return f"Expected `{found[1].replace(', ', '` and `')}` to be given: see {self.prog} --help."
        if found := re.match(r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", message):
            choices = found[3].replace("'", "").replace(", ", " or ")
            return f"Expected argument `{_without_dashes(found[1])}` to be {choices}, but got {found[2]}."
        if found := re.match(r"argument (\S+): (to be .*)", message):
            return f"Expected argument `{_without_dashes(found[1])}` {found[2]}"
        if found := re.match(r"argument (\S+): expected one argument", message):
            return f"Expected argument `{_without_dashes(found[1])}` to have a value, but got none."
        return message


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


def integer(at_least: int) -> Callable[[str], int]:
    """Return an argument type for integers >= `at_least`."""

    def read(text: str) -> int:
        if re.fullmatch(r"[+-]?\d+", text.strip()) is None or int(text) < at_least:
            raise argparse.ArgumentTypeError(f"to be an integer >= {at_least}, but got {text!r}.")
        return int(text)

    return read
