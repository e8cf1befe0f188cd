"""How well methods find the true edges, against how long they take: the paper's accuracy-runtime plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from attree.attribution import method_label
from attree.errors import expect
from attree.report.looks import method_looks
from attree.report.style import INK, new_figure, panel_grid, plain_axes, plain_legend


class MethodPoint(NamedTuple):
    """One method on one dataset.

    Attributes:
        method: The method's name.
        seconds: How long it takes for all targets.
        auroc: How well its scores find the true edges.
    """

    method: str
    seconds: float
    auroc: float


def accuracy_runtime_figure(panels: Mapping[str, Sequence[MethodPoint]]) -> Figure:
    """Draw every method as a point, one panel a dataset: the upper left corner is the best.

    Args:
        panels: The methods of each dataset, by its title. A method has the same colour and marker in all panels.
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
