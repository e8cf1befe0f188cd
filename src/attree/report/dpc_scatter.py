"""dPC scatter: do edges that score high also matter when they are reduced?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from attree.attribution import METHODS, method_label
from attree.errors import expect, expect_int
from attree.metrics.functional import pearson
from attree.report.looks import method_looks, method_title
from attree.report.style import MUTED, count, grid_shape, new_figure, panel_grid, plain_axes

MOST_COLUMNS = 4
MOST_POINTS = 20_000


def dpc_scatter(
    scores: Mapping[str, Tensor],
    delta_pc: Tensor,
    protocol: str = "",
    most_points: int = MOST_POINTS,
    seed: int = 0,
    pearsons: Mapping[str, float] | None = None,
) -> Figure:
    """Draw every pair's score against what reducing its edge takes off the predicted class's probability.

    One panel and one colour a method, all with the same axis of dPC. The correlation above a panel is that of all
    pairs; of very many, a random part is drawn, and the title says so.

    Args:
        scores: For each method the scores of all (target, edge) pairs, [P].
        delta_pc: For each pair the decline of the predicted class's probability, [P].
        protocol: What reducing means, for the title.
        most_points: Most pairs to draw.
        seed: Seed of the choice.
        pearsons: Pearson of methods for which it is known better than from these scores, such as the mean over several
            draws of a random method, of which one draw is shown.
    """
    expect(len(scores) > 0, "scores", "those of at least one method", "none")
    expect_int(most_points, "most_points", 1)
    for method, values in scores.items():
        expect(values.shape == delta_pc.shape, f"scores[{method!r}]", f"of shape {tuple(delta_pc.shape)}", values.shape)
    total = delta_pc.numel()
    shown = np.arange(total)
    if total > most_points:
        shown = np.sort(np.random.default_rng(seed).choice(total, most_points, replace=False))
    rows, columns = grid_shape(len(scores), MOST_COLUMNS)
    figure = new_figure(3.0 * columns + 0.5, 3.0 * rows + 0.6, _title(protocol, len(shown), total))
    effect = delta_pc.detach().cpu().double().numpy()
    looks, given = method_looks(scores), {} if pearsons is None else pearsons
    first = None
    for number, (axes, (method, values)) in enumerate(
        zip(panel_grid(figure, len(scores), MOST_COLUMNS), scores.items(), strict=True)
    ):
        correlation = given.get(method, float("nan"))
        if method not in given and total > 1:
            correlation = float(pearson(values.cpu().double(), delta_pc.cpu().double()))
        known = "undefined" if np.isnan(correlation) else f"{correlation:.3f}"
        if method in given and method in METHODS and METHODS[method].is_random:
            known += " (mean of draws)"
        is_left, is_low = number % columns == 0, number + columns >= len(scores)
        plain_axes(
            axes,
            "score, own scale" if is_low else "",
            "dPC: drop of the class's probability" if is_left else "",
        )
        method_title(axes, looks[method], f"{method_label(method)}, Pearson {known}")
        if first is None:
            first = axes
        else:
            axes.sharey(first)
            axes.tick_params(labelleft=is_left)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        axes.scatter(
            values.detach().cpu().double().numpy()[shown],
            effect[shown],
            s=9,
            color=looks[method].color,
            alpha=0.35,
            linewidths=0,
            rasterized=True,  # thousands of points would make a vector picture slow to open
        )
    return figure


def _title(protocol: str, shown: int, total: int) -> str:
    title = "What methods score against what reducing the edge does" + (f" ({protocol})" if protocol else "")
    whole = count(total, "pair")
    return f"{title}\n{whole}" if shown == total else f"{title}\n{shown:,} of {whole}, drawn at random"
