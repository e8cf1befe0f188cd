"""The results of a sweep as tables: one row per run, or one row per setting with means over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd

from attree.attribution import METHODS
from attree.callbacks.metric_texts import accuracy_names
from attree.evaluation.names import FAITHFULNESS, TRUTH
from attree.report.sweep_figure import SETTING, method_of
from attree.sweep.plan import RUN, SEED, SWEEP, Plan, Point, Run, Settings, short_names, value_text
from attree.sweep.run import folder_of_run, is_marked, metrics_of_run
from attree.sweep.study import SweepStudy


def collect(plan: Plan, folder: Path, study: SweepStudy | None = None) -> pd.DataFrame:
    """One row per finished run of each block: its settings, seed, id and all its metrics; blocks in their order.

    Metrics are read from the runs' folders, and of runs whose folders are on other machines from the study.

    Args:
        plan: The plan.
        folder: Where the sweep's folder is.
        study: The study, if there is one: it knows what searches have drawn.
    """
    records = {} if study is None else study.records()
    elsewhere = {run: metrics for record in records.values() for run, metrics in record.runs.items()}
    rows = []
    for block, setting, labels, point in _points(plan, study):
        own = folder_of_run(plan, point.run, folder)
        metrics = metrics_of_run(own) if is_marked(point.run, own) else None
        if metrics is None and not own.exists():
            metrics = elsewhere.get(point.run.id)
        if metrics is not None:
            settings = {labels[key]: value for key, value in point.settings.items()}
            named = {SWEEP: block, SETTING: setting, **settings, SEED: point.seed, RUN: point.run.id}
            rows.append({**named, **metrics})
    return pd.DataFrame(rows)


def _points(plan: Plan, study: SweepStudy | None) -> Iterator[tuple[str, object, dict[str, str], Point]]:
    """Every point whose settings are known: its block, what it is called there, names of its keys, and itself."""
    for block in plan.blocks:
        for point in block.points:
            settings = {block.labels[key]: value for key, value in point.settings.items()}
            yield block.name, _setting(settings), block.labels, point
    if study is None or not plan.searches:
        return
    records = study.records()
    for task in plan.tasks:
        record = records[task.key]
        if task.search is not None and record.settings is not None and record.status == "done":
            for point in task.search.points(task.number, record.settings):
                yield task.block, f"{task.number:03d}", short_names(task.search.space), point


def _setting(settings: Settings) -> object:
    """What a point is called on its block's axis: its value, or all values with their names if there are several."""
    if len(settings) == 1:
        (value,) = settings.values()
        return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
    return ", ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def drawn_runs(plan: Plan, study: SweepStudy | None) -> list[Run]:
    """The runs of the searches that are known so far."""
    searched = {search.name for search in plan.searches}
    return [point.run for block, _, _, point in _points(plan, study) if block in searched]


def chosen_metrics(patterns: Sequence[str], results: pd.DataFrame) -> list[str]:
    """The metrics that match a name or pattern (with `*`), in the order of the patterns, then of the methods."""
    rank = {method: position for position, method in enumerate(METHODS)}
    logged = [name for name in results.columns if "/" in name]
    logged.sort(key=lambda name: rank.get(name.split("/")[1], len(rank)))
    return list(dict.fromkeys(name for pattern in patterns for name in logged if fnmatchcase(name, pattern)))


def traded_metrics(results: pd.DataFrame, metrics: Sequence[str]) -> tuple[str | None, list[str]]:
    """The accuracy and the explanation metrics that a sweep trades for one another, of those that some run has.

    Both are taken from what the sweep shows: an accuracy that it does not show still counts, and of the explanation
    metrics faithfulness and ground truth come before single statistics.
    """
    known = [name for name in results.columns if "acc" in name and results[name].notna().any()]
    found = accuracy_names([name for name in metrics if name in known]) or accuracy_names(known)
    of_methods = [name for name in metrics if method_of(name) is not None and results[name].notna().any()]
    headlines = [name for name in of_methods if name.rpartition("/")[2] in (FAITHFULNESS, TRUTH)]
    return found[0] if found else None, headlines or of_methods


def means(results: pd.DataFrame) -> pd.DataFrame:
    """One row per setting: `n` runs, and for each metric its mean, standard deviation and in how many it is defined."""
    logged = [name for name in results.columns if "/" in name]
    rows = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        row: dict[str, object] = {SWEEP: sweep, SETTING: setting, "n": len(runs)}
        for name in logged:
            row |= {f"{name} mean": runs[name].mean(), f"{name} std": runs[name].std(), f"{name} n": runs[name].count()}
        rows.append(row)
    return pd.DataFrame(rows)
