"""Sweep figure: what a hyperparameter does to accuracy and to explanations, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from attree.attribution import METHODS, method_label
from attree.errors import expect
from attree.evaluation.names import METRIC_LABELS, PREFIX, MetricName
from attree.report.looks import Line, Look, method_looks
from attree.report.style import INK, SMALL_SIZE, new_figure, note_undefined, plain_axes, plain_legend

ROW_LABELS = {"acc": "accuracy", **METRIC_LABELS}
"""What each kind of metric is called; others are called by their own last word."""

LINES: tuple[Line, ...] = ("-", "--", ":", "-.")
"""Lines of several metrics of one row that are of the same method, or of none."""

HEAT_COLORS = LinearSegmentedColormap.from_list("attree_heat", ["#F4F6FA", "#9CC3E6", "#2C7FB8", "#081D58"])
"""From pale (the lowest mean of a panel) to dark (the highest)."""

BANDS = "Lines and markers: means over runs; bands and bars: one standard deviation."
HEATS = "Means over runs. Each panel has its own colours, from its lowest mean (pale) to its highest (dark)."

SETTING = "setting"
"""The column of a sweep's results that holds the swept value."""


def sweep_figure(results: Mapping[str, pd.DataFrame], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw metrics against swept settings: one column of panels per sweep, one row per kind of metric.

    A curve is the mean over the runs of a setting, its band (or bars, where the settings are no numbers) one standard
    deviation to either side, its faint dots the single runs. Settings stand at equal distances in the order given, so
    that 0 and values of different magnitude fit on one axis. Values that are undefined, as of runs that diverged, are
    counted in the panel. A method has its own colour and marker; what is no method's, such as an accuracy, is black.

    Args:
        results: For each sweep, under the name of what it varies, a table of its runs: the column `setting`, and one
            column per metric (absent or NaN where a run has none).
        metrics: Names of the metrics to draw, as they are logged; those of one
            statistic and protocol share a row.
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
            known = [name for name in names if name in table]
            for name in known:
                _draw_curve(axes, table, name, *looks[name])
            defined = np.isfinite(table[known].to_numpy(dtype=np.float64))
            note_undefined(axes, int((~defined).sum()), defined.size)
            _name_settings(axes, table)
        shown = [name for name in names if any(name in table for table in results.values())]
        handles = [looks[name][0].handle(line=looks[name][1], size=4.5) for name in shown]
        plain_legend(
            grid[row, -1],
            handles,
            [labels[name] for name in shown],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
        )
    return figure


def metric_rows(metrics: Sequence[str]) -> dict[str, list[str]]:
    """Metrics that are compared in one row of panels, by what its axis says: the statistic, and how edges are reduced.

    >>> metric_rows(["val/acc", "explain/gatt/weight/faithfulness"])
    {'accuracy': ['val/acc'], 'faithfulness (mean), weight': ['explain/gatt/weight/faithfulness']}
    """
    rows: dict[str, list[str]] = {}
    for metric in metrics:
        words = metric.split("/")
        kind = ROW_LABELS.get(words[-1], words[-1].replace("_", " "))
        reduced = f", {words[2]}" if method_of(metric) is not None and len(words) > 3 else ""
        rows.setdefault(kind + reduced, []).append(metric)
    return rows


def heat_map_figure(table: pd.DataFrame, keys: tuple[str, str], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw metrics over a grid of two settings: a panel each metric, a cell each pair of values, its mean written in.

    Args:
        table: A table of runs, with a column for each of the two settings and for each metric.
        keys: The settings: the first goes up, the second across, in the order in which their values come.
        metrics: Names of the metrics to draw, as they are logged.
        title: Heading of the figure.
    """
    expect(len(metrics) > 0, "metrics", "at least one metric", list(metrics))
    up, across = ([value_name(value) for value in table[key].unique()] for key in keys)
    width = max(3.2, 0.75 * len(across) + 1.6)
    rows = -(-len(metrics) // 3)
    figure = new_figure(width * min(len(metrics), 3), (0.42 * len(up) + 0.9) * rows + 0.8, title, HEATS)
    grid = figure.subplots(-(-len(metrics) // 3), min(len(metrics), 3), squeeze=False)
    named = table.assign(**{key: table[key].map(value_name) for key in keys})
    for axes, metric in zip(grid.flat, metrics, strict=False):
        cells = named.groupby(list(keys), sort=False)[metric].mean().unstack().reindex(index=up, columns=across)
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


def metric_title(metric: str) -> str:
    """What a panel is headed with.

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
    """What a value is called on an axis."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def metric_looks(metrics: Sequence[str]) -> dict[str, tuple[Look, Line]]:
    """Look and line of each metric: the look is its method's, the line tells apart what shares a look and a row."""
    looks = method_looks(method for metric in metrics if (method := method_of(metric)) is not None)
    row_of = {metric: row for row, names in metric_rows(metrics).items() for metric in names}
    times: dict[tuple[str | None, str], int] = {}
    found = {}
    for metric in metrics:
        method = method_of(metric)
        key = (method, row_of[metric])
        times[key] = times.get(key, -1) + 1
        found[metric] = (Look(INK, "o") if method is None else looks[method], LINES[times[key] % len(LINES)])
    return found


def method_of(metric: str) -> str | None:
    """The method that a metric is of, whatever the callback is called that logged it; None if it is of none.

    >>> method_of("explain/mine/weight/p_auroc"), method_of("second/gatt/truth_auroc"), method_of("val/acc")
    ('mine', 'gatt', None)
    """
    words = metric.split("/")
    known = len(words) in (3, 4) and (words[0] == PREFIX or words[1] in METHODS)
    return words[1] if known else None


def series_labels(metrics: Sequence[str]) -> dict[str, str]:
    """Short names that tell metrics of one kind apart.

    >>> series_labels(["explain/gatt/weight/faithfulness", "explain/random/weight/faithfulness"])
    {'explain/gatt/weight/faithfulness': 'GAtt', 'explain/random/weight/faithfulness': 'Random'}
    >>> series_labels(["explain/gatt/weight/faithfulness", "explain/gatt/removal/faithfulness"])
    {'explain/gatt/weight/faithfulness': 'weight', 'explain/gatt/removal/faithfulness': 'removal'}
    >>> series_labels(["val/acc"])
    {'val/acc': 'val'}
    """
    words = [metric.split("/") for metric in metrics]
    deepest = max(len(own) for own in words)
    padded = [own[:-1] + [""] * (deepest - len(own)) + own[-1:] for own in words]
    telling = [position for position in range(deepest) if len({own[position] for own in padded}) > 1]
    if not telling:
        telling = [0] if words[0][0] != "explain" else [1]
    labels = {}
    for metric, own in zip(metrics, padded, strict=True):
        parts = [method_label(own[position]) for position in telling]
        labels[metric] = ", ".join(part for part in parts if part)
    return labels


def _draw_curve(axes: Axes, table: pd.DataFrame, metric: str, look: Look, line: Line) -> None:
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
    """What settings are called on an axis, and what their values are of.

    Settings of several keys, such as "dropout=0, heads=2", are called by their values, one below the other.

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
    """What an axis of settings says: what is swept, and the keys whose values stand there."""
    keys = setting_names(table)[1]
    own = swept.replace("_", " ")
    return own if not keys or keys == swept else f"{own}: {keys.replace('_', ' ')}"


def _name_settings(axes: Axes, table: pd.DataFrame) -> None:
    names, _ = setting_names(table)
    long = max(len(line) for name in names for line in name.split("\n")) > 10
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if long else {"rotation": 0, "ha": "center"}
    axes.set_xticks(np.arange(len(names)), names, fontsize=SMALL_SIZE, parse_math=False, **turned)
    axes.set_xlim(-0.4, len(names) - 0.6)
