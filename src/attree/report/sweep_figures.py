"""Figures of sweeps: metrics against settings, as curves, grids of curves and heat maps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from attree.attribution import METHODS, method_label
from attree.errors import expect
from attree.evaluation.metric_names import METRIC_LABELS, PREFIX, MetricName
from attree.report.style import (
    BLUE,
    INK,
    ORANGE,
    SMALL_SIZE,
    VERMILION,
    Line,
    Look,
    grid_shape,
    method_looks,
    new_figure,
    note_undefined,
    plain_axes,
    plain_legend,
)

ROW_LABELS = {"acc": "accuracy", **METRIC_LABELS}
"""Labels of metrics by the last part of their names; others are labelled by that part itself."""

LINES: tuple[Line, ...] = ("-", "--", ":", "-.")
"""Line styles of metrics in one row that have the same method, or none."""

BANDS = "Lines and markers: means over runs; bands and bars: one standard deviation."

SETTING = "setting"
"""Name of the column with the swept value."""


def sweep_figure(results: Mapping[str, pd.DataFrame], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw metrics against swept settings: one column of panels per sweep, one row per kind of metric.

    A curve is the mean over the runs of a setting. Its band (or bars, if settings are not numbers) is one standard
    deviation to either side, and its faint dots are single runs. Settings are equally spaced in the given order, so
    that 0 and values of different magnitude fit on one axis. The panel says how many values are undefined, for
    instance because a run diverged. Each method has its own colour and marker; metrics without a method, such as
    accuracy, are black.

    Args:
        results: One table of runs per sweep, by the name of the swept setting: the column `setting`, and one column per
            metric (absent or NaN if a run has none).
        metrics: Names of the metrics to draw; those of one statistic and protocol share a row.
        title: Heading of the figure.
    """
    expect(len(results) > 0, "results", "results of at least one sweep", dict(results))
    expect(len(metrics) > 0, "metrics", "at least one metric", list(metrics))
    rows = metric_rows(metrics)
    looks = metric_looks(metrics)
    widths = [max(3.4, 0.6 * table[SETTING].nunique() + 1.0) for table in results.values()]
    figure = new_figure(max(sum(widths), 4.6), 2.2 * len(rows) + 1.1, title, BANDS)
    grid = figure.subplots(len(rows), len(results), sharey="row", sharex="col", squeeze=False, width_ratios=widths)
    for row, (kind, names) in enumerate(rows.items()):
        labels = series_labels(names)
        for column, (swept, table) in enumerate(results.items()):
            axes = grid[row, column]
            plain_axes(
                axes,
                xlabel=axis_label(swept, table) if row == len(rows) - 1 else "",
                ylabel=kind if column == 0 else "",
            )
            names_in_table = [name for name in names if name in table]
            for name in names_in_table:
                _draw_curve(axes, table, name, *looks[name])
            defined = np.isfinite(table[names_in_table].to_numpy(dtype=np.float64))
            note_undefined(axes, int((~defined).sum()), defined.size)
            _name_settings(axes, table)
        names_in_legend = [name for name in names if any(name in table for table in results.values())]
        handles = [looks[name][0].handle(line=looks[name][1], size=4.5) for name in names_in_legend]
        plain_legend(
            grid[row, -1],
            handles,
            [labels[name] for name in names_in_legend],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
        )
    return figure


def metric_rows(metrics: Sequence[str]) -> dict[str, list[str]]:
    """Group metrics into rows of panels, by the label of the axis: the statistic and the protocol.

    >>> metric_rows(["val/acc", "explain/gatt/weight/faithfulness"])
    {'accuracy': ['val/acc'], 'faithfulness (mean), weight': ['explain/gatt/weight/faithfulness']}
    """
    rows: dict[str, list[str]] = {}
    for metric in metrics:
        words = metric.split("/")
        kind = ROW_LABELS.get(words[-1], words[-1].replace("_", " "))
        protocol = f", {words[2]}" if method_of(metric) is not None and len(words) > 3 else ""
        rows.setdefault(kind + protocol, []).append(metric)
    return rows


def metric_title(metric: str) -> str:
    """Return the title of a metric's panel.

    >>> metric_title("val/acc"), metric_title("explain/gatt/removal/faithfulness")
    ('val accuracy', 'GAtt faithfulness (mean), removal')
    """
    name = MetricName.parse(metric)
    if name is None:
        before, _, last = metric.rpartition("/")
        return f"{before} {ROW_LABELS.get(last, last)}".strip()
    words = f"{method_label(name.method)} {ROW_LABELS.get(name.statistic, name.statistic)}"
    return words if name.protocol is None else f"{words}, {name.protocol}"


def value_name(value: Any) -> str:
    """Return the label of a setting's value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def metric_looks(metrics: Sequence[str]) -> dict[str, tuple[Look, Line]]:
    """Return look and line style of each metric. The look shows the method; the line style separates equal looks."""
    looks = method_looks(method for metric in metrics if (method := method_of(metric)) is not None)
    row_of = {metric: row for row, names in metric_rows(metrics).items() for metric in names}
    times: dict[tuple[str | None, str], int] = {}
    look_and_line = {}
    for metric in metrics:
        method = method_of(metric)
        key = (method, row_of[metric])
        times[key] = times.get(key, -1) + 1
        look_and_line[metric] = (Look(INK, "o") if method is None else looks[method], LINES[times[key] % len(LINES)])
    return look_and_line


def method_of(metric: str) -> str | None:
    """Return the method of an explanation metric, whatever the name of its callback; None for other metrics.

    >>> method_of("explain/mine/weight/p_auroc"), method_of("second/gatt/truth_auroc"), method_of("val/acc")
    ('mine', 'gatt', None)
    """
    words = metric.split("/")
    is_explanation = len(words) in (3, 4) and (words[0] == PREFIX or words[1] in METHODS)
    return words[1] if is_explanation else None


def series_labels(metrics: Sequence[str]) -> dict[str, str]:
    """Return short labels that distinguish metrics of one kind.

    >>> series_labels(["explain/gatt/weight/faithfulness", "explain/random/weight/faithfulness"])
    {'explain/gatt/weight/faithfulness': 'GAtt', 'explain/random/weight/faithfulness': 'Random'}
    >>> series_labels(["explain/gatt/weight/faithfulness", "explain/gatt/removal/faithfulness"])
    {'explain/gatt/weight/faithfulness': 'weight', 'explain/gatt/removal/faithfulness': 'removal'}
    >>> series_labels(["val/acc"])
    {'val/acc': 'val'}
    """
    words = [metric.split("/") for metric in metrics]
    deepest = max(len(metric_words) for metric_words in words)
    padded = [metric_words[:-1] + [""] * (deepest - len(metric_words)) + metric_words[-1:] for metric_words in words]
    telling_positions = [
        position for position in range(deepest) if len({metric_words[position] for metric_words in padded}) > 1
    ]
    if not telling_positions:
        telling_positions = [0] if words[0][0] != "explain" else [1]
    labels = {}
    for metric, metric_words in zip(metrics, padded, strict=True):
        parts = [method_label(metric_words[position]) for position in telling_positions]
        labels[metric] = ", ".join(part for part in parts if part)
    return labels


def _draw_curve(axes: Axes, table: pd.DataFrame, metric: str, look: Look, line: Line) -> None:
    """Draw the mean of a metric against a swept setting, with the spread over seeds and a dot for each run."""
    color = look.color
    by_setting = table.groupby(SETTING, sort=False)[metric]
    mean = by_setting.mean().to_numpy(dtype=np.float64)
    spread = by_setting.std().fillna(0.0).to_numpy(dtype=np.float64)
    places = np.arange(len(mean))
    if pd.api.types.is_numeric_dtype(table[SETTING]):
        axes.plot(places, mean, linestyle=line, **look.lined(4.5))
        axes.fill_between(places, mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)
    else:
        axes.errorbar(places, mean, spread, linestyle="", capsize=3, elinewidth=1.2, **look.lined(4.5))
    of_run = pd.factorize(table[SETTING])[0]
    axes.scatter(of_run, table[metric].to_numpy(dtype=np.float64), s=7, color=color, alpha=0.55, linewidths=0)


def setting_names(table: pd.DataFrame) -> tuple[list[str], str]:
    """Return the labels of settings on an axis, and the names of their keys.

    A setting of several keys, such as "dropout=0, heads=2", is labelled by its values, one below the other.

    >>> setting_names(pd.DataFrame({"setting": ["dropout=0, heads=1", "dropout=0, heads=2"]}))
    (['0\\n1', '0\\n2'], 'dropout, heads')
    """
    numeric = pd.api.types.is_numeric_dtype(table[SETTING])
    names = [f"{setting:g}" if numeric else str(setting) for setting in table[SETTING].unique()]
    split = [[part.partition("=") for part in name.split(", ")] for name in names]
    keys = {tuple(key for key, _, _ in parts) for parts in split}
    if len(keys) != 1 or not all(sign for parts in split for _, sign, _ in parts):
        return names, ""
    return ["\n".join(value for _, _, value in parts) for parts in split], ", ".join(keys.pop())


def axis_label(swept: str, table: pd.DataFrame) -> str:
    """Return the label of an axis of settings: the name of the sweep, and the keys of its values."""
    keys = setting_names(table)[1]
    sweep_name = swept.replace("_", " ")
    return sweep_name if not keys or keys == swept else f"{sweep_name}: {keys.replace('_', ' ')}"


def _name_settings(axes: Axes, table: pd.DataFrame) -> None:
    names, _ = setting_names(table)
    long = max(len(line) for name in names for line in name.split("\n")) > 10
    rotation: dict[str, Any] = {"rotation": 30, "ha": "right"} if long else {"rotation": 0, "ha": "center"}
    axes.set_xticks(np.arange(len(names)), names, fontsize=SMALL_SIZE, parse_math=False, **rotation)
    axes.set_xlim(-0.4, len(names) - 0.6)


MOST_COLUMNS = 3

HEAT_COLORS = LinearSegmentedColormap.from_list("attree_heat", ["#F4F6FA", "#9CC3E6", "#2C7FB8", "#081D58"])
"""From pale (the lowest mean of a panel) to dark (the highest)."""

HEATS = "Means over runs. Each panel has its own colours, from its lowest mean (pale) to its highest (dark)."

CURVES = tuple(
    Look(color, marker)
    for color, marker in zip(
        (BLUE, VERMILION, "#009E73", ORANGE, "#CC79A7", "#56B4E9", "#32038F"), "osD^vP*", strict=True
    )
)
"""Looks of the first setting's values; they repeat if there are more values."""


def grid_curves_figure(table: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw one panel per metric, with the second setting on the axis and one curve per value of the first setting.

    A third setting has one column of panels for each of its values, and one row per metric, with one scale.
    A curve is the mean over the runs, and its band is one standard deviation to either side. Values of the second
    setting are placed at equal distances, in the order of the table. Class names are shown without their modules.

    Args:
        table: One row per run, with a column for each of the settings and for each metric.
        keys: Names of two or three settings: the first for curves, the second for the axis, the third for panels.
        metrics: Names of the metrics to draw, as they are logged.
        title: Heading of the figure.
    """
    expect(len(metrics) > 0, "metrics", "at least one metric", list(metrics))
    expect(len(keys) in (2, 3), "keys", "two or three settings", list(keys))
    first, second, *third = keys
    ticks = list(table[second].unique())
    parts = (
        {"": table}
        if not third
        else {
            f", {third[0].replace('_', ' ')} {short_name(value)}": table[table[third[0]] == value]
            for value in table[third[0]].unique()
        }
    )
    panels = [(metric, part) for metric in metrics for part in parts]
    rows, columns = (len(metrics), len(parts)) if third else grid_shape(len(metrics), MOST_COLUMNS)
    figure = new_figure(max(3.2, 0.7 * len(ticks) + 1.2) * columns + 1.2, 2.4 * rows + 0.8, title, BANDS)
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if third else False)
    handles, labels = [], []
    for place, value in enumerate(table[first].unique()):
        look = CURVES[place % len(CURVES)]
        handles.append(look.handle(line="-", size=4.5))
        labels.append(short_name(value))
        for axes, (metric, part) in zip(grid.flat, panels, strict=False):
            curve_runs = parts[part][parts[part][first] == value]
            of_tick = curve_runs.groupby(second, sort=False)[metric]
            mean = of_tick.mean().reindex(ticks).to_numpy(dtype=np.float64)
            spread = of_tick.std().reindex(ticks).fillna(0.0).to_numpy(dtype=np.float64)
            places = np.arange(len(ticks))
            axes.plot(places, mean, color=look.color, markersize=4.5, linewidth=1.6, zorder=3, **look.marked())
            axes.fill_between(places, mean - spread, mean + spread, color=look.color, alpha=0.15, linewidth=0)
    for axes, (metric, part) in zip(grid.flat, panels, strict=False):
        plain_axes(axes, xlabel=second.replace("_", " "), title=metric_title(metric) + part)
        axes.set_xticks(np.arange(len(ticks)), [short_name(tick) for tick in ticks], fontsize=SMALL_SIZE)
        note_undefined(axes, int(parts[part][metric].isna().sum()), len(parts[part]))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    plain_legend(figure, handles, labels, first.replace("_", " "), loc="outside right center")
    return figure


def short_name(value: Any) -> str:
    """Return the label of a setting's value; for an import path, only the class name.

    >>> short_name("attree.models.GATv2"), short_name(0.0005), short_name("v1.2")
    ('GATv2', '0.0005', 'v1.2')
    """
    text = value_name(value)
    return text.rpartition(".")[2] if re.fullmatch(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*", text) else text


def heat_map_figure(table: pd.DataFrame, keys: tuple[str, str], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw one heat map per metric, with one cell for each pair of settings that shows the mean over runs.

    Args:
        table: One row per run, with a column for each of the two settings and for each metric.
        keys: Names of the two settings: the first for rows, the second for columns, both in the order of the table.
        metrics: Names of the metrics to draw, as they are logged.
        title: Heading of the figure.
    """
    expect(len(metrics) > 0, "metrics", "at least one metric", list(metrics))
    up, across = ([value_name(value) for value in table[key].unique()] for key in keys)
    width = max(3.2, 0.75 * len(across) + 1.6)
    rows = -(-len(metrics) // 3)
    figure = new_figure(width * min(len(metrics), 3), (0.42 * len(up) + 0.9) * rows + 0.8, title, HEATS)
    grid = figure.subplots(-(-len(metrics) // 3), min(len(metrics), 3), squeeze=False)
    named_table = table.assign(**{key: table[key].map(value_name) for key in keys})
    for axes, metric in zip(grid.flat, metrics, strict=False):
        cells = named_table.groupby(list(keys), sort=False)[metric].mean().unstack().reindex(index=up, columns=across)
        values = cells.to_numpy(dtype=np.float64)
        axes.imshow(values, cmap=HEAT_COLORS, aspect="auto")
        axes.set_title(metric_title(metric), fontsize=SMALL_SIZE, color=INK, parse_math=False)
        axes.set_xticks(np.arange(len(across)), across, fontsize=SMALL_SIZE, parse_math=False)
        axes.set_yticks(np.arange(len(up)), up, fontsize=SMALL_SIZE, parse_math=False)
        axes.set_xlabel(keys[1], fontsize=SMALL_SIZE, color=INK, parse_math=False)
        axes.set_ylabel(keys[0], fontsize=SMALL_SIZE, color=INK, parse_math=False)
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)
        low, high = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (0.0, 0.0)
        for (row, column), value in np.ndenumerate(values):
            dark = np.isfinite(value) and value > low + 0.6 * (high - low)
            text = f"{value:.3f}" if np.isfinite(value) else "undefined"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else INK)
    for axes in grid.flat[len(metrics) :]:
        axes.set_visible(False)
    return figure
