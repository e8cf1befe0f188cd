"""The plan of a sweep: blocks of settings, the run of each setting and seed, and the tasks that workers claim.

`attree.sweep.read_plan` reads a plan from a sweep file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from attree.report.sweep_figures import SETTING

SWEEP, SEED, RUN = "sweep", "seed", "run"

COLUMNS = (SWEEP, SETTING, SEED, RUN)
"""Columns of the results that no setting may be named after."""

Settings = dict[str, Any]
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Run:
    """One fit.

    Attributes:
        id: Readable, stable name; also the name of the run directory.
        overrides: Values that the run sets in the config, by config key.
        fingerprint: Hash of the config's text and the overrides. Runs with equal fingerprints are the same run.
    """

    id: str
    overrides: Settings
    fingerprint: str


@dataclass(frozen=True)
class Point:
    """A setting with a seed, and its run. Several points may share a run."""

    settings: Settings
    seed: int
    run: Run


@dataclass(frozen=True)
class Block:
    """Points on one axis: a panel of the figure."""

    name: str
    points: list[Point]

    @cached_property
    def labels(self) -> dict[str, str]:
        """Short name of each varied key."""
        return short_names(dict.fromkeys(key for point in self.points for key in point.settings))


@dataclass(frozen=True)
class Range:
    """A range of numbers that a search draws from: integers if both ends are integers, any numbers otherwise.

    Attributes:
        low: The smallest number.
        high: The largest number.
        log: Draw logarithms uniformly, so that 0.001 to 0.01 is as likely as 0.01 to 0.1.
        step: Distance between neighbouring numbers; None draws any number.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_integer(self) -> bool:
        """Whether only integers are drawn."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))


@dataclass(frozen=True)
class Choices:
    """A list of values that a search draws from, of any type."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Search:
    """A block whose settings are drawn by a sampler, one trial after the other.

    Attributes:
        name: Name of the block.
        space: Ranges and choices to draw from, by key.
        trials: Number of settings to draw. Each setting is run with every seed.
        sampler: `tpe`, `nsga2` or `random`.
        seed: Seed of the sampler.
        pruner: Rule that stops bad trials early: `median` (the metric of the trial's first seed is worse than the
            median of earlier trials at the same epoch), `halving` (successive halving), or `none`.
        fingerprint: Hash of everything that the runs of all trials have in common.
        seeds: Seeds that each setting is run with.
        make_run: Makes the run for a trial's number, its settings and a seed.
    """

    name: str
    space: dict[str, Range | Choices]
    trials: int
    sampler: str
    seed: int
    pruner: str
    fingerprint: str
    seeds: tuple[int, ...]
    make_run: Callable[[int, Settings, int], Run]

    def points(self, number: int, settings: Settings) -> list[Point]:
        """Return the points of a trial with these settings, one for each seed."""
        return [Point(settings, seed, self.make_run(number, settings, seed)) for seed in self.seeds]


@dataclass(frozen=True)
class Task:
    """The unit of work of a worker: a run of a grid or list, or a trial of a search with all its seeds.

    Attributes:
        key: Name of the task: the run's id, or the search's name and the trial's number.
        block: Name of the block.
        fingerprint: Hash of everything that the results depend on.
        point: The point of a grid or list; None for a trial of a search.
        search: The search; None for a run of a grid or list.
        number: Number of the trial in the search.
    """

    key: str
    block: str
    fingerprint: str
    point: Point | None = None
    search: Search | None = None
    number: int = 0

    def points(self, settings: Settings) -> list[Point]:
        """Return the points of the task: one per seed for a search with these settings, a single one otherwise."""
        if self.search is not None:
            return self.search.points(self.number, settings)
        assert self.point is not None
        return [self.point]


@dataclass(frozen=True)
class Plan:
    """A sweep file, read, checked and expanded.

    Attributes:
        name: Name of the sweep, its folder and its study.
        config: The config that every run starts from.
        blocks: The grids and lists.
        searches: The searches.
        metrics: Names or patterns of the metrics to show.
        objectives: The metrics that trials are judged by, each with its direction.
        has_objectives: Whether the file names objectives. If not, `objectives` is a default for Optuna's displays.
        accuracy_within: How far below the best accuracy the best trade-offs may be; None takes five points.
    """

    name: str
    config: Path
    blocks: list[Block]
    searches: list[Search]
    metrics: tuple[str, ...]
    objectives: dict[str, Direction]
    has_objectives: bool = False
    accuracy_within: float | None = None

    @cached_property
    def runs(self) -> list[Run]:
        """All runs of the grids and lists, in order and without repetitions."""
        return list({point.run.id: point.run for block in self.blocks for point in block.points}.values())

    @property
    def num_runs(self) -> int:
        """Number of runs of all blocks: those of grids and lists, and one per trial and seed of a search."""
        return len(self.runs) + sum(search.trials * len(search.seeds) for search in self.searches)

    @cached_property
    def tasks(self) -> list[Task]:
        """All tasks, in order."""
        by_run = {
            point.run.id: Task(point.run.id, block.name, point.run.fingerprint, point)
            for block in reversed(self.blocks)
            for point in reversed(block.points)
        }
        tasks = [by_run[run.id] for run in self.runs]
        for search in self.searches:
            for number in range(search.trials):
                mark = fingerprint(search.fingerprint, {"trial": number})
                tasks.append(Task(f"{search.name}-{number:03d}", search.name, mark, search=search, number=number))
        return tasks

    @cached_property
    def parameter_names(self) -> dict[tuple[str, str], str]:
        """Names of the study's parameters, by block and key.

        A study has one range per parameter, so a key that two blocks vary gets the name of the block as a prefix.
        """
        spaces = {block.name: block.labels for block in self.blocks}
        spaces |= {search.name: short_names(search.space) for search in self.searches}
        times = Counter(label for labels in spaces.values() for label in set(labels.values()))
        return {
            (name, key): label if times[label] == 1 else f"{name}.{label}"
            for name, labels in spaces.items()
            for key, label in labels.items()
        }


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last word of each config key, or the whole key if its last word is not unique or in `COLUMNS`.

    >>> short_names(["model.init_args.lr", "x.dropout", "y.dropout", "data.seed"])
    {'model.init_args.lr': 'lr', 'x.dropout': 'x.dropout', 'y.dropout': 'y.dropout', 'data.seed': 'data.seed'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    times = Counter([*last.values(), *COLUMNS])
    return {key: word if times[word] == 1 else key for key, word in last.items()}


def value_text(value: Any) -> str:
    """Return a value as users type it on the command line.

    >>> value_text(0.0005), value_text("attree.models.GATv2"), value_text(["gatt", "random"]), value_text(True)
    ('0.0005', 'attree.models.GATv2', '["gatt", "random"]', 'true')
    """
    return value if isinstance(value, str) else json.dumps(value)


def run_id(parts: Iterable[str], settings: Settings, seed: int, digits: int | None = None) -> str:
    """Return the id of a run: some words, its settings and its seed.

    Args:
        parts: Words at the beginning.
        settings: The settings by key.
        seed: The seed.
        digits: Significant digits of floating-point numbers; None writes all.

    >>> run_id(["tuned"], {"x.lr": 0.25, "net": "a b/c"}, 3), run_id(["007"], {"lr": 0.123456}, 0, digits=3)
    ('tuned-lr=0.25-net=a_b_c-seed=3', '007-lr=0.123-seed=0')
    """
    labels = short_names(settings)
    texts = {
        key: f"{value:.{digits}g}" if digits and isinstance(value, float) else value_text(value)
        for key, value in settings.items()
    }
    words = [*parts, *(f"{labels[key]}={text}" for key, text in texts.items()), f"{SEED}={seed}"]
    return re.sub(r"[^\w.,=+-]+", "_", "-".join(words))


def fingerprint(config: str, overrides: Settings) -> str:
    """Return a hash of a config's text and of the values that are set in it."""
    content = json.dumps({"config": config, "overrides": overrides}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
