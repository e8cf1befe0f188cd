"""How well methods find the true edges, against how long they take: the paper's accuracy-runtime plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
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
    figure = new_figure(4.6 * len(panels), 4.2, "Explanation accuracy against runtime")
    drawn: dict[str, Artist] = {}
    for axes, (title, points) in zip(panel_grid(figure, len(panels), 3), panels.items(), strict=True):
        plain_axes(axes, "seconds for all targets", "AUROC against ground truth", title)
        axes.set_xscale("log")
        axes.axhline(0.5, color=INK, linewidth=0.6, linestyle=":")
        for point in points:
            number = labels.index(point.label)
            # Colours repeat after six methods; the marker then is another one.
            marker = MARKERS[(number + number // len(SERIES)) % len(MARKERS)]
            color = SERIES[number % len(SERIES)]
            (drawn[point.label],) = axes.plot(point.seconds, point.auroc, marker, color=color, markersize=7, alpha=0.9)
        axes.margins(x=0.1)
        axes.set_ylim(min(0.4, *(point.auroc - 0.05 for point in points)), 1.04)
    figure.legend(
        [drawn[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 3 * len(panels)),
        frameon=False,
        fontsize=SMALL_SIZE,
    )
    return figure
