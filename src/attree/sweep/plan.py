"""Read a sweep file and expand it into runs.

A sweep file says which config to start from, which settings to try and with which seeds:

    name: regularization              # runs go to <folder>/<name>/<run id>
    config: ../cora.yaml              # what every run starts from: relative to this file, or a name (`attree configs`)
    set: {explain.every_n_epochs: 0}  # optional: what all runs change in it
    keys:                             # optional: short names for config keys; one name may set several
      dropout: [model.init_args.net.init_args.dropout, model.init_args.net.init_args.attention_dropout]
      seed: [seed_everything, data.init_args.seed]
    seeds: [0, 1, 2]                  # every setting runs once per seed; without `keys.seed` it sets seed_everything
    runs:                             # one or more blocks, each a panel of the figure
      - grid: {dropout: [0, 0.5]}     # all combinations of the listed values,
        set: {model.init_args.lr: 0.01}
      - list: [{dropout: 0.1, model.init_args.lr: 0.1}]  # or exactly these
        name: tuned                   # optional: heads the panel and begins the run ids
    metrics: [val/acc, explain/*/*/faithfulness]  # optional: what the table and the figure show
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from attree.errors import ArgumentError, MissingDataError, did_you_mean
from attree.io.config_files import config_hint, find_config, find_sweep
from attree.io.yaml_files import read_yaml
from attree.sweep.names import COLUMNS, SEED, short_names, value_text

DEFAULT_METRICS = ("val/acc", "explain/gatt/*/faithfulness", "explain/gatt/truth_auroc")
"""What a fit logs by itself, the last where the data has ground truth; a sweep file may name any others."""

Settings = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number, as the configs' own parser does; plain YAML 1.1 takes it for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Run:
    """One fit.

    Attributes:
        id: Readable, stable name; also the run's folder.
        overrides: What the run sets in the config, by config key.
        fingerprint: Hash of the config's text and the overrides: two runs with the same one are the same run.
    """

    id: str
    overrides: Settings
    fingerprint: str


@dataclass(frozen=True)
class Point:
    """One setting with one seed, and the run that realises it (which several points may share)."""

    settings: Settings
    seed: int
    run: Run


@dataclass(frozen=True)
class Block:
    """Points that belong on one axis: one panel of the figure."""

    name: str
    points: list[Point]

    @cached_property
    def labels(self) -> dict[str, str]:
        """What each varied key is called."""
        return short_names(dict.fromkeys(key for point in self.points for key in point.settings))


@dataclass(frozen=True)
class Plan:
    """A sweep file, read, checked and expanded."""

    name: str
    config: Path
    blocks: list[Block]
    metrics: tuple[str, ...]

    @cached_property
    def runs(self) -> list[Run]:
        """Every run once, in order."""
        return list({point.run.id: point.run for block in self.blocks for point in block.points}.values())


def load_plan(path: str | Path) -> Plan:
    """Read a sweep file, or one of attree's own by name, and expand it; what is wrong with it is one sentence.

    Settings that come to the same config (such as weight decay 0 and dropout 0 of two blocks that start from the same
    network) share one run.
    """
    path, given = Path(find_sweep(str(path))), str(path)
    if not path.is_file():
        raise MissingDataError(f"Expected a sweep file, but {given!r} does not exist.{config_hint(given, sweep=True)}")
    return _Reader(path).plan(read_yaml(path, _Loader))


class _Reader:
    """Checks and expands the content of one sweep file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def plan(self, content: Any) -> Plan:
        fields = self._mapping(content, "the file", {"name", "config", "set", "keys", "seeds", "runs", "metrics"})
        for required in ("name", "config", "runs"):
            self._expect(required in fields, f"to have the key `{required}`", sorted(fields))
        name, runs = fields["name"], fields["runs"]
        self._expect(_is_file_name(name), "`name` to be letters, digits and any of . _ + -", name)
        given = str(fields["config"])
        config = self.path.parent / find_config(given, self.path.parent)
        if not config.is_file():
            absent = f"but {config} does not exist.{config_hint(given)}"
            raise MissingDataError(f"{self.path}: `config` is {given!r}, {absent}")
        read_yaml(config)
        self.text = config.read_text(encoding="utf-8")
        self.keys = self._keys(fields.get("keys", {}))
        self.seeds = fields.get("seeds", [0])
        self._expect(_are_integers(self.seeds), "`seeds` to be a list of different integers", self.seeds)
        self._expect(isinstance(runs, list) and len(runs) > 0, "`runs` to be a list of blocks", runs)
        metrics = fields.get("metrics", list(DEFAULT_METRICS))
        self._expect(_are_strings(metrics), "`metrics` to be a list of names or patterns", metrics)

        common = self._resolve(self._mapping(fields.get("set", {}), "`set`"))
        self.known: dict[str, Run] = {}
        blocks = [self._block(block, common) for block in runs]
        names = [block.name for block in blocks]
        self._expect(len(set(names)) == len(names), "blocks that vary the same keys to have different `name`s", names)
        return Plan(name, config, blocks, tuple(metrics))

    def _keys(self, content: Any) -> dict[str, list[str]]:
        keys = {}
        for name, targets in self._mapping(content, "`keys`").items():
            listed = [targets] if isinstance(targets, str) else targets
            self._expect(_are_strings(listed), f"`keys.{name}` to be a config key or a list of them", targets)
            keys[name] = listed
        return {SEED: ["seed_everything"], **keys}

    def _block(self, content: Any, common: Settings) -> Block:
        fields = self._mapping(content, "a block of `runs`", {"grid", "list", "set", "name"})
        self._expect(("grid" in fields) != ("list" in fields), "each block to have either `grid` or `list`", fields)
        name = fields.get("name", "")
        self._expect(name == "" or _is_file_name(name), "a block's `name` to be a plain word", name)
        fixed = {**common, **self._resolve(self._mapping(fields.get("set", {}), "`set` of a block"))}
        points = []
        for settings in self._grid(fields["grid"]) if "grid" in fields else self._list(fields["list"]):
            self._expect(SEED not in settings, "seeds to be given by `seeds`", settings)
            taken = sorted(set(settings) & set(COLUMNS))
            self._expect(not taken, f"settings with other names than the columns {', '.join(COLUMNS)}", taken)
            resolved = self._resolve(settings)
            seeded = sorted(resolved.keys() & self._resolve({SEED: 0}).keys())
            self._expect(not seeded, "settings to be others than those that `seeds` sets", seeded)
            for seed in self.seeds:
                overrides = {**fixed, **resolved, **self._resolve({SEED: seed})}
                points.append(Point(settings, seed, self._run(name, settings, seed, overrides)))
        block = Block(name, points)
        return block if name else Block(", ".join(block.labels.values()), points)

    def _grid(self, content: Any) -> Iterator[Settings]:
        grid = self._mapping(content, "`grid`")
        self._expect(len(grid) > 0, "`grid` to name at least one key", grid)
        for key, values in grid.items():
            self._expect(isinstance(values, list) and len(values) > 0, f"`grid.{key}` to be a list of values", values)
        for combination in itertools.product(*grid.values()):
            yield dict(zip(grid, combination, strict=True))

    def _list(self, content: Any) -> Iterator[Settings]:
        self._expect(isinstance(content, list) and len(content) > 0, "`list` to be a list of settings", content)
        for settings in content:
            yield self._mapping(settings, "an entry of `list`")

    def _run(self, block: str, settings: Settings, seed: int, overrides: Settings) -> Run:
        fingerprint = _fingerprint(self.text, overrides)
        for run in self.known.values():
            if run.fingerprint == fingerprint:
                return run
        labels = short_names(settings)
        parts = [f"{labels[key]}={value_text(value)}" for key, value in settings.items()] + [f"{SEED}={seed}"]
        run_id = re.sub(r"[^\w.,=+-]+", "_", "-".join([block, *parts] if block else parts))
        self._expect(
            run_id not in self.known, "run ids to differ (give the blocks a `name`, or the keys one in `keys`)", run_id
        )
        self.known[run_id] = Run(run_id, overrides, fingerprint)
        return self.known[run_id]

    def _resolve(self, settings: Mapping[str, Any]) -> Settings:
        """Settings by config key instead of by short name."""
        return {key: value for name, value in settings.items() for key in self.keys.get(name, [name])}

    def _mapping(self, content: Any, what: str, allowed: set[str] | None = None) -> Settings:
        is_mapping = isinstance(content, dict) and all(isinstance(key, str) for key in content)
        self._expect(is_mapping, f"{what} to be a mapping of keys to values", content)
        unknown = [] if allowed is None else sorted(set(content) - allowed)
        hint = did_you_mean(unknown[0], allowed or ()) if unknown else ""
        self._expect(not unknown, f"{what} to have only the keys {', '.join(sorted(allowed or ()))}", unknown, hint)
        return dict(content)

    def _expect(self, condition: bool, expected: str, got: object, hint: str = "") -> None:
        if not condition:
            raise ArgumentError(f"{self.path}: Expected {expected}, but got {got!r}.{hint}")


def _fingerprint(config: str, overrides: Settings) -> str:
    content = json.dumps({"config": config, "overrides": overrides}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"\w[\w.+-]*", name) is not None


def _are_strings(values: Any) -> bool:
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)


def _are_integers(values: Any) -> bool:
    if not isinstance(values, list) or not values:
        return False
    return all(type(value) is int for value in values) and len(set(values)) == len(values)
