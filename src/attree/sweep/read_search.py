"""Read what a sweep file says about a search: the space, how it is sampled and pruned, and the objectives."""

from __future__ import annotations

from typing import Any

from attree.sweep.check_file import FileChecks, is_finite_number
from attree.sweep.plan import Choices, Direction, Range, value_text

SEARCH_KEYS = ("search", "trials", "sampler", "seed", "pruner", "objectives")
SAMPLERS = ("tpe", "nsga2", "random")
PRUNERS = ("median", "halving", "none")
DIRECTIONS = ("maximize", "minimize")


def read_objectives(content: Any, checks: FileChecks) -> dict[str, Direction]:
    """The objectives of a search: metrics, and which way is better."""
    objectives = checks.mapping(content, "`objectives`")
    for name, direction in objectives.items():
        checks.expect(direction in DIRECTIONS, f"`objectives.{name}` to be maximize or minimize", direction)
        checks.expect("*" not in name, "`objectives` to be names of metrics, not patterns", name)
    return objectives


def read_space(content: Any, checks: FileChecks) -> dict[str, Range | Choices]:
    """What a search draws from, by key."""
    space = {key: _read_dimension(key, one, checks) for key, one in checks.mapping(content, "`search`").items()}
    checks.expect(len(space) > 0, "`search` to name at least one key", space)
    return space


def _read_dimension(key: str, content: Any, checks: FileChecks) -> Range | Choices:
    where = f"`search.{key}`"
    fields = checks.mapping(content, where, {"low", "high", "log", "step", "choices"})
    form = f"{where} to be {{choices: [...]}} or {{low: ..., high: ...}}"
    if "choices" in fields:
        values = fields["choices"]
        checks.expect(isinstance(values, list) and len(fields) == 1, form, content)
        different = len({value_text(value) for value in values})
        checks.expect(different > 1, f"{where} to have several choices (`set` has what is fixed)", values)
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
    """How a search goes about: its `trials`, `sampler`, `seed` and `pruner`."""
    trials, seed = fields.get("trials"), fields.get("seed", 0)
    checks.expect(type(trials) is int and trials > 0, "`trials` of a search to be a positive integer", trials)
    checks.expect(type(seed) is int and seed >= 0, "a search's `seed` to be an integer >= 0", seed)
    strategy = {"sampler": fields.get("sampler", SAMPLERS[0]), "pruner": fields.get("pruner", default_pruner)}
    for key, allowed in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        checks.expect(strategy[key] in allowed, f"`{key}` to be one of {', '.join(allowed)}", strategy[key])
    return {**strategy, "trials": trials, "seed": seed}
