"""Read a sweep file and expand it into a plan.

A sweep file names the config to start from, the settings to try, and the seeds:

    name: regularization              # runs go to <folder>/<name>/<run id>
    config: cora                      # config of every run: a name (`attree configs`), or a file relative to this one
    set: {explain.every_n_epochs: 0}  # optional: values that all runs set in the config
    keys:                             # optional: short names for config keys; one name may set several
      dropout: [model.init_args.net.init_args.dropout, model.init_args.net.init_args.attention_dropout]
      seed: [seed_everything, data.init_args.seed]
    seeds: [0, 1, 2]                  # every setting runs once per seed; without `keys.seed` it sets seed_everything
    runs:                             # one or more blocks, each a panel of the figure
      - grid: {dropout: [0, 0.5]}     # all combinations of the listed values,
        set: {model.init_args.lr: 0.01}
      - list: [{dropout: 0.1, model.init_args.lr: 0.1}]  # or exactly these,
        name: tuned                   # optional: heading of the panel, and first word of the run ids
      - search:                       # or settings that a sampler draws
          dropout: {low: 0.0, high: 0.6}                            # (if both ends are integers, integers are drawn)
          model.init_args.lr: {low: 1e-4, high: 1e-1, log: true}
          heads: {choices: [1, 2, 4]}
        trials: 60                    # number of settings to draw; each is run with every seed
        sampler: tpe                  # optional: tpe, nsga2 or random
        seed: 0                       # optional: seed of the sampler
        pruner: median                # optional: median (the default with a single objective), halving or none
    objectives:                       # metrics that a search optimises, as means over the seeds
      val/acc: maximize
      explain/gatt/removal/faithfulness: maximize
    accuracy_within: 0.05             # optional: the best trade-offs are at most so far below the best accuracy
    metrics: [val/acc, explain/*/*/faithfulness]  # optional: metrics in the table and the figure

A file with a single search may have `search`, `trials`, `sampler`, `seed` and `pruner` at the top level, without
`runs`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from attree.errors import ArgumentError, MissingDataError, did_you_mean
from attree.evaluation.metric_names import METRIC_LABELS, PREFIX
from attree.io.config_files import config_hint, expect_sweep, find_config
from attree.io.yaml_files import read_yaml
from attree.sweep.plan import (
    COLUMNS,
    SEED,
    Block,
    Choices,
    Direction,
    Plan,
    Point,
    Range,
    Run,
    Search,
    Settings,
    fingerprint,
    run_id,
    short_names,
    value_text,
)

SEARCH_KEYS = ("search", "trials", "sampler", "seed", "pruner", "objectives")
SAMPLERS = ("tpe", "nsga2", "random")
PRUNERS = ("median", "halving", "none")

DEFAULT_METRICS = ("val/acc", "explain/gatt/*/faithfulness", "explain/gatt/truth_auroc")
"""Metrics to show if the sweep file names none. The last one exists only if the data has ground truth."""

DEFAULT_OBJECTIVES: dict[str, Direction] = {"val/acc": "maximize"}
"""Objectives of the study if the sweep file names none, for Optuna's displays."""

DIGITS = 4
"""Significant digits of drawn numbers in run ids. The runs get all digits."""


class _Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-4 as a number, as the parser of configs does. YAML 1.1 reads it as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_plan(path: str | Path) -> Plan:
    """Read a sweep file, given by path or by the name of one that comes with attree, and expand it.

    Settings of two blocks that result in the same config, such as weight decay 0 and dropout 0, share one run.
    """
    file = expect_sweep(str(path))
    return _Reader(file).plan(read_yaml(file, _Loader))


class _Reader:
    """Checks and expands the content of one sweep file. Errors are one sentence that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[str, Run] = {}  # those of grids and lists, by id

    def plan(self, content: Any) -> Plan:
        """Return the plan that the content of a sweep file describes; raise unless all fields are valid."""
        allowed = {"name", "config", "set", "keys", "seeds", "runs", "metrics", "accuracy_within", *SEARCH_KEYS}
        fields = self.mapping(content, "the file", allowed)
        at_top = {key: fields.pop(key) for key in SEARCH_KEYS if key in fields}
        objectives = self._objectives(at_top.pop("objectives", {}))
        if "search" in at_top:
            self.expect("runs" not in fields, "either `runs` or `search` at the top of the file", "both")
            fields["runs"] = [at_top]
        else:
            self.expect(not at_top, "`search` beside the keys of a search", sorted(at_top))
        for required in ("name", "config", "runs"):
            self.expect(required in fields, f"to have the key `{required}`", sorted(fields))
        name, runs = fields["name"], fields["runs"]
        self.expect(_is_file_name(name), "`name` to be letters, digits and any of . _ + -", name)
        config = self._config(str(fields["config"]))
        self.text = config.read_text(encoding="utf-8")
        self.keys = self._keys(fields.get("keys", {}))
        self.seeds = fields.get("seeds", [0])
        are_integers = isinstance(self.seeds, list) and all(type(seed) is int for seed in self.seeds)
        are_different = are_integers and len(self.seeds) == len(set(self.seeds)) > 0
        self.expect(are_different, "`seeds` to be a list of different integers", self.seeds)
        self.expect(isinstance(runs, list) and len(runs) > 0, "`runs` to be a list of blocks", runs)
        metrics = fields.get("metrics", list(DEFAULT_METRICS))
        self.expect(_are_strings(metrics), "`metrics` to be a list of names or patterns", metrics)

        within = fields.get("accuracy_within")
        is_distance = within is None or (_is_finite_number(within) and within >= 0)
        self.expect(is_distance, "`accuracy_within` to be a number >= 0", within)

        common = self._resolve(self.mapping(fields.get("set", {}), "`set`"))
        blocks: list[Block] = []
        searches: list[Search] = []
        for block in runs:
            if isinstance(block, dict) and "search" in block:
                objectives |= self._objectives(block.get("objectives", {}))
        pruner = "median" if len(objectives) == 1 else "none"
        for block in runs:
            if isinstance(block, dict) and "search" in block:
                searches.append(self._search(block, common, pruner, many=len(runs) > 1))
            else:
                blocks.append(self._block(block, common))
        names = [*(block.name for block in blocks), *(search.name for search in searches)]
        self.expect(len(set(names)) == len(names), "blocks that vary the same keys to have different `name`s", names)
        self.expect(bool(objectives or not searches), "`objectives` for the search", None)
        pruned = [search.pruner for search in searches if search.pruner != "none"]
        self.expect(not pruned or len(objectives) == 1, "a single objective if there is a `pruner`", list(objectives))
        judged_by = objectives or dict(DEFAULT_OBJECTIVES)
        return Plan(name, config, blocks, searches, tuple(metrics), judged_by, bool(objectives), within)

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
        if allowed is not None:
            unknown = sorted(set(content) - allowed)
            hint = did_you_mean(unknown[0], allowed) if unknown else ""
            self.expect(not unknown, f"{what} to have only the keys {', '.join(sorted(allowed))}", unknown, hint)
        return dict(content)

    def _config(self, name: str) -> Path:
        """Return the config file of all runs, of a name or a path that the sweep file names."""
        config = self.path.parent / find_config(name, self.path.parent)
        if not config.is_file():
            absent = f"but {config} does not exist.{config_hint(name)}"
            raise MissingDataError(f"{self.path}: `config` is {name!r}, {absent}")
        read_yaml(config)
        return config

    def _keys(self, content: Any) -> dict[str, list[str]]:
        """Return the config keys that each short name stands for."""
        keys = {}
        for name, targets in self.mapping(content, "`keys`").items():
            keys[name] = [targets] if isinstance(targets, str) else targets
            self.expect(_are_strings(keys[name]), f"`keys.{name}` to be a config key or a list of them", targets)
        return {SEED: ["seed_everything"], **keys}

    def _block(self, content: Any, common: Settings) -> Block:
        """Return a block of the plan, one point per setting and seed, from a `grid` or `list` of the file."""
        fields = self.mapping(content, "a block of `runs`", {"grid", "list", "search", "set", "name"})
        kinds = [kind for kind in ("grid", "list") if kind in fields]
        self.expect(len(kinds) == 1, "each block to have either `grid` or `list` or `search`", fields)
        name, fixed = self._name_and_fixed(fields, common)
        points = []
        for settings in self._grid(fields["grid"]) if "grid" in fields else self._list(fields["list"]):
            resolved = self._checked(settings)
            for seed in self.seeds:
                overrides = {**fixed, **resolved, **self._resolve({SEED: seed})}
                points.append(Point(settings, seed, self._run(name, settings, seed, overrides)))
        block = Block(name, points)
        return block if name else Block(", ".join(block.labels.values()), points)

    def _name_and_fixed(self, fields: Settings, common: Settings) -> tuple[str, Settings]:
        name = fields.get("name", "")
        self.expect(name == "" or _is_file_name(name), "a block's `name` to be a plain word", name)
        return name, {**common, **self._resolve(self.mapping(fields.get("set", {}), "`set` of a block"))}

    def _checked(self, settings: Settings) -> Settings:
        """Return settings by config key. Raise if one sets a seed or has the name of a column."""
        self.expect(SEED not in settings, "seeds to be given by `seeds`", settings)
        columns = sorted(set(settings) & set(COLUMNS))
        self.expect(not columns, f"settings with names other than the columns {', '.join(COLUMNS)}", columns)
        resolved = self._resolve(settings)
        seeded = sorted(resolved.keys() & self._resolve({SEED: 0}).keys())
        self.expect(not seeded, "settings other than those that `seeds` sets", seeded)
        return resolved

    def _grid(self, content: Any) -> Iterator[Settings]:
        """Yield the settings of a `grid` in the sweep file: every combination of the values of its keys."""
        grid = self.mapping(content, "`grid`")
        self.expect(len(grid) > 0, "`grid` to name at least one key", grid)
        for key, values in grid.items():
            self.expect(isinstance(values, list) and len(values) > 0, f"`grid.{key}` to be a list of values", values)
        for combination in itertools.product(*grid.values()):
            yield dict(zip(grid, combination, strict=True))

    def _list(self, content: Any) -> Iterator[Settings]:
        self.expect(isinstance(content, list) and len(content) > 0, "`list` to be a list of settings", content)
        for settings in content:
            yield self.mapping(settings, "an entry of `list`")

    def _search(self, content: Any, common: Settings, pruner: str, many: bool) -> Search:
        """Return a search of the plan from a block of the file: space, strategy, and a function that makes runs."""
        fields = self.mapping(content, "a block with `search`", {*SEARCH_KEYS, "set", "name"})
        name, fixed = self._name_and_fixed(fields, common)
        space = {key: self._dimension(key, entry) for key, entry in self.mapping(fields["search"], "`search`").items()}
        self.expect(len(space) > 0, "`search` to name at least one key", space)
        self._checked(dict.fromkeys(space))
        label = name or (", ".join(short_names(space).values()) if many else "search")
        common_part = {"fixed": fixed, "seeds": self.seeds, "keys": {key: self._resolve({key: 0}) for key in space}}

        def make_run(number: int, settings: Settings, seed: int) -> Run:
            overrides = {**fixed, **self._resolve(settings), **self._resolve({SEED: seed})}
            words = [*([name] if name else []), f"{number:03d}"]
            return Run(run_id(words, settings, seed, DIGITS), overrides, fingerprint(self.text, overrides))

        return Search(
            re.sub(r"[^\w.+-]+", "_", label),
            space,
            fingerprint=fingerprint(self.text, common_part),
            seeds=tuple(self.seeds),
            make_run=make_run,
            **self._strategy(fields, pruner),
        )

    def _objectives(self, content: Any) -> dict[str, Direction]:
        """Return the objectives of a search: names of metrics, each with its direction."""
        objectives = self.mapping(content, "`objectives`")
        for name, direction in objectives.items():
            allowed = direction in ("maximize", "minimize")
            self.expect(allowed, f"`objectives.{name}` to be maximize or minimize", direction)
            self.expect("*" not in name, "`objectives` to be names of metrics, not patterns", name)
            prefix, *path, statistic = str(name).split("/")
            if prefix == PREFIX and len(path) == 2 and path[0] != "effects":  # explain/METHOD/PROTOCOL/STATISTIC
                hint = did_you_mean(statistic, METRIC_LABELS)
                self.expect(statistic in METRIC_LABELS, "`objectives` to end in the name of a statistic", name, hint)
        return objectives

    def _dimension(self, key: str, content: Any) -> Range | Choices:
        """Return the range or the choices of one parameter of a search; raise unless its fields are valid."""
        where = f"`search.{key}`"
        fields = self.mapping(content, where, {"low", "high", "log", "step", "choices"})
        form = f"{where} to be {{choices: [...]}} or {{low: ..., high: ...}}"
        if "choices" in fields:
            values = fields["choices"]
            self.expect(isinstance(values, list) and len(fields) == 1, form, content)
            different = len({value_text(value) for value in values})
            self.expect(different > 1, f"{where} to have several choices (see `set` for fixed values)", values)
            self.expect(different == len(values), f"{where} to have no choice twice", values)
            return Choices(tuple(values))
        low: Any = fields.get("low")
        high: Any = fields.get("high")
        step: Any = fields.get("step")
        log = fields.get("log", False)
        numbers = all(_is_finite_number(value) for value in (low, high, 1 if step is None else step))
        self.expect(numbers, f"{form} with numbers", content)
        self.expect(low < high, f"{where} to have a `low` below its `high`", content)
        self.expect(isinstance(log, bool), f"`log` of {where} to be true or false", log)
        self.expect(not log or low > 0, f"{where} with `log` to have a `low` above 0", content)
        self.expect(step is None or not log, f"{where} to have `log` or `step`, not both", content)
        fits = step is None or 0 < step <= high - low
        self.expect(fits, f"`step` of {where} to be above 0 and at most `high` - `low`", content)
        return Range(low, high, log, step)

    def _strategy(self, fields: dict[str, Any], default_pruner: str) -> dict[str, Any]:
        """Return the `trials`, `sampler`, `seed` and `pruner` of a search."""
        trials, seed = fields.get("trials"), fields.get("seed", 0)
        self.expect(type(trials) is int and trials > 0, "`trials` of a search to be a positive integer", trials)
        self.expect(type(seed) is int and seed >= 0, "a search's `seed` to be an integer >= 0", seed)
        strategy = {"sampler": fields.get("sampler", SAMPLERS[0]), "pruner": fields.get("pruner", default_pruner)}
        for key, allowed in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            self.expect(strategy[key] in allowed, f"`{key}` to be one of {', '.join(allowed)}", strategy[key])
        return {**strategy, "trials": trials, "seed": seed}

    def _run(self, block: str, settings: Settings, seed: int, overrides: Settings) -> Run:
        """Return the run of one setting and seed; blocks that need a run with the same config share the run."""
        mark = fingerprint(self.text, overrides)
        for run in self.runs.values():
            if run.fingerprint == mark:
                return run
        name = run_id([block] if block else [], settings, seed)
        is_new = name not in self.runs
        self.expect(is_new, "run ids to differ (give the blocks a `name`, or the keys names in `keys`)", name)
        self.runs[name] = Run(name, overrides, mark)
        return self.runs[name]

    def _resolve(self, settings: Mapping[str, Any]) -> Settings:
        """Return settings by config key instead of by short name."""
        return {key: value for name, value in settings.items() for key in self.keys.get(name, [name])}


def _is_file_name(name: Any) -> bool:
    """Whether a value is text that can name a file and needs no quotes in a shell."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.+-]*", name) is not None


def _is_finite_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_strings(values: Any) -> bool:
    """Whether a value is a non-empty list of texts."""
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)
