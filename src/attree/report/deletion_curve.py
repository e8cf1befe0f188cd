"""Deletion curve: how a prediction falls when the highest-scored edges are taken away, beside random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from attree.attribution import METHODS, method_label
from attree.errors import expect
from attree.report.looks import method_looks
from attree.report.style import SMALL_SIZE, count, new_figure, plain_axes


def deletion_curve(counts: Sequence[int], curves: Mapping[str, Tensor], note: str = "") -> Figure:
    """Draw, per method, the predicted class's probability against how many of its highest-scored edges are dropped.

    Lines are means over targets, bands their standard errors. The faster a line falls below that of random edges, the
    better the scores. Random methods are dashed.

    Args:
        counts: How many edges are dropped, ascending.
        curves: For each method the probabilities, [targets, len(counts)] (`attree.faithfulness.delete_edges`).
        note: What to say of them below the title.
    """
    expect(len(curves) > 0, "curves", "those of at least one method", "none")
    expect(list(counts) == sorted(set(counts)), "counts", "ascending numbers", list(counts))
    for method, values in curves.items():
        fits = values.dim() == 2 and values.shape[1] == len(counts) and len(values) > 0
        expect(fits, f"curves[{method!r}]", f"of shape [targets, {len(counts)}]", tuple(values.shape))
    targets = max(len(values) for values in curves.values())
    title = f"Predictions without the highest-scored edges ({count(targets, 'target')})"
    bands = (
        "Lines: means over targets; bands: their standard errors. The axis of k is linear up to 5, then logarithmic."
    )
    figure = new_figure(5.6, 4.2, f"{title}\n{note}" if note else title, bands)
    axes = figure.add_subplot()
    plain_axes(axes, "edges dropped at once, k", "probability of the class predicted at first")
    looks = method_looks(curves)
    for method, values in curves.items():
        points = values.detach().cpu().double().numpy()
        mean, places = points.mean(axis=0), np.asarray(counts, dtype=float)
        is_random = method in METHODS and METHODS[method].is_random
        look = looks[method]
        axes.plot(places, mean, linestyle="--" if is_random else "-", label=method_label(method), **look.lined(4.0))
        if len(points) > 1:
            error = points.std(axis=0, ddof=1) / np.sqrt(len(points))
            axes.fill_between(places, mean - error, mean + error, color=look.color, alpha=0.15, linewidth=0)
    # Most happens at the first few edges.
    axes.set_xscale("symlog", linthresh=5, linscale=1.5)
    axes.set_xticks(list(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(-0.15, counts[-1] * 1.05 + 0.1)
    axes.set_ylim(0.0, 1.02)
    axes.legend(frameon=False, fontsize=SMALL_SIZE)
    return figure
