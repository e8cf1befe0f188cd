"""Figures of metrics over a grid of two settings: curves and heat maps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from attree.errors import expect
from attree.report.looks import Look
from attree.report.style import (
    BLUE,
    INK,
    ORANGE,
    SMALL_SIZE,
    VERMILION,
    grid_shape,
    new_figure,
    note_undefined,
    plain_axes,
    plain_legend,
)
from attree.report.sweep_figure import BANDS, metric_title, value_name

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


def grid_curves_figure(table: pd.DataFrame, keys: tuple[str, str], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw one panel per metric, with the second setting on the axis and one curve per value of the first setting.

    A curve is the mean over the runs, and its band is one standard deviation to either side. Values of the second
    setting are placed at equal distances, in the order of the table. Class names are shown without their modules.

    Args:
        table: One row per run, with a column for each of the two settings and for each metric.
        keys: Names of the two settings: the first for curves, the second for the axis.
        metrics: Names of the metrics to draw, as they are logged.
        title: Heading of the figure.
    """
    expect(len(metrics) > 0, "metrics", "at least one metric", list(metrics))
    first, second = keys
    ticks = list(table[second].unique())
    rows, columns = grid_shape(len(metrics), MOST_COLUMNS)
    figure = new_figure(max(3.2, 0.7 * len(ticks) + 1.2) * columns + 1.2, 2.4 * rows + 0.8, title, BANDS)
    grid = figure.subplots(rows, columns, squeeze=False)
    handles, labels = [], []
    for place, value in enumerate(table[first].unique()):
        look = CURVES[place % len(CURVES)]
        handles.append(look.handle(line="-", size=4.5))
        labels.append(short_name(value))
        curve_runs = table[table[first] == value]
        for axes, metric in zip(grid.flat, metrics, strict=False):
            of_tick = curve_runs.groupby(second, sort=False)[metric]
            mean = of_tick.mean().reindex(ticks).to_numpy(dtype=np.float64)
            spread = of_tick.std().reindex(ticks).fillna(0.0).to_numpy(dtype=np.float64)
            places = np.arange(len(ticks))
            axes.plot(places, mean, color=look.color, markersize=4.5, linewidth=1.6, zorder=3, **look.marked())
            axes.fill_between(places, mean - spread, mean + spread, color=look.color, alpha=0.15, linewidth=0)
    for axes, metric in zip(grid.flat, metrics, strict=False):
        plain_axes(axes, xlabel=second.replace("_", " "), title=metric_title(metric))
        axes.set_xticks(np.arange(len(ticks)), [short_name(tick) for tick in ticks], fontsize=SMALL_SIZE)
        note_undefined(axes, int(table[metric].isna().sum()), len(table))
    for axes in grid.flat[len(metrics) :]:
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
