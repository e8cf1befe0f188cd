"""Histograms: do edges whose reduction changes the prediction score higher than the others?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray
from torch import Tensor

from attree.attribution import METHODS, method_label
from attree.errors import expect
from attree.metrics.functional import auroc
from attree.report.looks import method_looks, method_title
from attree.report.style import FAINT, MUTED, count, grid_shape, new_figure, panel_grid, plain_axes, plain_legend

NUM_BINS = 30
MOST_COLUMNS = 4
HATCH = "////"


def score_histogram(scores: Mapping[str, Tensor], changed: Tensor, aurocs: Mapping[str, float] | None = None) -> Figure:
    """Draw, per method, how scores are distributed where the prediction changed and where it did not.

    This is the figure of the paper's appendix on faithfulness. Each of the two histograms is normalised by its own
    number of pairs, so that a few changed predictions show beside thousands of unchanged ones. The axis of shares is
    logarithmic, because most pairs score close to 0. The AUROC above each panel is that of telling the two apart.

    Args:
        scores: For each method the scores of all (target, edge) pairs, [P].
        changed: For each pair whether reducing the edge's attention changed the predicted class, [P].
        aurocs: The AUROC of methods for which it is known better than from these scores, such as the mean over several
            draws of a random method, of which one draw is shown.
    """
    expect(len(scores) > 0, "scores", "scores of at least one method", dict(scores))
    for method, values in scores.items():
        expect(values.shape == changed.shape, f"scores[{method!r}]", f"of shape {list(changed.shape)}", values.shape)
    is_changed = changed.detach().bool().cpu().numpy()
    rows, columns = grid_shape(len(scores), MOST_COLUMNS)
    title = "Scores of edges, by whether reducing the edge's attention changes the prediction"
    figure = new_figure(max(3.3 * columns, 7.0), 2.7 * rows + 0.7, title)
    panels = panel_grid(figure, len(scores), MOST_COLUMNS)
    looks = method_looks(scores)
    known = {} if aurocs is None else aurocs
    smallest = 1.0
    for position, (axes, (method, values)) in enumerate(zip(panels, scores.items(), strict=True)):
        plain_axes(axes, "score", "share of pairs" if position % columns == 0 else "")
        value = known[method] if method in known else float(auroc(values.detach(), changed))
        quality = "AUROC undefined" if np.isnan(value) else f"AUROC {value:.3f}"
        if method in known and method in METHODS and METHODS[method].is_random:
            quality += " (mean of draws)"
        method_title(axes, looks[method], f"{method_label(method)}, {quality}")
        smallest = min(smallest, _draw(axes, values.detach().cpu().double().numpy(), is_changed, looks[method].color))
    for axes in panels:
        axes.set_ylim(smallest / 2, 1.5)
    num_changed = int(is_changed.sum())
    unchanged = Patch(facecolor=FAINT, edgecolor=MUTED)
    entries = [unchanged, tuple(Patch(fill=False, edgecolor=look.color, hatch=HATCH) for look in looks.values())]
    same = is_changed.size - num_changed
    words = [f"unchanged ({count(same, 'pair')})", f"changed ({count(num_changed, 'pair')})"]
    plain_legend(
        figure,
        entries,
        words,
        "Shares of either kind's own pairs; all panels have the same axis of shares, and each its own axis of scores.",
        loc="outside lower center",
        handlelength=2.0 + 0.6 * len(looks),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.2)},
    )
    return figure


def _draw(axes: Axes, scores: NDArray[np.float64], is_changed: NDArray[np.bool_], color: str) -> float:
    """Grey steps where nothing changed, hatched ones in the method's colour over them where the prediction did.

    Returns:
        The smallest share that is drawn.
    """
    known = np.isfinite(scores)
    low, high = scores[known].min(initial=0.0), scores[known].max(initial=0.0)
    edges = np.linspace(low, high if high > low else low + 1.0, NUM_BINS + 1)
    smallest = 1.0
    for chosen, is_hatched in ((known & ~is_changed, False), (known & is_changed, True)):
        total = int(chosen.sum())
        if total == 0:
            continue
        share = np.histogram(scores[chosen], edges)[0] / total
        smallest = min(smallest, float(share[share > 0].min()))
        if is_hatched:
            axes.stairs(share, edges, edgecolor=color, hatch=HATCH, linewidth=1.4, baseline=1e-12)
        else:
            axes.stairs(share, edges, fill=True, facecolor=FAINT, edgecolor=MUTED, linewidth=0.8, baseline=1e-12)
    axes.set_yscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.yaxis.set_major_formatter(lambda share, position: f"{100 * share:g} %")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return smallest
