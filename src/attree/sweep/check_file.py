"""Checks of a sweep file's content: what is wrong with it is one sentence that names the file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attree.errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class FileChecks:
    """Checks for one sweep file.

    Args:
        path: The file, which the sentences name.
    """

    path: Path

    def expect(self, condition: bool, expected: str, got: object, hint: str = "") -> None:
        """Raise an `ArgumentError` unless the condition holds.

        Args:
            condition: What must hold.
            expected: What the file must say, after the word "Expected".
            got: What it says.
            hint: A sentence for the end.
        """
        if not condition:
            raise ArgumentError(f"{self.path}: Expected {expected}, but got {got!r}.{hint}")

    def mapping(self, content: Any, what: str, allowed: set[str] | None = None) -> dict[str, Any]:
        """Some content as a mapping whose keys are text.

        Args:
            content: The content.
            what: What it is called.
            allowed: The keys that it may have; None for any.
        """
        is_mapping = isinstance(content, dict) and all(isinstance(key, str) for key in content)
        self.expect(is_mapping, f"{what} to be a mapping of keys to values", content)
        unknown = [] if allowed is None else sorted(set(content) - allowed)
        hint = did_you_mean(unknown[0], allowed or ()) if unknown else ""
        self.expect(not unknown, f"{what} to have only the keys {', '.join(sorted(allowed or ()))}", unknown, hint)
        return dict(content)


def is_file_name(name: Any) -> bool:
    """Whether a value is text that can name a file and be typed without quotes."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.+-]*", name) is not None


def is_finite_number(value: Any) -> bool:
    """Whether a value is a number, and neither infinite nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def are_strings(values: Any) -> bool:
    """Whether a value is a list of texts, and not empty."""
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)


def are_different_integers(values: Any) -> bool:
    """Whether a value is a list of integers of which no two are the same, and not empty."""
    if not isinstance(values, list) or not values:
        return False
    return all(type(value) is int for value in values) and len(set(values)) == len(values)
