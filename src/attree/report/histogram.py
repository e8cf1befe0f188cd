"""Histograms: do edges whose reduction changes the prediction score higher than the others?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray
from torch import Tensor

from attree.attribution import method_label
from attree.errors import expect
from attree.metrics.functional import auroc
from attree.report.style import BLUE, SMALL_SIZE, VERMILION, grid_shape, new_figure, panel_grid, plain_axes

NUM_BINS = 30
MOST_COLUMNS = 4


def score_histogram(scores: Mapping[str, Tensor], changed: Tensor) -> Figure:
    """Draw, per method, how scores are distributed where the prediction changed and where it did not.

    This is the figure of the paper's appendix on faithfulness. Each of the two histograms is normalised by its own
    number of pairs, so that a few changed predictions show beside thousands of unchanged ones. The axis of shares is
    logarithmic, because most pairs score close to 0. The AUROC above each panel is that of telling the two apart.

    Args:
        scores: For each method the scores of all (target, edge) pairs, [P].
        changed: For each pair whether reducing the edge's attention changed the predicted class, [P].
    """
    expect(len(scores) > 0, "scores", "scores of at least one method", dict(scores))
    for method, values in scores.items():
        expect(values.shape == changed.shape, f"scores[{method!r}]", f"of shape {list(changed.shape)}", values.shape)
    is_changed = changed.detach().bool().cpu().numpy()
    rows, columns = grid_shape(len(scores), MOST_COLUMNS)
    title = "Scores of edges, by whether reducing the edge's attention changes the prediction"
    figure = new_figure(max(3.3 * columns, 7.0), 2.7 * rows + 0.7, title)
    panels = panel_grid(figure, len(scores), MOST_COLUMNS)
    for position, (axes, (method, values)) in enumerate(zip(panels, scores.items(), strict=True)):
        plain_axes(axes, "score", "share of pairs" if position % columns == 0 else "")
        axes.set_title(f"{method_label(method)}, {_auroc_label(values, changed)}", fontsize=9)
        _draw(axes, values.detach().cpu().double().numpy(), is_changed)
    num_changed = int(is_changed.sum())
    entries = [
        Patch(facecolor=BLUE, alpha=0.5, label=f"unchanged ({is_changed.size - num_changed:,} pairs)"),
        Patch(facecolor=VERMILION, alpha=0.5, label=f"changed ({num_changed:,} pairs)"),
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL_SIZE)
    return figure


def _auroc_label(scores: Tensor, changed: Tensor) -> str:
    value = float(auroc(scores.detach(), changed))
    return "AUROC undefined" if np.isnan(value) else f"AUROC {value:.3f}"


def _draw(axes: Axes, scores: NDArray[np.float64], is_changed: NDArray[np.bool_]) -> None:
    known = np.isfinite(scores)
    low, high = scores[known].min(initial=0.0), scores[known].max(initial=0.0)
    edges = np.linspace(low, high if high > low else low + 1.0, NUM_BINS + 1)
    smallest = 1.0
    for chosen, color in ((known & ~is_changed, BLUE), (known & is_changed, VERMILION)):
        total = int(chosen.sum())
        if total == 0:
            continue
        share = np.histogram(scores[chosen], edges)[0] / total
        smallest = min(smallest, float(share[share > 0].min()))
        axes.stairs(share, edges, fill=True, color=color, alpha=0.4, baseline=1e-12)
        axes.stairs(share, edges, color=color, linewidth=1.2, baseline=1e-12)
    axes.set_yscale("log")
    axes.set_ylim(smallest / 2, 1.5)
    axes.set_xlim(edges[0], edges[-1])
    axes.yaxis.set_major_formatter(lambda share, position: f"{100 * share:g} %")
    axes.yaxis.set_minor_formatter(NullFormatter())
