"""Case study: one target's neighbourhood, with the edges coloured by what each method says of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from attree.attention import LoopedGraph
from attree.attribution import method_label, subgraph_pairs
from attree.errors import expect
from attree.report.graph_drawing import draw_edges, draw_nodes, sketch
from attree.report.neighbourhood import Neighbourhood, left_out, strength_of
from attree.report.style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    SCORE_COLORS,
    SMALL_SIZE,
    count,
    grid_shape,
    new_figure,
    panel_grid,
    picture_axes,
)

PANEL_INCHES = 3.4
SINGLE_PANEL_INCHES = 5.2
MOST_COLUMNS = 4
MOST_NAMED_NODES = 36


def case_study(
    graph: LoopedGraph,
    target: int | None,
    num_layers: int,
    scores: Mapping[str, Tensor],
    truth: Tensor | None = None,
    max_edges: int = 200,
) -> Figure:
    """Draw how different methods explain one target, as the paper's case study does.

    Every panel shows the same subgraph in the same layout: the nodes within `num_layers` hops of the target (against
    the direction of the edges) and all edges between them, self-loops included. Colour and width of an edge are its
    score, from 0 to the panel's highest. The target is orange; edges that truly explain it have a blue halo.

    A hub's neighbourhood can be too large to draw. Then its true edges and those that some method scores highest are
    kept, each with a shortest way to the target, and the title says how many edges are not shown.

    Args:
        graph: The graph.
        target: The explained node; None where the whole graph is explained, and then drawn.
        num_layers: Depth of the network.
        scores: For each method one score per edge of `graph.edge_index`, [num_edges]
            (`attree.attribution.Attribution.dense`).
        truth: The true edges as (source, destination), [2, m]; None if unknown.
        max_edges: Most edges to draw.
    """
    known = target is None or 0 <= target < graph.num_nodes
    expect(known, "target", f"a node id in [0, {graph.num_nodes}), or None", target)
    expect(len(scores) > 0, "scores", "scores of at least one method", dict(scores))
    expect(max_edges >= 1, "max_edges", "an integer >= 1", max_edges)
    for method, dense in scores.items():
        expect(dense.shape == (graph.num_edges,), f"scores[{method!r}]", f"of shape [{graph.num_edges}]", dense.shape)
    part = _neighbourhood(graph, target, num_layers, truth)
    values = {method: dense.detach().cpu().double().numpy()[part.edges] for method, dense in scores.items()}
    kept = part.choose(np.stack([strength_of(one) for one in values.values()]), max_edges)
    shown = part.only(kept)

    drawn = sketch(shown.source, shown.destination, len(shown.nodes))
    half_width, half_height = drawn.half_size
    rows, columns = grid_shape(len(scores), MOST_COLUMNS)
    panel = PANEL_INCHES if columns > 1 else SINGLE_PANEL_INCHES
    height = panel * half_height / half_width + 0.75
    figure = new_figure(panel * columns, height * rows + 0.7, _title(part, shown, num_layers))
    truth_nodes = np.zeros(len(shown.nodes), dtype=bool)
    truth_nodes[shown.source[shown.is_true]] = truth_nodes[shown.destination[shown.is_true]] = True
    named = len(shown.nodes) <= MOST_NAMED_NODES
    names = [str(node) if named or position == shown.target else "" for position, node in enumerate(shown.nodes)]
    for axes, (method, own) in zip(panel_grid(figure, len(scores), MOST_COLUMNS), values.items(), strict=True):
        picture_axes(axes, method_label(method), half_width, half_height)
        strength = strength_of(own)[kept]
        draw_edges(axes, drawn, strength, SCORE_COLORS(strength), shown.is_true)
        draw_nodes(axes, drawn, shown.target, truth_nodes, names)
        _color_bar(figure, axes, own)
    _legend(figure, has_target=target is not None, has_truth=bool(shown.is_true.any()))
    return figure


def _neighbourhood(graph: LoopedGraph, target: int | None, num_layers: int, truth: Tensor | None) -> Neighbourhood:
    if target is None:
        edges = torch.arange(graph.num_edges, device=graph.device)
    else:
        edges = subgraph_pairs(graph, torch.tensor([target], device=graph.device), num_layers).edges
    ends = graph.edge_index[:, edges].tolist()
    true_pairs = set() if truth is None else set(zip(*truth.tolist(), strict=True))
    is_true = np.array([pair in true_pairs for pair in zip(*ends, strict=True)], dtype=bool)
    return Neighbourhood.of(graph, edges.cpu().numpy(), is_true, target)


def _color_bar(figure: Figure, axes: Axes, scores: NDArray[np.float64]) -> None:
    finite = scores[np.isfinite(scores)]
    highest = float(finite.max(initial=0.0))
    scale = ScalarMappable(Normalize(0.0, highest if highest > 0 else 1.0), SCORE_COLORS)
    bar = figure.colorbar(scale, ax=axes, orientation="horizontal", fraction=0.04, pad=0.01, shrink=0.75)
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=4)
    bar.ax.tick_params(labelsize=SMALL_SIZE, colors=MUTED, labelcolor=INK, length=2)
    undefined = len(scores) - len(finite)
    bar.set_label(f"score ({undefined} undefined)" if undefined else "score", fontsize=SMALL_SIZE, color=INK)


def _title(part: Neighbourhood, shown: Neighbourhood, num_layers: int) -> str:
    whole = part.target is None
    name = "Whole graph" if whole else f"{num_layers}-hop neighbourhood of node {part.nodes[part.target]}"
    title = f"{name}: {count(len(part.nodes), 'node')}, {count(len(part.edges), 'edge')}"
    note = left_out(part, shown)
    return f"{title}\n({note})" if note else title


def _legend(figure: Figure, has_target: bool, has_truth: bool) -> None:
    entries = []
    if has_target:
        entries.append(
            Line2D([], [], linestyle="", marker="o", markersize=9, markerfacecolor=ORANGE, color=MUTED, label="target")
        )
    if has_truth:
        entries.append(Line2D([], [], linewidth=6, color=BLUE, alpha=0.45, label="true explanation"))
    if entries:
        figure.legend(handles=entries, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL_SIZE)
