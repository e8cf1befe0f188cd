"""Figures that are drawn coarsely: laying them out takes most of the time of a test that is not about how they look."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from attree.report import style


class QuickFigure(Figure):
    """A figure of few dots, without ticks, whose parts are not arranged."""

    __module__ = Figure.__module__  # by which loggers know Matplotlib's figures

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"dpi": 20, "layout": None})

    def draw(self, renderer: Any) -> None:
        for axes in self.axes:  # ticks take three quarters of the time
            axes.xaxis.set_visible(False)
            axes.yaxis.set_visible(False)
        super().draw(renderer)


def draw_quickly() -> None:
    """Let all figures of this process, which ends soon, be drawn coarsely."""
    style.Figure = QuickFigure  # type: ignore[misc]
    style.FILE_DPI = 20
