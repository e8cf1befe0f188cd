"""What attention adds: how much more faithful GAtt is than uniform attention, against accuracy, setting by setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attree.errors import expect
from attree.report.looks import Look
from attree.report.style import FAINT, MUTED, new_figure, note_undefined, plain_axes, plain_legend

MARKERS = "osD^vPX*"
"""Told apart also where colours are not: settings take them in turn."""

NOTE = "Crosses: one standard deviation over seeds. At the line, attention says no more than uniform attention does."


def over_uniform_pairs(metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The metrics of GAtt and of uniform attention that belong together, by what both measure.

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
    """Draw what attention adds to the computation tree in each setting, and what accuracy it comes with.

    Args:
        settings: For each setting, under its name, a table of its runs: one row per seed, one column per metric.
        accuracy: Name of the metric on the axis across.
        pairs: By the name of a panel, the metric of GAtt and that of uniform attention, see `over_uniform_pairs`.
        title: Heading of the figure.
    """
    expect(len(settings) > 0, "settings", "runs of at least one setting", dict(settings))
    expect(len(pairs) > 0, "pairs", "metrics of GAtt and of uniform attention", dict(pairs))
    figure = new_figure(4.4 * len(pairs) + 0.8, 4.4 + 0.2 * len(settings), title)
    # Ten strong colours, then their ten pale ones.
    colors = [to_hex(matplotlib.colormaps["tab20"]((2 * place) % 20 + (2 * place) // 20 % 2)) for place in range(20)]
    looks = {name: Look(colors[place % 20], MARKERS[place % len(MARKERS)]) for place, name in enumerate(settings)}
    for axes, (what, (own, uniform)) in zip(
        figure.subplots(1, len(pairs), squeeze=False)[0], pairs.items(), strict=True
    ):
        plain_axes(axes, accuracy, f"{what}: GAtt minus uniform attention")
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.axhline(0.0, color=MUTED, linewidth=1.0, linestyle="--", zorder=1)
        unknown = 0
        for name, runs in settings.items():
            points = np.stack([runs[accuracy], runs[own] - runs[uniform]]).astype(np.float64)
            points = points[:, np.isfinite(points).all(axis=0)]
            if not points.size:
                unknown += 1
                continue
            mean = points.mean(axis=1)
            spread = points.std(axis=1, ddof=1) if points.shape[1] > 1 else np.zeros(2)
            look = looks[name]
            shown: dict[str, Any] = {"color": look.color, "marker": look.marker, "markersize": 7, "zorder": 3}
            axes.errorbar(mean[0], mean[1], spread[1], spread[0], elinewidth=0.8, markeredgecolor="white", **shown)
        note_undefined(axes, unknown, len(settings))
    handles = [look.handle() for look in looks.values()]
    plain_legend(figure, handles, list(looks), NOTE, loc="outside lower center")
    return figure
