"""All statistics of an evaluation in one picture."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from attree.errors import expect
from attree.evaluation.names import METRIC_LABELS, MetricName
from attree.evaluation.result import Evaluation
from attree.report.looks import method_looks
from attree.report.style import INK, MUTED, SMALL_SIZE, new_figure, plain_axes, plain_legend


def evaluation_figure(evaluation: Evaluation) -> Figure:
    """Draw every statistic as a group of bars, one a method, one panel a protocol, all with the same scale.

    Each bar ends in its method's marker, which tells methods apart in grey print.

    A statistic that is undefined has no bar but the letter u.

    Args:
        evaluation: The result to draw.
    """
    parsed = {name: MetricName.parse(name) for name in evaluation.metrics}
    metrics = [metric for metric in parsed.values() if metric is not None]
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
    for row, (protocol, statistics) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[row, 0])
        meaning = evaluation.meanings.get(protocol or "", "")
        title = "ground truth" if protocol is None else f"{protocol}: {meaning}" if meaning else protocol
        plain_axes(axes, ylabel="AUROC or correlation", title=title)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        width = 0.8 / len(methods)
        for number, method in enumerate(methods):
            values = [evaluation.metrics[str(MetricName(method, one, protocol))] for one in statistics]
            places = np.arange(len(statistics)) + (number - (len(methods) - 1) / 2) * width
            look = looks[method]
            axes.bar(places, np.nan_to_num(values), width * 0.72, color=look.color, alpha=0.55)
            axes.plot(places, values, linestyle="", color=look.color, markersize=4.5, clip_on=False, **look.marked())
            for place, value in zip(places, values, strict=True):
                if math.isnan(value):
                    axes.text(place, 0.02, "u", ha="center", fontsize=SMALL_SIZE, color=INK)
        names = [METRIC_LABELS.get(one, one).replace(", ", "\n").replace(" (", "\n(") for one in statistics]
        axes.set_xticks(np.arange(len(statistics)), names, fontsize=SMALL_SIZE - 1)
        axes.set_xlim(-0.55, most - 0.45)  # bars of all panels are alike, also where there are few
        axes.set_ylim(min(-0.05, *_finite(evaluation)) * 1.05, 1.02)
    handles = [look.handle() for look in looks.values()]
    labels = [evaluation.labels.get(method, method) for method in methods]
    undefined = any(math.isnan(evaluation.metrics[name]) for name, metric in parsed.items() if metric is not None)
    note = "1 is perfect; a correlation of 0 and an AUROC of 0.5 are chance." + (" u: undefined." if undefined else "")
    plain_legend(figure, handles, labels, note, loc="outside lower center")
    return figure


def _finite(evaluation: Evaluation) -> list[float]:
    return [0.0, *(value for name, value in evaluation.metrics.items() if MetricName.parse(name) and value == value)]
