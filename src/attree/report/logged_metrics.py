"""Logged metrics: training curves from a run directory, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from attree.attribution import method_label
from attree.evaluation.metric_names import METRIC_LABELS, PREFIX, MetricName, number_and_interval, truth_note
from attree.evaluation.result import Evaluation
from attree.evaluation.tables import TableKind, half_width_notes, measured_targets, short_table
from attree.faithfulness import PROTOCOLS

Points = list[tuple[int, float]]

MOST_POINTS = 400
"""Maximum number of points of a curve. A longer curve is thinned to equal distances, with its last point."""


def read_curves(folder: Path, most_points: int = MOST_POINTS) -> dict[str, Points]:
    """Read the logged curves of a run: losses, accuracies and explanation metrics.

    They come from TensorBoard's event files, or else from `metrics.csv`.

    Args:
        folder: The run directory.
        most_points: Most points of a curve.

    Returns:
        A list of (step, value) for each name; empty if the run has no curves.
    """
    events = sorted(folder.glob("events.out.tfevents.*"))
    table = folder / "metrics.csv"
    curves = _from_events(folder) if events else _from_table(table) if table.is_file() else {}
    return {name: _thinned(points, most_points) for name, points in curves.items() if _is_shown(name) and points}


def _is_shown(name: str) -> bool:
    return name.startswith(("train/", "val/")) or MetricName.parse(name) is not None


def _from_events(folder: Path) -> dict[str, Points]:
    """Return the curves in the TensorBoard event files of a run: a list of (step, value) for each name."""
    # Imported here, because the import is slow.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    # A resumed run writes some steps twice; the later value counts.
    return {
        name: sorted({event.step: event.value for event in events.Scalars(name)}.items())
        for name in events.Tags()["scalars"]
    }


def _from_table(path: Path) -> dict[str, Points]:
    """Return the curves in the file `metrics.csv` of a run: a list of (step, value) for each name."""
    table = pd.read_csv(path)
    if "step" not in table:
        return {}
    curves = {}
    for name in table.columns.drop("step"):
        if pd.api.types.is_numeric_dtype(table[name]):
            defined = table[["step", name]].dropna().drop_duplicates("step", keep="last").sort_values("step")
            curves[str(name)] = [(int(step), float(value)) for step, value in defined.to_numpy()]
    return curves


def _thinned(points: Points, most: int) -> Points:
    if len(points) <= most:
        return points
    return [points[place] for place in np.linspace(0, len(points) - 1, most).round().astype(int).tolist()]


def split_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, dict[MetricName, float]], dict[str, float]]:
    """Split logged scalars into explanation metrics, by method, and all others."""
    by_method: dict[str, dict[MetricName, float]] = {}
    others: dict[str, float] = {}
    for name, value in metrics.items():
        metric = MetricName.parse(name)
        if metric is None:
            others[name] = float(value)
        else:
            by_method.setdefault(metric.method, {})[metric] = float(value)
    return by_method, others


def metrics_table(
    metrics: Mapping[str, Any],
    title: str = "How well attention explains the network",
    num_targets: int | None = None,
    num_true_targets: int | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> Table:
    """Return a table with one column per attribution method and one row per explanation metric.

    The caption says what the protocols do and how many targets were measured, and lists the other scalars.

    Args:
        metrics: Scalars, by the names that they are logged under.
        title: Heading of the table.
        num_targets: Number of measured targets; None leaves it out.
        num_true_targets: Number of targets that ground truth was measured on; None leaves it out.
        intervals: 95 % intervals, by the names of their scalars; half the width is printed beside the number.
    """
    by_method, others = split_metrics(metrics)
    protocols = dict.fromkeys(metric.protocol for values in by_method.values() for metric in values)
    meanings = [f"{name}: {PROTOCOLS[name].meaning}" for name in protocols if name in PROTOCOLS]
    if num_targets is not None and meanings:
        meanings.append(f"measured on {num_targets} target{'' if num_targets == 1 else 's'}")
    if num_true_targets is not None:
        meanings.append(truth_note(num_true_targets))
    interval_of = {} if intervals is None else intervals
    meanings += half_width_notes(interval_of)
    caption = "\n".join([*meanings, "   ".join(f"{name} {value:.4g}" for name, value in sorted(others.items()))])
    # Without lines between columns, five methods with their intervals fit 80 columns.
    look: dict[str, Any] = {"box": None, "padding": (0, 1), "pad_edge": False}
    table = Table(title=title, caption=caption, title_style="bold", caption_justify="left", **look)
    table.add_column("metric")
    for method in by_method:
        table.add_column(method_label(method), justify="right")
    rows = dict.fromkeys((metric.protocol, metric.statistic) for values in by_method.values() for metric in values)
    for protocol in dict.fromkeys(protocol for protocol, _ in rows):
        if protocol:
            table.add_row(protocol, style="bold")
        for statistic in (statistic for other, statistic in rows if other == protocol):
            label = METRIC_LABELS.get(statistic, statistic)
            names = [MetricName(method, statistic, protocol) for method in by_method]
            table.add_row(
                label, *(_cell(by_method[name.method].get(name), interval_of.get(str(name))) for name in names)
            )
        table.add_section()
    return table


def short_metrics_table(
    metrics: Mapping[str, Any],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    num_true_targets: int | None = None,
    measured: str = "",
) -> Group:
    """Return the short table of logged metrics: a row per method, the true edges and each protocol as columns.

    Below it, in the width of the screen, is what the numbers mean and what they were measured on.

    Args:
        metrics: Scalars, by the names that they are logged under.
        intervals: 95 % intervals, by the names of their scalars.
        num_true_targets: Number of targets that the true edges are measured on; None leaves it out.
        measured: How many targets were measured, in words; empty leaves it out.
    """
    by_method, others = split_metrics(metrics)
    short = short_table(
        {name: float(value) for name, value in metrics.items()},
        {name: method_label(name) for name in by_method},
        intervals,
    )
    accuracies = "   ".join(
        f"{name} {value:.4g}" for name, value in sorted(others.items()) if not name.startswith(PREFIX)
    )
    truth = [] if num_true_targets is None else [truth_note(num_true_targets)]
    half = half_width_notes(intervals)
    edges = [f"effects of edges: measured on {measured}"] if measured else []
    notes = "\n".join(filter(None, [short.note, *edges, *truth, *half, accuracies]))
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("method", no_wrap=True)
    for header in short.headers:
        table.add_column(header, no_wrap=True)
    for label, cells in short.rows.items():
        table.add_row(label, *(Text(f"{cell.bar} {cell.text}", style="bold" if cell.is_best else "") for cell in cells))
    return Group(table, Text(notes, style="table.caption"))


def print_results(
    console: Console,
    evaluation: Evaluation,
    metrics: Mapping[str, Any],
    intervals: Mapping[str, tuple[float, float]],
    table: TableKind = "short",
) -> None:
    """Print the headline, the table and the findings of an evaluation.

    Args:
        console: Where to print.
        evaluation: The evaluation.
        metrics: All scalars of the run, by the names that they are logged under.
        intervals: 95 % intervals of these.
        table: `short` for a few numbers of each method, `full` for every statistic and every finding.
    """
    verdict = evaluation.verdict
    for line in verdict.headline.splitlines():
        console.print(Text(line, style="bold"), soft_wrap=False)
    if table == "full":
        count = evaluation.num_targets
        full = metrics_table(
            metrics, num_targets=count, num_true_targets=evaluation.num_true_targets, intervals=intervals
        )
        console.print(full, soft_wrap=False)
    else:
        short = short_metrics_table(metrics, intervals, evaluation.num_true_targets, measured_targets(evaluation))
        console.print(short, soft_wrap=False)
    for sentence in verdict.sentences if table == "full" else verdict.cautions:
        console.print(Text(f"- {sentence}"), soft_wrap=False)


def _cell(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    if interval is None:
        return number_and_interval(value)
    return number_and_interval(value, interval, digits=2).replace("\N{PLUS-MINUS SIGN}0.", "\N{PLUS-MINUS SIGN}.")
