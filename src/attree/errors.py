"""Exceptions that attree raises on purpose, and checks of arguments.

Each message names the argument, the expected value and the actual value, so that the command line can print it as one
sentence. Each exception is also a built-in exception, so that callers can catch it as such.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any


class AttreeError(Exception):
    """Base class of the exceptions that attree raises on purpose."""


class ArgumentError(AttreeError, ValueError):
    """An argument has an invalid value."""


class MissingPackageError(AttreeError, ImportError):
    """A package that only this command or function needs is not installed."""


class MissingDataError(AttreeError, FileNotFoundError):
    """Files of a dataset are missing, damaged or not the expected ones; the message says what to do."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnsupportedModelError(AttreeError, TypeError):
    """A model does something that the requested computation does not support."""


class ModelRunError(AttreeError, RuntimeError):
    """A model's own forward failed on its inputs."""


def expect(condition: bool, argument: str, expected: str, got: object) -> None:
    """Raise an `ArgumentError` that names `argument` unless `condition` holds.

    >>> expect(3 >= 1, "num_layers", "an integer >= 1", 3)
    >>> expect(0 >= 1, "num_layers", "an integer >= 1", 0)
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `num_layers` to be an integer >= 1, but got 0.
    """
    if not condition:
        raise ArgumentError(f"Expected argument `{argument}` to be {expected}, but got {got!r}.")


def expect_int(value: Any, argument: str, at_least: int = 0, at_most: int | None = None) -> int:
    """Return the value as an `int`; raise unless it is an integer in the range. True and 1.0 are not accepted.

    >>> expect_int(3, "heads", at_least=1)
    3
    >>> expect_int(1.5, "every_n_epochs")
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `every_n_epochs` to be an integer >= 0, but got 1.5.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    fits = is_integer and value >= at_least and (at_most is None or value <= at_most)
    expected = f"an integer >= {at_least}" if at_most is None else f"an integer in [{at_least}, {at_most}]"
    expect(fits, argument, expected, value)
    return int(value)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def expect_seed(value: Any, argument: str = "seed") -> int:
    """Return the value as an `int`; raise unless it is a seed that every random generator accepts."""
    return expect_int(value, argument, 0, 2**63 - 1)


def expect_number(
    value: Any,
    argument: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Return the value as a `float`; raise unless it is a finite number within the bounds.

    >>> expect_number(float("nan"), "dropout", at_least=0, at_most=1)
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `dropout` to be a number in [0, 1], but got nan.
    >>> expect_number("1G", "lr", above=0)
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `lr` to be a number > 0, but got '1G'.
    """
    low, high = (above if at_least is None else at_least), (below if at_most is None else at_most)
    if low is None or high is None:
        sign = ">" if at_least is None else ">="
        expected = "a finite number" if low is None else f"a number {sign} {low}"
    else:
        expected = f"a number in {'(' if at_least is None else '['}{low}, {high}{')' if at_most is None else ']'}"
    fits = _is_number(value) and math.isfinite(value)
    fits = fits and (at_least is None or value >= at_least) and (above is None or value > above)
    fits = fits and (at_most is None or value <= at_most) and (below is None or value < below)
    expect(fits, argument, expected, value)
    return float(value)


def expect_memory(value: Any) -> None:
    """Raise unless `memory` is a number of bytes."""
    expect(_is_number(value) and value > 0, "memory", "a number of bytes > 0", value)


def expect_bool(value: Any, argument: str) -> bool:
    """Return the value; raise unless it is True or False."""
    expect(isinstance(value, bool), argument, "True or False", value)
    return bool(value)


def expect_path(value: Any, argument: str) -> Path:
    """Return the value as a `Path`; raise unless it is a string or a path."""
    expect(isinstance(value, str | PathLike) and str(value) != "", argument, "a path", value)
    return Path(value)


def expect_name(value: Any, argument: str) -> str:
    """Return the value; raise unless it can name a metric and a file.

    Letters, digits, `_`, `.` and `-` are allowed; the first character must not be `.` or `-`.

    >>> expect_name("../x", "name")
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `name` to be a name of letters, digits, _, . and -, but got '../x'.
    """
    fits = isinstance(value, str) and re.fullmatch(r"\w[\w.-]*", value) is not None
    expect(fits, argument, "a name of letters, digits, _, . and -", value)
    return str(value)


def expect_instance(value: Any, argument: str, kind: type, optional: bool = False) -> None:
    """Raise unless the value is an instance of a class, or None if `optional`.

    >>> expect_instance(3, "subject", Path)
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `subject` to be of class Path, but got 3.
    """
    expected = f"of class {kind.__name__}" + (", or None" if optional else "")
    expect(isinstance(value, kind) or (optional and value is None), argument, expected, value)


def expect_ints(value: Any, argument: str, expected: str, at_least: int = 0) -> tuple[int, ...]:
    """Return the items of a list as a tuple; raise unless all are integers >= `at_least`.

    >>> expect_ints([0, 1], "heads", "head numbers")
    (0, 1)
    """
    expect(isinstance(value, Iterable) and not isinstance(value, str | Mapping), argument, expected, value)
    items = list(value)
    for item in items:
        is_integer = isinstance(item, Integral) and not isinstance(item, bool)
        expect(is_integer and item >= at_least, argument, expected, item)
    return tuple(int(item) for item in items)


def expect_list(value: Any, argument: str, kinds: type | tuple[type, ...], expected: str) -> list[Any]:
    """Return the items as a list; raise unless all are of the given types. A single item counts as a list of one.

    >>> expect_list("gatt", "methods", str, "names")
    ['gatt']
    """
    if isinstance(value, kinds):
        return [value]
    expect(isinstance(value, Iterable) and not isinstance(value, Mapping), argument, expected, value)
    items = list(value)
    for item in items:
        expect(isinstance(item, kinds), argument, expected, item)
    return items


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for an error message about an unknown name; empty if none of the names is similar.

    >>> did_you_mean("valdate", ["fit", "validate"])
    ' Did you mean `validate`?'
    >>> did_you_mean("xyz", ["fit", "validate"])
    ''
    """
    by_spelling = {candidate.lower(): candidate for candidate in names}
    similar = get_close_matches(name.lower(), by_spelling, n=1)
    return f" Did you mean `{by_spelling[similar[0]]}`?" if similar else ""


def expect_name_among(name: str, argument: str, names: Iterable[str], also: str = "") -> None:
    """Raise, with a suggestion, unless a name is among the accepted ones.

    Args:
        name: The name.
        argument: The argument that it was passed for.
        names: The accepted names.
        also: What the argument accepts besides names.

    >>> expect_name_among("gat", "method", ["gatt"])
    Traceback (most recent call last):
    ...
    attree.errors.ArgumentError: Expected argument `method` to be names among gatt, but got 'gat'. Did you mean `gatt`?
    """
    accepted = list(names)
    if name not in accepted:
        expected = f"names among {', '.join(accepted)}" + (f", or {also}" if also else "")
        raise ArgumentError(
            f"Expected argument `{argument}` to be {expected}, but got {name!r}.{did_you_mean(name, accepted)}"
        )
