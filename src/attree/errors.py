"""The exceptions attree raises on purpose, and the one helper that words them.

Each message names the argument, what was expected and what came, so that the command line can print it as one
sentence and a library user can catch it as the built-in exception it also is.
"""

from __future__ import annotations


class AttreeError(Exception):
    """Base of every exception that attree raises on purpose."""


class ArgumentError(AttreeError, ValueError):
    """An argument has a value that cannot be used."""


class MissingDataError(AttreeError, FileNotFoundError):
    """Files of a dataset are neither present nor obtainable; the message says what to do."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnsupportedModelError(AttreeError, TypeError):
    """A model does something that the asked-for computation cannot follow."""


def expect(condition: bool, argument: str, expected: str, got: object) -> None:
    """Raise an `ArgumentError` naming `argument` unless `condition` holds.

    >>> expect(3 >= 1, "num_layers", "an integer >= 1", 3)
    >>> expect(0 >= 1, "num_layers", "an integer >= 1", 0)
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `num_layers` to be an integer >= 1, but got 0.
    """
    if not condition:
        raise ArgumentError(f"Expected argument `{argument}` to be {expected}, but got {got!r}.")
