"""Figures of sweeps: metrics against settings, and explanation quality against accuracy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attree.attribution import METHODS, method_label
from attree.errors import expect
from attree.evaluation.names import METRIC_LABELS, PREFIX, MetricName
from attree.report.score_figures import is_random_method
from attree.report.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
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


STRENGTH_COLORS = LinearSegmentedColormap.from_list("attree_strength", ["#F7E8B5", "#7FCDBB", "#2C7FB8", "#081D58"])
"""From pale (the first setting) to dark (the last). The lightness falls steadily, so it also works in grey print."""

MOST_TICKS = 7
SPREAD = "Crosses: one standard deviation over runs."
CROSSES: dict[str, Any] = {"linestyle": "", "ecolor": MUTED, "elinewidth": 0.6, "alpha": 0.6, "zorder": 1}


def pareto_figure(
    results: Mapping[str, pd.DataFrame], accuracy: str, qualities: Sequence[str], title: str = ""
) -> Figure:
    """Draw explanation quality against accuracy: one column of panels per sweep, one row per quality metric.

    A point is the mean over the runs of one setting for one method, with a cross of one standard deviation to either
    side. Marker and rim show the method. A point is larger and darker the higher its setting is, or the later it is in
    the sweep if settings are not numbers. The Pareto front of a method, which are the settings that no other beats in
    both accuracy and quality, is ringed and joined by a line. Random methods have no front. The number of settings with
    an undefined mean stands above the panel.

    Args:
        results: One table of runs per sweep, by the name of the swept setting, as `sweep_figure` takes it.
        accuracy: Name of the metric on the horizontal axis; higher is better.
        qualities: Names of the explanation metrics; those of one statistic and protocol share a row.
        title: Heading of the figure.
    """
    expect(len(results) > 0, "results", "results of at least one sweep", dict(results))
    expect(len(qualities) > 0, "qualities", "at least one metric", list(qualities))
    results = {
        swept: table.sort_values(SETTING, kind="stable") if pd.api.types.is_numeric_dtype(table[SETTING]) else table
        for swept, table in results.items()
    }
    rows = metric_rows(qualities)
    methods = [method_of(metric) or metric for metric in qualities]
    looks = method_looks(methods)
    figure = new_figure(max(4.4 * len(results), 5.0), 3.4 * len(rows) + 0.8, title)
    grid = figure.subplots(len(rows), len(results), sharex=True, sharey="row", squeeze=False)
    for row, (kind, metrics) in enumerate(rows.items()):
        for column, (swept, table) in enumerate(results.items()):
            axes = grid[row, column]
            plain_axes(axes, "accuracy" if row == len(rows) - 1 else "", kind if column == 0 else "")
            axes.grid(axis="x", color=FAINT, linewidth=0.6)
            _draw(axes, table, accuracy, {metric: looks[method_of(metric) or metric] for metric in metrics})
            if row == len(rows) - 1:
                _color_bar(figure, list(grid[:, column]), table, axis_label(swept, table))
    handles = [look.handle(line="-" if not is_random_method(name) else "") for name, look in looks.items()]
    note = f"Ringed and joined: settings that none beats in both (Pareto front). {SPREAD}"
    plain_legend(figure, handles, [method_label(name) for name in looks], note, loc="outside lower center")
    return figure


def frontier_figure(settings: pd.DataFrame, objectives: Mapping[str, str], title: str = "") -> Figure:
    """Draw all settings of a search as points, with crosses for the spread over seeds and a line through the front.

    With several objectives, there is one panel for each of them against the first. The front takes all objectives into
    account, so a point on it may look beaten in a panel that shows two of them. With a single objective, settings are
    in the order of trials, and the line is the best value so far.

    Args:
        settings: One row per setting, with the columns `<name> mean` and `<name> std` for each objective, and `front`,
            whether no other setting beats it.
        objectives: For each objective, by name, `maximize` or `minimize`.
        title: Heading of the figure.
    """
    expect(len(objectives) > 0, "objectives", "at least one metric", dict(objectives))
    first, *others = objectives
    panels = max(len(others), 1)
    figure = new_figure(max(4.8 * panels, 5.0), 4.2, title)
    grid = figure.subplots(1, panels, squeeze=False)[0]
    for axes, other in zip(grid, others or [first], strict=True):
        if others:
            x, y = _values(settings, first), _values(settings, other)
            plain_axes(axes, _arrow(first, objectives), _arrow(other, objectives))
        else:
            x, y = np.stack([np.arange(len(settings)), np.zeros(len(settings))]), _values(settings, first)
            plain_axes(axes, "setting, in the order of trials", _arrow(first, objectives))
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        front = settings["front"].to_numpy(dtype=bool)
        axes.errorbar(x[0], y[0], y[1], x[1], **CROSSES)
        axes.scatter(x[0][~front], y[0][~front], s=24, color=MUTED, alpha=0.7, linewidths=0, zorder=2)
        if others:
            order = np.flatnonzero(front)[np.argsort(x[0][front], kind="stable")]
            axes.plot(x[0][order], y[0][order], color=BLUE, linewidth=1.4, zorder=2)
        else:
            best = np.fmax.accumulate if objectives[first] == "maximize" else np.fmin.accumulate
            axes.step(x[0], best(y[0]), where="post", color=BLUE, linewidth=1.4, zorder=2)
        axes.scatter(x[0][front], y[0][front], s=48, color=BLUE, edgecolors="white", linewidths=0.8, zorder=3)
        is_defined = np.isfinite(x[0]) & np.isfinite(y[0])
        note_undefined(axes, int((~is_defined).sum()), is_defined.size)
    handles = [Look(BLUE, "o").handle(line="-"), Look(MUTED, "o").handle()]
    plain_legend(
        figure, handles, ["best trade-offs" if others else "the best", "others"], SPREAD, loc="outside lower center"
    )
    return figure


def _values(settings: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Return mean and standard deviation of an objective, [2, n]; the deviation of a single run is 0."""
    table = settings[[f"{name} mean", f"{name} std"]].to_numpy(dtype=np.float64).T
    return np.stack([table[0], np.nan_to_num(table[1])])


def _arrow(name: str, objectives: Mapping[str, str]) -> str:
    """Return the label of an axis: the objective, and which direction is better."""
    return f"{name} ({'higher' if objectives[name] == 'maximize' else 'lower'} is better)"


def pareto_front(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of the Pareto front, sorted by the first column.

    A point is on the front if no other point is at least as high in all columns and higher in one.

    Args:
        points: Points [n, k]; higher is better in every column. Points with an undefined value are not on the front.

    >>> pareto_front(np.array([[0.9, 0.1], [0.5, 0.5], [0.4, 0.4], [0.1, 0.9], [0.95, np.nan]])).tolist()
    [3, 1, 0]
    """
    defined_ids = np.flatnonzero(np.isfinite(points).all(axis=1))
    defined_points = points[defined_ids]
    beaten = [
        bool(((defined_points >= point).all(axis=1) & (defined_points > point).any(axis=1)).any())
        for point in defined_points
    ]
    front = defined_ids[~np.array(beaten, dtype=bool)]
    return front[np.lexsort((-points[front, -1], points[front, 0]))]


def _draw(axes: Axes, table: pd.DataFrame, accuracy: str, looks: Mapping[str, Look]) -> None:
    """Draw one point per setting of a sweep, with the spread over seeds, and a line along the Pareto front."""
    unknown = points = 0
    for metric, look in looks.items():
        if metric not in table or accuracy not in table:
            continue
        by_setting = table.groupby(SETTING, sort=False)[[accuracy, metric]]
        means = by_setting.mean().to_numpy(dtype=np.float64)
        spreads = by_setting.std().fillna(0.0).to_numpy(dtype=np.float64)
        is_defined = np.isfinite(means).all(axis=1)
        unknown, points = unknown + int((~is_defined).sum()), points + is_defined.size
        if not is_random_method(method_of(metric) or metric):
            front = means[pareto_front(means)]
            size = 20 if look.is_beneath else 16
            rings: dict[str, Any] = {
                "marker": "o",
                "markersize": size,
                "markerfacecolor": "none",
                "markeredgewidth": 0.9,
            }
            alpha = 0.6 if look.is_beneath else 1.0
            shape: dict[str, Any] = {"linewidth": look.width, "zorder": look.height - 1, "alpha": alpha}
            axes.plot(front[:, 0], front[:, 1], color=look.color, **shape, **rings)
        axes.errorbar(means[:, 0], means[:, 1], spreads[:, 1], spreads[:, 0], **CROSSES)
        share = _shares(len(means))
        axes.scatter(
            means[is_defined, 0],
            means[is_defined, 1],
            s=(28 + 90 * share[is_defined]) * look.scale**2,
            c=STRENGTH_COLORS(share[is_defined]),
            marker=look.marker,
            edgecolors=look.color,
            linewidths=1.5,
            zorder=look.height,
        )
    note_undefined(axes, unknown, points)


def _color_bar(figure: Figure, panels: list[Axes], table: pd.DataFrame, swept: str) -> None:
    """Add a colour bar with the names of the settings, or with some of them if there are many."""
    names, _ = setting_names(table)
    number = len(names)
    color_map = ScalarMappable(
        BoundaryNorm(np.arange(number + 1) - 0.5, number), ListedColormap(STRENGTH_COLORS(_shares(number)))
    )
    bar = figure.colorbar(color_map, ax=panels, orientation="horizontal", fraction=0.05, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.minorticks_off()
    step = -(-number // MOST_TICKS)
    long = max(len(line) for name in names for line in name.split("\n")) > 10
    rotation: dict[str, Any] = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if long else {}
    bar.set_ticks(list(range(0, number, step)), labels=names[::step], parse_math=False, **rotation)
    bar.ax.tick_params(labelsize=SMALL_SIZE, length=0, colors=INK)
    bar.set_label(swept, fontsize=SMALL_SIZE, color=INK)


def _shares(number: int) -> NDArray[np.float64]:
    """Return positions of settings from 0 (first) to 1 (last); 0.5 for a single setting."""
    return np.linspace(0.0, 1.0, number) if number > 1 else np.full(number, 0.5)
