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
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from attree.errors import MissingDataError
from attree.io.config_files import config_hint, find_config, find_sweep
from attree.io.yaml_files import read_yaml
from attree.sweep.plan import (
    COLUMNS,
    SEED,
    Block,
    Direction,
    Plan,
    Point,
    Run,
    Search,
    Settings,
    fingerprint,
    run_id,
    short_names,
)
from attree.sweep.read_fields import (
    SEARCH_KEYS,
    FileChecks,
    are_different_integers,
    are_strings,
    is_file_name,
    is_finite_number,
    read_objectives,
    read_space,
    read_strategy,
)

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
    path, given = Path(find_sweep(str(path))), str(path)
    if not path.is_file():
        raise MissingDataError(f"Expected a sweep file, but {given!r} does not exist.{config_hint(given, sweep=True)}")
    return _Reader(path).plan(read_yaml(path, _Loader))


class _Reader:
    """Checks and expands the content of one sweep file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checks = FileChecks(path)

    def plan(self, content: Any) -> Plan:
        """Return the plan that the content of a sweep file describes; raise unless all fields are valid."""
        known = {"name", "config", "set", "keys", "seeds", "runs", "metrics", "accuracy_within", *SEARCH_KEYS}
        fields = self.checks.mapping(content, "the file", known)
        at_top = {key: fields.pop(key) for key in SEARCH_KEYS if key in fields}
        objectives = read_objectives(at_top.pop("objectives", {}), self.checks)
        if "search" in at_top:
            self.checks.expect("runs" not in fields, "either `runs` or `search` at the top of the file", "both")
            fields["runs"] = [at_top]
        else:
            self.checks.expect(not at_top, "`search` beside the keys of a search", sorted(at_top))
        for required in ("name", "config", "runs"):
            self.checks.expect(required in fields, f"to have the key `{required}`", sorted(fields))
        name, runs = fields["name"], fields["runs"]
        self.checks.expect(is_file_name(name), "`name` to be letters, digits and any of . _ + -", name)
        config = self._config(str(fields["config"]))
        self.text = config.read_text(encoding="utf-8")
        self.keys = self._keys(fields.get("keys", {}))
        self.seeds = fields.get("seeds", [0])
        self.checks.expect(are_different_integers(self.seeds), "`seeds` to be a list of different integers", self.seeds)
        self.checks.expect(isinstance(runs, list) and len(runs) > 0, "`runs` to be a list of blocks", runs)
        metrics = fields.get("metrics", list(DEFAULT_METRICS))
        self.checks.expect(are_strings(metrics), "`metrics` to be a list of names or patterns", metrics)

        within = fields.get("accuracy_within")
        is_distance = within is None or (is_finite_number(within) and within >= 0)
        self.checks.expect(is_distance, "`accuracy_within` to be a number >= 0", within)

        common = self._resolve(self.checks.mapping(fields.get("set", {}), "`set`"))
        self.known: dict[str, Run] = {}
        blocks: list[Block] = []
        searches: list[Search] = []
        for block in runs:
            if isinstance(block, dict) and "search" in block:
                objectives |= read_objectives(block.get("objectives", {}), self.checks)
        pruner = "median" if len(objectives) == 1 else "none"
        for block in runs:
            if isinstance(block, dict) and "search" in block:
                searches.append(self._search(block, common, pruner, many=len(runs) > 1))
            else:
                blocks.append(self._block(block, common))
        names = [*(block.name for block in blocks), *(search.name for search in searches)]
        self.checks.expect(
            len(set(names)) == len(names), "blocks that vary the same keys to have different `name`s", names
        )
        self.checks.expect(bool(objectives or not searches), "`objectives` for the search", None)
        pruned = [search.pruner for search in searches if search.pruner != "none"]
        self.checks.expect(
            not pruned or len(objectives) == 1, "a single objective if there is a `pruner`", list(objectives)
        )
        known_objectives = objectives or dict(DEFAULT_OBJECTIVES)
        return Plan(name, config, blocks, searches, tuple(metrics), known_objectives, bool(objectives), within)

    def _config(self, given: str) -> Path:
        config = self.path.parent / find_config(given, self.path.parent)
        if not config.is_file():
            absent = f"but {config} does not exist.{config_hint(given)}"
            raise MissingDataError(f"{self.path}: `config` is {given!r}, {absent}")
        read_yaml(config)
        return config

    def _keys(self, content: Any) -> dict[str, list[str]]:
        keys = {}
        for name, targets in self.checks.mapping(content, "`keys`").items():
            listed = [targets] if isinstance(targets, str) else targets
            self.checks.expect(are_strings(listed), f"`keys.{name}` to be a config key or a list of them", targets)
            keys[name] = listed
        return {SEED: ["seed_everything"], **keys}

    def _block(self, content: Any, common: Settings) -> Block:
        """Return a block of the plan, one point per setting and seed, from a `grid` or `list` of the file."""
        fields = self.checks.mapping(content, "a block of `runs`", {"grid", "list", "search", "set", "name"})
        kinds = [kind for kind in ("grid", "list") if kind in fields]
        self.checks.expect(len(kinds) == 1, "each block to have either `grid` or `list` or `search`", fields)
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
        self.checks.expect(name == "" or is_file_name(name), "a block's `name` to be a plain word", name)
        return name, {**common, **self._resolve(self.checks.mapping(fields.get("set", {}), "`set` of a block"))}

    def _checked(self, settings: Settings) -> Settings:
        """Return settings by config key. Raise if one sets a seed or has the name of a column."""
        self.checks.expect(SEED not in settings, "seeds to be given by `seeds`", settings)
        taken = sorted(set(settings) & set(COLUMNS))
        self.checks.expect(not taken, f"settings with names other than the columns {', '.join(COLUMNS)}", taken)
        resolved = self._resolve(settings)
        seeded = sorted(resolved.keys() & self._resolve({SEED: 0}).keys())
        self.checks.expect(not seeded, "settings other than those that `seeds` sets", seeded)
        return resolved

    def _grid(self, content: Any) -> Iterator[Settings]:
        """Yield the settings of a `grid` in the sweep file: every combination of the values of its keys."""
        grid = self.checks.mapping(content, "`grid`")
        self.checks.expect(len(grid) > 0, "`grid` to name at least one key", grid)
        for key, values in grid.items():
            self.checks.expect(
                isinstance(values, list) and len(values) > 0, f"`grid.{key}` to be a list of values", values
            )
        for combination in itertools.product(*grid.values()):
            yield dict(zip(grid, combination, strict=True))

    def _list(self, content: Any) -> Iterator[Settings]:
        self.checks.expect(isinstance(content, list) and len(content) > 0, "`list` to be a list of settings", content)
        for settings in content:
            yield self.checks.mapping(settings, "an entry of `list`")

    def _search(self, content: Any, common: Settings, pruner: str, many: bool) -> Search:
        """Return a search of the plan from a block of the file: space, strategy, and a function that makes runs."""
        fields = self.checks.mapping(content, "a block with `search`", {*SEARCH_KEYS, "set", "name"})
        name, fixed = self._name_and_fixed(fields, common)
        space = read_space(fields["search"], self.checks)
        self._checked(dict.fromkeys(space))
        strategy = read_strategy(fields, pruner, self.checks)
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
            **strategy,
        )

    def _run(self, block: str, settings: Settings, seed: int, overrides: Settings) -> Run:
        """Return the run of one setting and seed; blocks that need a run with the same config share the run."""
        mark = fingerprint(self.text, overrides)
        for run in self.known.values():
            if run.fingerprint == mark:
                return run
        own = run_id([block] if block else [], settings, seed)
        self.checks.expect(
            own not in self.known,
            "run ids to differ (give the blocks a `name`, or the keys names in `keys`)",
            own,
        )
        self.known[own] = Run(own, overrides, mark)
        return self.known[own]

    def _resolve(self, settings: Mapping[str, Any]) -> Settings:
        """Return settings by config key instead of by short name."""
        return {key: value for name, value in settings.items() for key in self.keys.get(name, [name])}
