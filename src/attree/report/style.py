"""The look that all figures share: colours that colour-blind readers tell apart, sizes, and plain axes."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

# Okabe and Ito's palette, which stays distinct under the common kinds of colour blindness.
BLUE = "#0072B2"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
SERIES = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", VERMILION)
"""Colours of curves, in the order they are taken."""

MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of curves, in the order they are taken: a second way to tell them apart."""

INK = "#222222"
MUTED = "#6E6E6E"
FAINT = "#D9D9D9"

SCORE_COLORS = LinearSegmentedColormap.from_list("attree_score", ["#D4D4D4", "#F0A070", VERMILION, "#5C1A00"])
"""From pale grey (no score) to dark red (the highest): darkens all the way, so it also reads in grey print."""

TITLE_SIZE = 11
LABEL_SIZE = 9
SMALL_SIZE = 8


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty white figure of `width` x `height` inches that arranges its own margins; no global state is touched."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    if title:
        figure.suptitle(title, fontsize=TITLE_SIZE, color=INK)
    return figure


def panel_grid(figure: Figure, count: int, most_columns: int) -> list[Axes]:
    """Lay `count` panels out in rows as equal in length as can be, with at most `most_columns` in one."""
    rows, columns = grid_shape(count, most_columns)
    grid = figure.add_gridspec(rows, columns)
    return [figure.add_subplot(grid[position // columns, position % columns]) for position in range(count)]


def grid_shape(count: int, most_columns: int) -> tuple[int, int]:
    """Rows and columns of a grid for `count` panels.

    >>> grid_shape(3, most_columns=4), grid_shape(5, most_columns=4)
    ((1, 3), (2, 3))
    """
    rows = math.ceil(count / most_columns)
    return rows, math.ceil(count / rows)


def plain_axes(axes: Axes, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Axes with two spines, a faint grid behind the data and the shared text sizes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=SMALL_SIZE, colors=MUTED, labelcolor=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=INK)
    axes.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=INK)
    axes.set_title(title, fontsize=LABEL_SIZE, color=INK)


def picture_axes(axes: Axes, title: str = "", half_width: float = 1.0, half_height: float = 1.0) -> None:
    """Axes for a drawing: no frame, equal scales, the origin in the middle."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-half_width, half_width)
    axes.set_ylim(-half_height, half_height)
    axes.set_title(title, fontsize=LABEL_SIZE, color=INK)


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> count(1, "edge"), count(12345, "edge")
    ('1 edge', '12,345 edges')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
