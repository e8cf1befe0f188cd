"""The colour and the marker of each method in figures, on the page and in TensorBoard."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, DrawingArea

from attree.report.style import BLUE, INK, LABEL_SIZE, ORANGE, VERMILION

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
