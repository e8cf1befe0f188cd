"""Figures of explanation quality against accuracy: the settings of a sweep, and the Pareto front of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attree.attribution import method_label
from attree.errors import expect
from attree.report.score_figures import is_random_method
from attree.report.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
    Look,
    method_looks,
    new_figure,
    note_undefined,
    plain_axes,
    plain_legend,
)
from attree.report.sweep_figures import SETTING, axis_label, method_of, metric_rows, setting_names

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
