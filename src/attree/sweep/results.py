"""The results of a sweep as data frames: one row per run, or one row per setting with means over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd

from attree.attribution import METHODS
from attree.callbacks.metric_texts import accuracy_names
from attree.evaluation.names import FAITHFULNESS, TRUTH
from attree.report.sweep_figure import SETTING, method_of
from attree.sweep.plan import COLUMNS, RUN, SEED, SWEEP, Plan, Point, Run, Settings, short_names, value_text
from attree.sweep.run import folder_of_run, is_marked, metrics_of_run
from attree.sweep.study import SweepStudy


def collect(plan: Plan, folder: Path, study: SweepStudy | None = None) -> pd.DataFrame:
    """Return one row per finished run of each block, with its settings, seed, id and all its metrics.

    Metrics are read from the run directories. If a run directory is on another machine, they are read from the study.

    Args:
        plan: The plan.
        folder: Folder that holds the sweep's folder.
        study: The study, which has the settings that searches have drawn; None if there is none.
    """
    records = {} if study is None else study.records()
    elsewhere = {run: metrics for record in records.values() for run, metrics in record.runs.items()}
    rows = []
    for block, setting, labels, point in _points(plan, study):
        run_directory = folder_of_run(plan, point.run, folder)
        metrics = metrics_of_run(run_directory) if is_marked(point.run, run_directory) else None
        if metrics is None and not run_directory.exists():
            metrics = elsewhere.get(point.run.id)
        if metrics is not None:
            settings = {labels[key]: value for key, value in point.settings.items()}
            named = {SWEEP: block, SETTING: setting, **settings, SEED: point.seed, RUN: point.run.id}
            rows.append({**named, **metrics})
    return pd.DataFrame(rows)


def _points(plan: Plan, study: SweepStudy | None) -> Iterator[tuple[str, object, dict[str, str], Point]]:
    """Yield each point with known settings, after its block, the setting's label and the names of its keys."""
    for block in plan.blocks:
        for point in block.points:
            settings = {block.labels[key]: value for key, value in point.settings.items()}
            yield block.name, _setting_label(settings), block.labels, point
    if study is None or not plan.searches:
        return
    records = study.records()
    for task in plan.tasks:
        record = records[task.key]
        if task.search is not None and record.settings is not None and record.status == "done":
            for point in task.search.points(task.number, record.settings):
                yield task.block, f"{task.number:03d}", short_names(task.search.space), point


def _setting_label(settings: Settings) -> object:
    """Return the label of a setting on its block's axis: its value, or all values with their names."""
    if len(settings) == 1:
        (value,) = settings.values()
        return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
    return ", ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def damaged_runs(plan: Plan, folder: Path) -> list[Run]:
    """Return the runs that once succeeded, but whose metrics can no longer be read."""
    folders = {run.id: folder_of_run(plan, run, folder) for run in plan.runs}
    return [run for run in plan.runs if is_marked(run, folders[run.id]) and metrics_of_run(folders[run.id]) is None]


def chosen_metrics(patterns: Sequence[str], results: pd.DataFrame) -> list[str]:
    """Return the metrics that match a name or a pattern with `*`, in the order of the patterns, then of the methods."""
    rank = {method: position for position, method in enumerate(METHODS)}
    logged = [name for name in results.columns if "/" in name]
    logged.sort(key=lambda name: rank.get(name.split("/")[1], len(rank)))
    return list(dict.fromkeys(name for pattern in patterns for name in logged if fnmatchcase(name, pattern)))


def traded_metrics(results: pd.DataFrame, metrics: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the accuracy and the explanation metrics to plot against each other, if some run has them.

    They are taken from the metrics to show. If these have no accuracy, another logged accuracy is taken. Faithfulness
    and agreement with ground truth are preferred to single statistics.

    Args:
        results: One row per run, as `collect` returns them.
        metrics: Names of the metrics to show.
    """
    logged = [name for name in results.columns if "acc" in name and results[name].notna().any()]
    accuracies = accuracy_names([name for name in metrics if name in logged]) or accuracy_names(logged)
    of_methods = [name for name in metrics if method_of(name) is not None and results[name].notna().any()]
    headlines = [name for name in of_methods if name.rpartition("/")[2] in (FAITHFULNESS, TRUTH)]
    return accuracies[0] if accuracies else None, headlines or of_methods


def means(results: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: the number of runs, and of each metric the mean, standard deviation and count."""
    logged = [name for name in results.columns if "/" in name]
    rows = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        rows.append({SWEEP: sweep, SETTING: setting, "n": len(runs), **over_runs(runs, logged)})
    return pd.DataFrame(rows)


def over_runs(runs: pd.DataFrame, metrics: Sequence[str]) -> dict[str, object]:
    """Return the mean, standard deviation and count of metrics over runs, by column name."""
    row: dict[str, object] = {}
    for name in metrics:
        row |= {f"{name} mean": runs[name].mean(), f"{name} std": runs[name].std(), f"{name} n": runs[name].count()}
    return row


def parameter_columns(results: pd.DataFrame) -> list[str]:
    """Return the columns of results that hold values of settings."""
    return [name for name in results.columns if "/" not in name and name not in COLUMNS]
