"""Shared style of all figures: colours, sizes, axes, legends, numbers, and the colour and marker of each method."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import Any, Literal
from weakref import WeakKeyDictionary

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, DrawingArea

# From Okabe and Ito's palette, which stays distinct under the common kinds of colour blindness.
BLUE = "#0072B2"
ORANGE = "#E69F00"
VERMILION = "#D55E00"

FOR, AGAINST = VERMILION, "#009E73"
"""Colours of edges that speak for and against a prediction, as on the page."""

INK = "#222222"
MUTED = "#6E6E6E"
FAINT = "#D9D9D9"

SCORE_COLORS = LinearSegmentedColormap.from_list("attree_score", ["#D4D4D4", "#F0A070", VERMILION, "#5C1A00"])
"""From pale grey (no score) to dark red (the highest). The lightness falls steadily, so it also works in grey print."""

SIGNED_COLORS = LinearSegmentedColormap.from_list(
    "attree_signed", ["#00402F", AGAINST, "#7FC9B4", "#D4D4D4", "#F0A070", FOR, "#5C1A00"]
)
"""From dark green (the largest score against) over pale grey to dark red (the largest score for)."""

TITLE_SIZE = 11
LABEL_SIZE = 9
SMALL_SIZE = 8

LETTER = 0.0076
"""Mean width of a letter in inches per point of font size, for English text in Matplotlib's default font."""


def new_figure(width: float, height: float, title: str = "", note: str = "") -> Figure:
    """Return an empty white figure with automatic margins. Matplotlib's global state stays unchanged.

    Args:
        width: Width in inches.
        height: Height in inches.
        title: Heading; lines that are too long for the width are broken.
        note: How to read the figure, in small letters at the bottom. If there is a legend at the bottom, pass the note
            to `plain_legend` instead.
    """
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    if title:
        figure.suptitle(broken(title, width, TITLE_SIZE), fontsize=TITLE_SIZE, color=INK, parse_math=False)
    if note:
        figure.supxlabel(broken(note, width, SMALL_SIZE), fontsize=SMALL_SIZE, color=MUTED, parse_math=False)
    return figure


def broken(text: str, width: float, size: float) -> str:
    """Break the lines of a text so that they fit a width.

    Args:
        text: The text.
        width: The width in inches.
        size: Font size in points.

    >>> broken("one two three", 1.0, 11)
    'one two\\nthree'
    """
    most = max(int(width / (LETTER * size)), 8)
    unbroken = text.replace(" -> ", "\N{NO-BREAK SPACE}->\N{NO-BREAK SPACE}")  # keep an edge on one line
    lines = [wrap(line, most, break_long_words=False, break_on_hyphens=False) or [""] for line in unbroken.split("\n")]
    return "\n".join(part for parts in lines for part in parts)


def panel_grid(figure: Figure, count: int, most_columns: int) -> list[Axes]:
    """Return `count` panels in rows of nearly equal length, with at most `most_columns` panels in a row."""
    rows, columns = grid_shape(count, most_columns)
    grid = figure.add_gridspec(rows, columns)
    return [figure.add_subplot(grid[position // columns, position % columns]) for position in range(count)]


def grid_shape(count: int, most_columns: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a grid for `count` panels.

    >>> grid_shape(3, most_columns=4), grid_shape(5, most_columns=4)
    ((1, 3), (2, 3))
    """
    rows = math.ceil(count / most_columns)
    return rows, math.ceil(count / rows)


def plain_axes(axes: Axes, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Style axes: two spines, a faint grid behind the data and the shared text sizes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=SMALL_SIZE, colors=MUTED, labelcolor=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=INK)
    axes.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=INK)
    axes.set_title(title, fontsize=LABEL_SIZE, color=INK)


def plain_legend(
    owner: Figure | Axes, handles: Sequence[Any], labels: Sequence[str], note: str = "", **options: Any
) -> None:
    """Add a legend without a frame. Labels are shown literally, even if they look like formulas.

    Args:
        owner: The figure or the axes. A legend below a figure has as many columns as fit its width.
        handles: Handles of the entries.
        labels: Labels of the entries.
        note: How to read the figure, above the entries.
        options: Options of Matplotlib's `legend`.
    """
    if isinstance(owner, Figure) and "lower" in str(options.get("loc")):
        width = owner.get_figwidth()
        column = 0.5 + LETTER * SMALL_SIZE * max(map(len, labels), default=0)
        options["ncols"] = max(1, min(options.get("ncols", len(labels)), int(width / column)))
        note = broken(note, width, SMALL_SIZE) if note else ""
    fonts: dict[str, Any] = {"fontsize": SMALL_SIZE, "title": note or None, "title_fontsize": SMALL_SIZE}
    legend = owner.legend(handles, [label or " " for label in labels], frameon=False, **fonts, **options)
    legend.get_title().set_color(MUTED)
    for text in (legend.get_title(), *legend.get_texts()):
        text.set_parse_math(False)


def note_undefined(axes: Axes, undefined: int, total: int) -> None:
    """Write the number of undefined values above the right end of a panel, or, if all are undefined, in its middle."""
    if 0 < undefined < total:
        axes.set_title(f"{undefined} undefined", loc="right", fontsize=SMALL_SIZE, color=INK, pad=2)
    elif undefined:
        middle: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, "all undefined", fontsize=SMALL_SIZE, color=INK, **middle)


def picture_axes(axes: Axes, title: str = "", half_width: float = 1.0, half_height: float = 1.0) -> None:
    """Style axes for a drawing: no frame, equal scales, the origin in the middle."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-half_width, half_width)
    axes.set_ylim(-half_height, half_height)
    axes.set_title(title, fontsize=LABEL_SIZE, color=INK)


def significant(value: float, sign: bool = False) -> str:
    """Format a number with three significant digits, with its sign if `sign`.

    >>> significant(0.00012345), significant(-0.5, sign=True), significant(0.0, sign=True)
    ('0.000123', '-0.500', '0')
    """
    if value == 0:
        return "0"
    return f"{value:{'+' if sign else ''}#.3g}".rstrip(".")


def sign_color(effect: float) -> str:
    """Return the colour of an effect: its edge speaks for or against the prediction; empty if it has no effect.

    >>> sign_color(0.2) == FOR, sign_color(-0.2) == AGAINST, sign_color(0.0)
    (True, True, '')
    """
    return FOR if effect > 0 else AGAINST if effect < 0 else ""


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun, in singular or plural.

    >>> count(1, "edge"), count(12345, "edge")
    ('1 edge', '12,345 edges')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


FILE_DPI = 150
"""Resolution of pictures in files and dashboards."""

_RENDERED: WeakKeyDictionary[Figure, bytes] = WeakKeyDictionary()


def as_png(figure: Figure) -> bytes:
    """Return a finished figure as a PNG file. It is rendered once, because rendering is slow."""
    if figure not in _RENDERED:
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=FILE_DPI)
        _RENDERED[figure] = buffer.getvalue()
    return _RENDERED[figure]


Line = Literal["-", "--", ":", "-.", ""]
"""A line style of Matplotlib."""


@dataclass(frozen=True)
class Look:
    """Colour and marker of one method.

    Attributes:
        color: Colour.
        marker: Marker, which distinguishes the method in grey print.
        is_filled: Whether the marker is filled; markers of users' own methods are open.
        is_beneath: Whether the method is drawn large, open and beneath the others. Its points often coincide with those
            of another method, and both should be visible.
    """

    color: str
    marker: str
    is_filled: bool = True
    is_beneath: bool = False

    @property
    def face(self) -> str:
        """Fill colour of the marker."""
        if self.is_beneath:
            return "none"
        return self.color if self.is_filled else "white"

    @property
    def width(self) -> float:
        """Line width in points. A line beneath is wider, so that it shows on both sides of the line above it."""
        return 4.2 if self.is_beneath else 1.6

    @property
    def scale(self) -> float:
        """Size of the marker relative to other methods."""
        return 1.5 if self.is_beneath else 1.0

    @property
    def height(self) -> float:
        """Drawing order (Matplotlib's `zorder`)."""
        return 2.5 if self.is_beneath else 3.0

    def handle(self, label: str = "", line: Line = "", size: float = 6.0) -> Line2D:
        """Return a legend handle: the marker, on a line if a line style is given."""
        return Line2D([], [], color=self.color, linestyle=line, label=label, markersize=size, **self.marked())

    def lined(self, size: float) -> dict[str, Any]:
        """Return line and marker of a curve, as arguments of `Axes.plot`.

        Args:
            size: Marker size of other methods.
        """
        shape: dict[str, Any] = {"markersize": size * self.scale, "linewidth": self.width, "zorder": self.height}
        return {"color": self.color, "alpha": 0.6 if self.is_beneath else 1.0, **shape, **self.marked()}

    def marked(self) -> dict[str, Any]:
        """Return the marker, as arguments of `Axes.plot`."""
        return {"marker": self.marker, "markerfacecolor": self.face, "markeredgecolor": self.color}


LOOKS = {
    "gatt": Look(BLUE, "o"),
    "gatt_sim": Look("#56B4E9", "^"),
    "gatt_avg": Look("#32038F", "v"),
    "avgatt": Look(ORANGE, "s"),
    "uniform": Look("#CC79A7", "D", is_beneath=True),
    "saliency": Look(VERMILION, "P"),
    "guided_backprop": Look("#009E73", "d"),
    "integrated_gradients": Look("#6B2305", "*"),
    "gnn_explainer": Look("#9608F4", "<"),
    "pg_explainer": Look("#AFD07D", ">"),
    "graph_mask": Look("#3F0451", "p"),
    "fastdnx": Look("#8E78FF", "h"),
    "occlusion": Look("#000000", "H"),
    "attention_gradient": Look("#F0E442", "8"),
    "random": Look("#5F5F5F", "X"),
}
"""Looks of attree's methods: Okabe and Ito's palette, then colours that are far from it and from each other."""


OWN_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "<", ">")
OWN_COLORS = ("#009E73", "#9608F4", VERMILION, "#6B2305", "#CC79A7", "#32038F", "#56B4E9")
"""Markers and colours of users' own methods. They make 63 different pairs, as 9 and 7 have no common divisor."""


def method_looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return a different look for each method of a figure.

    The look of a user's own method follows from its name, so it is the same in every figure and every run. Only if two
    names in a figure lead to the same marker, the alphabetically later one takes the next free marker.

    >>> looks = method_looks(["gatt", "mine"])
    >>> looks["gatt"].marker, looks["mine"] == method_looks(["mine", "random"])["mine"], looks["mine"].is_filled
    ('o', True, False)
    """
    names = list(dict.fromkeys(methods))
    number = len(OWN_MARKERS) * len(OWN_COLORS)
    own_looks: dict[str, Look] = {}
    for name in sorted(name for name in names if name not in LOOKS):
        first = zlib.crc32(name.encode("utf-8", "surrogatepass"))
        slots = [(first + step) % number for step in range(number)]
        looks = [Look(OWN_COLORS[k % len(OWN_COLORS)], OWN_MARKERS[k % len(OWN_MARKERS)], False) for k in slots]
        used_looks, markers = set(own_looks.values()), {look.marker for look in own_looks.values()}
        free = [look for look in looks if look not in used_looks] or looks
        own_looks[name] = next((look for look in free if look.marker not in markers), free[0])
    return {name: LOOKS[name] if name in LOOKS else own_looks[name] for name in names}


def method_title(axes: Axes, look: Look, title: str) -> None:
    """Set the title of a method's panel, with the method's marker before the text."""
    axes.set_title(title, fontsize=LABEL_SIZE, color=INK, parse_math=False)
    place = DrawingArea(12, 8)
    place.add_artist(Line2D([5], [4], color=look.color, markersize=6.0, **look.marked()))
    axes.add_artist(
        AnnotationBbox(
            place,
            (0.0, 0.5),
            xycoords=axes.title,
            box_alignment=(1.0, 0.5),
            frameon=False,
            pad=0.2,
            annotation_clip=False,
        )
    )
