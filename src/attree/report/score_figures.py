"""Figures of scores against effects, and of methods against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray
from torch import Tensor

from attree.attribution import METHODS, method_label
from attree.errors import expect, expect_int
from attree.evaluation.metric_names import OF_CLASSES, MetricName
from attree.evaluation.result import Evaluation
from attree.metrics.functional import auroc, pearson
from attree.report.style import (
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
    Look,
    count,
    grid_shape,
    method_looks,
    method_title,
    new_figure,
    note_undefined,
    panel_grid,
    plain_axes,
    plain_legend,
)

NUM_BINS = 30
MOST_COLUMNS = 4
MOST_POINTS = 20_000
HATCH = "////"


def score_histogram(scores: Mapping[str, Tensor], changed: Tensor, aurocs: Mapping[str, float] | None = None) -> Figure:
    """Draw one panel per method: the scores of pairs whose prediction changed, and of pairs whose prediction did not.

    This is the figure of the paper's appendix on faithfulness. Each of the two histograms is normalised by its own
    number of pairs, so that a few changed predictions are visible beside thousands of unchanged ones. The axis of
    shares is logarithmic, because most pairs score close to 0. The AUROC above each panel says how well the scores
    separate the two.

    Args:
        scores: Scores of all (target, edge) pairs, [P], of each method.
        changed: Whether reducing the edge's attention changed the predicted class, for each pair, [P].
        aurocs: AUROCs to print instead of those of `scores`, by method: for a random method, the mean over several
            draws, of which `scores` has one.
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
    printed_aurocs = {} if aurocs is None else aurocs
    smallest = 1.0
    for position, (axes, (method, values)) in enumerate(zip(panels, scores.items(), strict=True)):
        plain_axes(axes, "score", "share of pairs" if position % columns == 0 else "")
        value = printed_aurocs[method] if method in printed_aurocs else float(auroc(values.detach(), changed))
        quality = "AUROC undefined" if np.isnan(value) else f"AUROC {value:.3f}"
        if method in printed_aurocs and is_random_method(method):
            quality += " (mean of draws)"
        method_title(axes, looks[method], f"{method_label(method)}, {quality}")
        smallest = min(
            smallest, _draw_histogram(axes, values.detach().cpu().double().numpy(), is_changed, looks[method].color)
        )
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
        "Each histogram sums to 100 %. All panels share the axis of shares; each has its own axis of scores.",
        loc="outside lower center",
        handlelength=2.0 + 0.6 * len(looks),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.2)},
    )
    return figure


def _draw_histogram(axes: Axes, scores: NDArray[np.float64], is_changed: NDArray[np.bool_], color: str) -> float:
    """Draw the unchanged pairs in grey, and over them the changed pairs, hatched in the method's colour.

    Returns:
        The smallest positive share.
    """
    is_finite = np.isfinite(scores)
    low, high = scores[is_finite].min(initial=0.0), scores[is_finite].max(initial=0.0)
    edges = np.linspace(low, high if high > low else low + 1.0, NUM_BINS + 1)
    smallest = 1.0
    for in_group, is_hatched in ((is_finite & ~is_changed, False), (is_finite & is_changed, True)):
        total = int(in_group.sum())
        if total == 0:
            continue
        share = np.histogram(scores[in_group], edges)[0] / total
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


def dpc_scatter(
    scores: Mapping[str, Tensor],
    delta_pc: Tensor,
    protocol: str = "",
    most_points: int = MOST_POINTS,
    seed: int = 0,
    pearsons: Mapping[str, float] | None = None,
) -> Figure:
    """Draw every pair's score against dPC: how far the predicted class's probability drops when the edge is reduced.

    There is one panel per method, and all panels have the same axis of dPC. The correlation above a panel is that of
    all pairs. If there are very many, a random part of them is drawn, and the title says so.

    Args:
        scores: Scores of all (target, edge) pairs, [P], of each method.
        delta_pc: Decline of the predicted class's probability, for each pair, [P].
        protocol: Name of the protocol, for the title.
        most_points: Most pairs to draw.
        seed: Seed of the choice of pairs.
        pearsons: Correlations to print instead of those of `scores`, by method: for a random method, the mean over
            several draws, of which `scores` has one.
    """
    expect(len(scores) > 0, "scores", "those of at least one method", "none")
    expect_int(most_points, "most_points", 1)
    for method, values in scores.items():
        expect(values.shape == delta_pc.shape, f"scores[{method!r}]", f"of shape {tuple(delta_pc.shape)}", values.shape)
    total = delta_pc.numel()
    pair_ids = np.arange(total)
    if total > most_points:
        pair_ids = np.sort(np.random.default_rng(seed).choice(total, most_points, replace=False))
    rows, columns = grid_shape(len(scores), MOST_COLUMNS)
    title = "Score of an edge against the effect of reducing it" + (f" ({protocol})" if protocol else "")
    title += (
        f"\n{count(total, 'pair')}"
        if len(pair_ids) == total
        else (f"\n{len(pair_ids):,} of {count(total, 'pair')}, drawn at random")
    )
    figure = new_figure(3.0 * columns + 0.5, 3.0 * rows + 0.6, title)
    effect = delta_pc.detach().cpu().double().numpy()
    looks, printed_pearsons = method_looks(scores), {} if pearsons is None else pearsons
    first = None
    for number, (axes, (method, values)) in enumerate(
        zip(panel_grid(figure, len(scores), MOST_COLUMNS), scores.items(), strict=True)
    ):
        correlation = printed_pearsons.get(method, float("nan"))
        if method not in printed_pearsons and total > 1:
            correlation = float(pearson(values.cpu().double(), delta_pc.cpu().double()))
        correlation_text = "undefined" if np.isnan(correlation) else f"{correlation:.3f}"
        if method in printed_pearsons and is_random_method(method):
            correlation_text += " (mean of draws)"
        is_left, is_low = number % columns == 0, number + columns >= len(scores)
        plain_axes(
            axes,
            "score, own scale" if is_low else "",
            "dPC: drop of the class's probability" if is_left else "",
        )
        method_title(axes, looks[method], f"{method_label(method)}, Pearson {correlation_text}")
        if first is None:
            first = axes
        else:
            axes.sharey(first)
            axes.tick_params(labelleft=is_left)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        axes.scatter(
            values.detach().cpu().double().numpy()[pair_ids],
            effect[pair_ids],
            s=9,
            color=looks[method].color,
            alpha=0.35,
            linewidths=0,
            rasterized=True,  # thousands of points would make a vector picture slow to open
        )
    return figure


def deletion_curve(counts: Sequence[int], curves: Mapping[str, Tensor], note: str = "") -> Figure:
    """Draw the predicted class's probability against the number of highest-scored edges that are removed, per method.

    Lines are means over targets, and bands are standard errors. The faster a line falls below that of random edges, the
    better the scores. Random methods are dashed.

    Args:
        counts: Numbers of removed edges, ascending.
        curves: Probabilities [targets, len(counts)] of each method (`attree.faithfulness.delete_edges`).
        note: A line below the title.
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
        look = looks[method]
        axes.plot(
            places,
            mean,
            linestyle="--" if is_random_method(method) else "-",
            label=method_label(method),
            **look.lined(4.0),
        )
        if len(points) > 1:
            error = points.std(axis=0, ddof=1) / np.sqrt(len(points))
            axes.fill_between(places, mean - error, mean + error, color=look.color, alpha=0.15, linewidth=0)
    # The first few edges change most.
    axes.set_xscale("symlog", linthresh=5, linscale=1.5)
    axes.set_xticks(list(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(-0.15, counts[-1] * 1.05 + 0.1)
    axes.set_ylim(0.0, 1.02)
    axes.legend(frameon=False, fontsize=SMALL_SIZE)
    return figure


def is_random_method(name: str) -> bool:
    """Return whether the scores of a method are random."""
    return name in METHODS and METHODS[name].is_random


SETTING_MARKERS = "osD^vPX*"
"""Markers that settings take in turn, because colours alone are hard to distinguish."""

OVER_UNIFORM_NOTE = "Crosses: one standard deviation over seeds. On the line, GAtt is as faithful as uniform attention."


def evaluation_figure(evaluation: Evaluation) -> Figure:
    """Draw all statistics as bars: one panel per protocol, one group of bars per statistic, one bar per method.

    All panels have the same scale. Each bar ends in its method's marker, which distinguishes methods in grey print. An
    undefined statistic has the letter u instead of a bar.

    Args:
        evaluation: The result to draw.
    """
    left_out = OF_CLASSES if evaluation.predicts_numbers else ()
    parsed = {
        name: metric
        for name in evaluation.metrics
        if (metric := MetricName.parse(name)) is not None and metric.statistic not in left_out
    }
    metrics = list(parsed.values())
    expect(len(metrics) > 0, "evaluation", "one with metrics", "none")
    methods = list(dict.fromkeys(metric.method for metric in metrics))
    looks = method_looks(methods)
    panels = {
        protocol: list(dict.fromkeys(metric.statistic for metric in metrics if metric.protocol == protocol))
        for protocol in dict.fromkeys(metric.protocol for metric in metrics)
    }
    most = max(map(len, panels.values()))
    inches = max(0.13 * most * (len(methods) + 1), 0.85 * most) + 0.8
    figure = new_figure(max(inches, 5.0), 2.1 * len(panels) + 0.9, "How well scores explain the model")
    grid = figure.add_gridspec(len(panels), 1)
    values_of_methods = [value for name, value in evaluation.metrics.items() if MetricName.parse(name) is not None]
    lowest = min([-0.05, *(value for value in values_of_methods if not math.isnan(value))])
    for row, (protocol, statistics) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[row, 0])
        meaning = evaluation.meanings.get(protocol or "", "")
        title = "ground truth" if protocol is None else f"{protocol}: {meaning}" if meaning else protocol
        plain_axes(axes, ylabel="AUROC or correlation", title=title)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        width = 0.8 / len(methods)
        for number, method in enumerate(methods):
            values = [evaluation.metrics[str(MetricName(method, statistic, protocol))] for statistic in statistics]
            places = np.arange(len(statistics)) + (number - (len(methods) - 1) / 2) * width
            look = looks[method]
            axes.bar(places, np.nan_to_num(values), width * 0.72, color=look.color, alpha=0.55)
            axes.plot(places, values, linestyle="", color=look.color, markersize=4.5, clip_on=False, **look.marked())
            for place, value in zip(places, values, strict=True):
                if math.isnan(value):
                    axes.text(place, 0.02, "u", ha="center", fontsize=SMALL_SIZE, color=INK)
        titles = [evaluation.statistic_labels.get(statistic, statistic) for statistic in statistics]
        names = [title.replace(", ", "\n").replace(" (", "\n(") for title in titles]
        axes.set_xticks(np.arange(len(statistics)), names, fontsize=SMALL_SIZE - 1)
        axes.set_xlim(-0.55, most - 0.45)  # bars have the same width in all panels
        axes.set_ylim(lowest * 1.05, 1.02)
    handles = [look.handle() for look in looks.values()]
    labels = [evaluation.method_labels.get(method, method) for method in methods]
    undefined = any(math.isnan(evaluation.metrics[name]) for name in parsed)
    note = "1 is perfect; a correlation of 0 and an AUROC of 0.5 are chance." + (" u: undefined." if undefined else "")
    plain_legend(figure, handles, labels, note, loc="outside lower center")
    return figure


class MethodPoint(NamedTuple):
    """Runtime and accuracy of one method on one dataset.

    Attributes:
        method: Name of the method.
        seconds: Runtime for all targets.
        auroc: AUROC of its scores against the true edges.
    """

    method: str
    seconds: float
    auroc: float


def accuracy_runtime_figure(panels: Mapping[str, Sequence[MethodPoint]]) -> Figure:
    """Draw every method as a point, in one panel per dataset: the paper's accuracy-runtime plot.

    The upper left corner is best. A method has the same colour and marker in all panels.

    Args:
        panels: The methods of each dataset, by the title of its panel.
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


def over_uniform_pairs(metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return pairs of metrics, one of GAtt and one of uniform attention, by the statistic that both measure.

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
    """Draw how much more faithful GAtt is than uniform attention, against accuracy, one point per setting.

    Args:
        settings: For each setting, by name, a table of its runs: one row per seed, one column per metric.
        accuracy: Name of the metric on the horizontal axis.
        pairs: For each panel, by title, the metric of GAtt and that of uniform attention: see `over_uniform_pairs`.
        title: Heading of the figure.
    """
    expect(len(settings) > 0, "settings", "runs of at least one setting", dict(settings))
    expect(len(pairs) > 0, "pairs", "metrics of GAtt and of uniform attention", dict(pairs))
    figure = new_figure(4.4 * len(pairs) + 0.8, 4.4 + 0.2 * len(settings), title)
    # Ten strong colours, then ten pale ones.
    colors = [to_hex(matplotlib.colormaps["tab20"]((2 * place) % 20 + (2 * place) // 20 % 2)) for place in range(20)]
    looks = {name: Look(colors[k % 20], SETTING_MARKERS[k % len(SETTING_MARKERS)]) for k, name in enumerate(settings)}
    for axes, (what, (gatt, uniform)) in zip(
        figure.subplots(1, len(pairs), squeeze=False)[0], pairs.items(), strict=True
    ):
        plain_axes(axes, accuracy, f"{what}: GAtt minus uniform attention")
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.axhline(0.0, color=MUTED, linewidth=1.0, linestyle="--", zorder=1)
        unknown = 0
        for name, runs in settings.items():
            points = np.stack([runs[accuracy], runs[gatt] - runs[uniform]]).astype(np.float64)
            points = points[:, np.isfinite(points).all(axis=0)]
            if not points.size:
                unknown += 1
                continue
            mean = points.mean(axis=1)
            spread = points.std(axis=1, ddof=1) if points.shape[1] > 1 else np.zeros(2)
            look = looks[name]
            marker: dict[str, Any] = {"color": look.color, "marker": look.marker, "markersize": 7, "zorder": 3}
            axes.errorbar(mean[0], mean[1], spread[1], spread[0], elinewidth=0.8, markeredgecolor="white", **marker)
        note_undefined(axes, unknown, len(settings))
    handles = [look.handle() for look in looks.values()]
    plain_legend(figure, handles, list(looks), OVER_UNIFORM_NOTE, loc="outside lower center")
    return figure
