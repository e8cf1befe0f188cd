"""Check single fields of a sweep file, and read the fields of a search. Errors are one sentence that names the file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attree.errors import ArgumentError, did_you_mean
from attree.sweep.plan import Choices, Direction, Range, value_text

SEARCH_KEYS = ("search", "trials", "sampler", "seed", "pruner", "objectives")
SAMPLERS = ("tpe", "nsga2", "random")
PRUNERS = ("median", "halving", "none")
DIRECTIONS = ("maximize", "minimize")


@dataclass(frozen=True)
class FileChecks:
    """Checks of one sweep file.

    Args:
        path: The file, for messages.
    """

    path: Path

    def expect(self, condition: bool, expected: str, got: object, hint: str = "") -> None:
        """Raise an `ArgumentError` unless the condition holds.

        Args:
            condition: The condition.
            expected: What the file must say, to follow the word "Expected".
            got: What the file says.
            hint: A sentence for the end.
        """
        if not condition:
            raise ArgumentError(f"{self.path}: Expected {expected}, but got {got!r}.{hint}")

    def mapping(self, content: Any, what: str, allowed: set[str] | None = None) -> dict[str, Any]:
        """Return some content, which must be a mapping with text as keys.

        Args:
            content: The content.
            what: Name of the content, for messages.
            allowed: The allowed keys; None allows any.
        """
        is_mapping = isinstance(content, dict) and all(isinstance(key, str) for key in content)
        self.expect(is_mapping, f"{what} to be a mapping of keys to values", content)
        unknown = [] if allowed is None else sorted(set(content) - allowed)
        hint = did_you_mean(unknown[0], allowed or ()) if unknown else ""
        self.expect(not unknown, f"{what} to have only the keys {', '.join(sorted(allowed or ()))}", unknown, hint)
        return dict(content)


def is_file_name(name: Any) -> bool:
    """Whether a value is text that can name a file and needs no quotes in a shell."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.+-]*", name) is not None


def is_finite_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def are_strings(values: Any) -> bool:
    """Whether a value is a non-empty list of texts."""
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)


def are_different_integers(values: Any) -> bool:
    """Whether a value is a non-empty list of different integers."""
    if not isinstance(values, list) or not values:
        return False
    return all(type(value) is int for value in values) and len(set(values)) == len(values)


def read_objectives(content: Any, checks: FileChecks) -> dict[str, Direction]:
    """Return the objectives of a search: names of metrics, each with its direction."""
    objectives = checks.mapping(content, "`objectives`")
    for name, direction in objectives.items():
        checks.expect(direction in DIRECTIONS, f"`objectives.{name}` to be maximize or minimize", direction)
        checks.expect("*" not in name, "`objectives` to be names of metrics, not patterns", name)
    return objectives


def read_space(content: Any, checks: FileChecks) -> dict[str, Range | Choices]:
    """Return the ranges and choices that a search draws from, by key."""
    space = {key: _read_dimension(key, one, checks) for key, one in checks.mapping(content, "`search`").items()}
    checks.expect(len(space) > 0, "`search` to name at least one key", space)
    return space


def _read_dimension(key: str, content: Any, checks: FileChecks) -> Range | Choices:
    """Return the range or the choices of one parameter of a search; raise unless the fields in the file are valid."""
    where = f"`search.{key}`"
    fields = checks.mapping(content, where, {"low", "high", "log", "step", "choices"})
    form = f"{where} to be {{choices: [...]}} or {{low: ..., high: ...}}"
    if "choices" in fields:
        values = fields["choices"]
        checks.expect(isinstance(values, list) and len(fields) == 1, form, content)
        different = len({value_text(value) for value in values})
        checks.expect(different > 1, f"{where} to have several choices (see `set` for fixed values)", values)
        checks.expect(different == len(values), f"{where} to have no choice twice", values)
        return Choices(tuple(values))
    low: Any = fields.get("low")
    high: Any = fields.get("high")
    step: Any = fields.get("step")
    log = fields.get("log", False)
    numbers = all(is_finite_number(value) for value in (low, high, 1 if step is None else step))
    checks.expect(numbers, f"{form} with numbers", content)
    checks.expect(low < high, f"{where} to have a `low` below its `high`", content)
    checks.expect(isinstance(log, bool), f"`log` of {where} to be true or false", log)
    checks.expect(not log or low > 0, f"{where} with `log` to have a `low` above 0", content)
    checks.expect(step is None or not log, f"{where} to have `log` or `step`, not both", content)
    fits = step is None or 0 < step <= high - low
    checks.expect(fits, f"`step` of {where} to be above 0 and at most `high` - `low`", content)
    return Range(low, high, log, step)


def read_strategy(fields: dict[str, Any], default_pruner: str, checks: FileChecks) -> dict[str, Any]:
    """Return the `trials`, `sampler`, `seed` and `pruner` of a search."""
    trials, seed = fields.get("trials"), fields.get("seed", 0)
    checks.expect(type(trials) is int and trials > 0, "`trials` of a search to be a positive integer", trials)
    checks.expect(type(seed) is int and seed >= 0, "a search's `seed` to be an integer >= 0", seed)
    strategy = {"sampler": fields.get("sampler", SAMPLERS[0]), "pruner": fields.get("pruner", default_pruner)}
    for key, allowed in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        checks.expect(strategy[key] in allowed, f"`{key}` to be one of {', '.join(allowed)}", strategy[key])
    return {**strategy, "trials": trials, "seed": seed}
