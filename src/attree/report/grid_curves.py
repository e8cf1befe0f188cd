"""Curves over a grid of two settings: what one setting does to the metrics, for each value of the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attree.errors import expect
from attree.report.looks import Look
from attree.report.style import (
    BLUE,
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
CURVES = tuple(
    Look(color, marker)
    for color, marker in zip(
        (BLUE, VERMILION, "#009E73", ORANGE, "#CC79A7", "#56B4E9", "#32038F"), "osD^vP*", strict=True
    )
)
"""Looks of the first setting's values; with more than these they begin again."""


def grid_curves_figure(table: pd.DataFrame, keys: tuple[str, str], metrics: Sequence[str], title: str = "") -> Figure:
    """Draw one panel for each metric and in it one curve for each value of the first setting, over the second.

    A curve is the mean over the runs, its band one standard deviation to either side. Values of the second setting
    stand at equal distances, in the order in which they come. Class names are shown without their modules.

    Args:
        table: A table of runs, with a column for each of the two settings and for each metric.
        keys: The settings: a curve for each value of the first, the second along the axis.
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
        own = table[table[first] == value]
        for axes, metric in zip(grid.flat, metrics, strict=False):
            of_tick = own.groupby(second, sort=False)[metric]
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
    """A value's name on an axis or in a legend; of an import path, the class alone.

    >>> short_name("attree.models.GATv2"), short_name(0.0005), short_name("v1.2")
    ('GATv2', '0.0005', 'v1.2')
    """
    text = value_name(value)
    return text.rpartition(".")[2] if re.fullmatch(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*", text) else text
