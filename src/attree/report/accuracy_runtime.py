"""How well methods find the true edges, against how long they take: the paper's accuracy-runtime plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from attree.errors import expect
from attree.report.style import INK, MARKERS, SERIES, SMALL_SIZE, new_figure, panel_grid, plain_axes


class MethodPoint(NamedTuple):
    """One method on one dataset.

    Attributes:
        label: What the method is called.
        seconds: How long it takes for all targets.
        auroc: How well its scores find the true edges.
    """

    label: str
    seconds: float
    auroc: float


def accuracy_runtime_figure(panels: Mapping[str, Sequence[MethodPoint]]) -> Figure:
    """Draw every method as a point, one panel a dataset: the upper left corner is the best.

    Args:
        panels: The methods of each dataset, by its title. A method has the same colour and marker in all panels.
    """
    labels = list(dict.fromkeys(point.label for points in panels.values() for point in points))
    expect(len(labels) > 0, "panels", "at least one method of one dataset", "none")
    figure = new_figure(4.6 * len(panels), 3.8, "Explanation accuracy against runtime")
    for axes, (title, points) in zip(panel_grid(figure, len(panels), 3), panels.items(), strict=True):
        plain_axes(axes, "seconds for all targets", "AUROC against ground truth", title)
        axes.set_xscale("log")
        axes.axhline(0.5, color=INK, linewidth=0.6, linestyle=":")
        for point in points:
            number = labels.index(point.label)
            color = SERIES[number % len(SERIES)]
            # Colours repeat after six methods, markers then differ.
            marker = MARKERS[(number + number // len(SERIES)) % len(MARKERS)]
            axes.plot(point.seconds, point.auroc, marker, color=color, markersize=7)
            axes.annotate(
                point.label,
                (point.seconds, point.auroc),
                textcoords="offset points",
                xytext=(7, 3),
                fontsize=SMALL_SIZE,
                color=INK,
            )
        axes.margins(x=0.18)
        axes.set_ylim(0.4, 1.04)
    return figure
