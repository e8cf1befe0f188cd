"""Figures that compare methods: all statistics, accuracy against runtime, and GAtt against uniform attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attree.attribution import method_label
from attree.errors import expect
from attree.evaluation.names import OF_CLASSES, MetricName
from attree.evaluation.result import Evaluation
from attree.report.style import (
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
    Look,
    method_looks,
    new_figure,
    note_undefined,
    panel_grid,
    plain_axes,
    plain_legend,
)

SETTING_MARKERS = "osD^vPX*"
"""Markers that settings take in turn, because colours alone are hard to distinguish."""

OVER_UNIFORM_NOTE = "Crosses: one standard deviation over seeds. On the line, GAtt is as faithful as uniform attention."


def evaluation_figure(evaluation: Evaluation) -> Figure:
    """Draw all statistics as bars: one panel per protocol, one group of bars per statistic, one bar per method.

    All panels have the same scale. Each bar ends in its method's marker, which distinguishes methods in grey print. An
    undefined statistic has the letter u instead of a bar.

    Args:
        evaluation: The result to draw.
    """
    left_out = OF_CLASSES if evaluation.predicts_numbers else ()
    parsed = {
        name: metric
        for name in evaluation.metrics
        if (metric := MetricName.parse(name)) is not None and metric.statistic not in left_out
    }
    metrics = list(parsed.values())
    expect(len(metrics) > 0, "evaluation", "one with metrics", "none")
    methods = list(dict.fromkeys(metric.method for metric in metrics))
    looks = method_looks(methods)
    panels = {
        protocol: list(dict.fromkeys(metric.statistic for metric in metrics if metric.protocol == protocol))
        for protocol in dict.fromkeys(metric.protocol for metric in metrics)
    }
    most = max(map(len, panels.values()))
    inches = max(0.13 * most * (len(methods) + 1), 0.85 * most) + 0.8
    figure = new_figure(max(inches, 5.0), 2.1 * len(panels) + 0.9, "How well scores explain the model")
    grid = figure.add_gridspec(len(panels), 1)
    values_of_methods = [value for name, value in evaluation.metrics.items() if MetricName.parse(name) is not None]
    lowest = min([-0.05, *(value for value in values_of_methods if not math.isnan(value))])
    for row, (protocol, statistics) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[row, 0])
        meaning = evaluation.meanings.get(protocol or "", "")
        title = "ground truth" if protocol is None else f"{protocol}: {meaning}" if meaning else protocol
        plain_axes(axes, ylabel="AUROC or correlation", title=title)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        width = 0.8 / len(methods)
        for number, method in enumerate(methods):
            values = [evaluation.metrics[str(MetricName(method, statistic, protocol))] for statistic in statistics]
            places = np.arange(len(statistics)) + (number - (len(methods) - 1) / 2) * width
            look = looks[method]
            axes.bar(places, np.nan_to_num(values), width * 0.72, color=look.color, alpha=0.55)
            axes.plot(places, values, linestyle="", color=look.color, markersize=4.5, clip_on=False, **look.marked())
            for place, value in zip(places, values, strict=True):
                if math.isnan(value):
                    axes.text(place, 0.02, "u", ha="center", fontsize=SMALL_SIZE, color=INK)
        titles = [evaluation.statistic_labels.get(statistic, statistic) for statistic in statistics]
        names = [title.replace(", ", "\n").replace(" (", "\n(") for title in titles]
        axes.set_xticks(np.arange(len(statistics)), names, fontsize=SMALL_SIZE - 1)
        axes.set_xlim(-0.55, most - 0.45)  # bars have the same width in all panels
        axes.set_ylim(lowest * 1.05, 1.02)
    handles = [look.handle() for look in looks.values()]
    labels = [evaluation.labels.get(method, method) for method in methods]
    undefined = any(math.isnan(evaluation.metrics[name]) for name in parsed)
    note = "1 is perfect; a correlation of 0 and an AUROC of 0.5 are chance." + (" u: undefined." if undefined else "")
    plain_legend(figure, handles, labels, note, loc="outside lower center")
    return figure


class MethodPoint(NamedTuple):
    """Runtime and accuracy of one method on one dataset.

    Attributes:
        method: Name of the method.
        seconds: Runtime for all targets.
        auroc: AUROC of its scores against the true edges.
    """

    method: str
    seconds: float
    auroc: float


def accuracy_runtime_figure(panels: Mapping[str, Sequence[MethodPoint]]) -> Figure:
    """Draw every method as a point, in one panel per dataset: the paper's accuracy-runtime plot.

    The upper left corner is best. A method has the same colour and marker in all panels.

    Args:
        panels: The methods of each dataset, by the title of its panel.
    """
    looks = method_looks(point.method for points in panels.values() for point in points)
    expect(len(looks) > 0, "panels", "at least one method of one dataset", "none")
    figure = new_figure(4.6 * len(panels), 4.2, "Explanation accuracy against runtime")
    for axes, (title, points) in zip(panel_grid(figure, len(panels), 3), panels.items(), strict=True):
        plain_axes(axes, "seconds for all targets", "AUROC against ground truth", title)
        axes.set_xscale("log")
        axes.axhline(0.5, color=INK, linewidth=0.6, linestyle=":")
        for point in points:
            look = looks[point.method]
            axes.plot(point.seconds, point.auroc, linestyle="", color=look.color, markersize=7, **look.marked())
        axes.margins(x=0.1)
        axes.set_ylim(min(0.4, *(point.auroc - 0.05 for point in points)), 1.04)
    plain_legend(
        figure,
        [look.handle() for look in looks.values()],
        [method_label(method) for method in looks],
        note="Dotted: chance.",
        loc="outside lower center",
    )
    return figure


def over_uniform_pairs(metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return pairs of metrics, one of GAtt and one of uniform attention, by the statistic that both measure.

    >>> over_uniform_pairs(["explain/gatt/weight/faithfulness", "val/acc", "explain/uniform/weight/faithfulness"])
    {'weight/faithfulness': ('explain/gatt/weight/faithfulness', 'explain/uniform/weight/faithfulness')}
    """
    prefix = "explain/gatt/"
    measured = [metric.removeprefix(prefix) for metric in metrics if metric.startswith(prefix)]
    pairs = {what: (f"{prefix}{what}", f"explain/uniform/{what}") for what in measured}
    return {what: pair for what, pair in pairs.items() if pair[1] in metrics}


def over_uniform_figure(
    settings: Mapping[str, pd.DataFrame], accuracy: str, pairs: Mapping[str, tuple[str, str]], title: str = ""
) -> Figure:
    """Draw how much more faithful GAtt is than uniform attention, against accuracy, one point per setting.

    Args:
        settings: For each setting, by name, a table of its runs: one row per seed, one column per metric.
        accuracy: Name of the metric on the horizontal axis.
        pairs: For each panel, by title, the metric of GAtt and that of uniform attention: see `over_uniform_pairs`.
        title: Heading of the figure.
    """
    expect(len(settings) > 0, "settings", "runs of at least one setting", dict(settings))
    expect(len(pairs) > 0, "pairs", "metrics of GAtt and of uniform attention", dict(pairs))
    figure = new_figure(4.4 * len(pairs) + 0.8, 4.4 + 0.2 * len(settings), title)
    # Ten strong colours, then ten pale ones.
    colors = [to_hex(matplotlib.colormaps["tab20"]((2 * place) % 20 + (2 * place) // 20 % 2)) for place in range(20)]
    looks = {name: Look(colors[k % 20], SETTING_MARKERS[k % len(SETTING_MARKERS)]) for k, name in enumerate(settings)}
    for axes, (what, (gatt, uniform)) in zip(
        figure.subplots(1, len(pairs), squeeze=False)[0], pairs.items(), strict=True
    ):
        plain_axes(axes, accuracy, f"{what}: GAtt minus uniform attention")
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.axhline(0.0, color=MUTED, linewidth=1.0, linestyle="--", zorder=1)
        unknown = 0
        for name, runs in settings.items():
            points = np.stack([runs[accuracy], runs[gatt] - runs[uniform]]).astype(np.float64)
            points = points[:, np.isfinite(points).all(axis=0)]
            if not points.size:
                unknown += 1
                continue
            mean = points.mean(axis=1)
            spread = points.std(axis=1, ddof=1) if points.shape[1] > 1 else np.zeros(2)
            look = looks[name]
            marker: dict[str, Any] = {"color": look.color, "marker": look.marker, "markersize": 7, "zorder": 3}
            axes.errorbar(mean[0], mean[1], spread[1], spread[0], elinewidth=0.8, markeredgecolor="white", **marker)
        note_undefined(axes, unknown, len(settings))
    handles = [look.handle() for look in looks.values()]
    plain_legend(figure, handles, list(looks), OVER_UNIFORM_NOTE, loc="outside lower center")
    return figure
