"""Computation tree: everything a network computes for one target, with the attention on every step."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attree.attribution import ComputationTree
from attree.errors import expect
from attree.report.style import BLUE, INK, MUTED, ORANGE, SCORE_COLORS, SMALL_SIZE, count, new_figure, plain_axes

LEVEL_INCHES = 1.25
LEAF_INCHES = 0.36
MOST_NODES = 400


def computation_tree(tree: ComputationTree, edge: int | None = None, max_nodes: int = MOST_NODES) -> Figure:
    """Draw a target's computation tree, as the paper's Figure 2: the root on top, one level of edges per layer.

    Every occurrence of a node is drawn on its own. Colour and width of a step are the attention that its layer gives
    to the edge. One edge can be marked in blue: the ways from its marks up to the root are the flows whose attention
    GAtt adds up.

    Args:
        tree: The computation tree.
        edge: Id in `tree.graph.edge_index` of an edge to mark wherever it occurs; None marks none.
        max_nodes: Largest tree to draw.
    """
    size = len(tree)
    expect(size <= max_nodes, "tree", f"a computation tree of at most `max_nodes` = {max_nodes} nodes", size)
    if edge is not None:
        expect(0 <= edge < tree.graph.num_edges, "edge", f"an edge id in [0, {tree.graph.num_edges})", edge)
    across, leaves = _places(tree)
    depth = np.array([node.depth for node in tree.nodes])
    width = float(np.clip(LEAF_INCHES * leaves, 5.0, 24.0))
    figure = new_figure(width + 0.8, LEVEL_INCHES * tree.num_layers + 1.3, _title(tree, edge))
    axes = figure.add_subplot()
    _prepare(axes, tree.num_layers, leaves)
    spacing = 72 * width / leaves
    _draw_steps(axes, tree, across, depth, edge)
    _draw_nodes(axes, tree, across, depth, spacing)
    bar = figure.colorbar(
        ScalarMappable(Normalize(0.0, 1.0), SCORE_COLORS), ax=axes, fraction=0.03, pad=0.01, aspect=25
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL_SIZE, colors=MUTED, labelcolor=INK, length=2)
    bar.set_label("attention", fontsize=SMALL_SIZE, color=INK)
    return figure


def _places(tree: ComputationTree) -> tuple[NDArray[np.float64], int]:
    """Where each occurrence stands from left to right: leaves one apart in depth-first order, others amid their own."""
    children: list[list[int]] = [[] for _ in tree.nodes]
    for position, node in enumerate(tree.nodes):
        if node.parent >= 0:
            children[node.parent].append(position)
    places = np.zeros(len(tree))
    leaves = 0
    stack = [0]
    while stack:
        position = stack.pop()
        if not children[position]:
            places[position] = leaves
            leaves += 1
        stack.extend(reversed(children[position]))
    # Nodes are listed breadth first, so backwards every child comes before its parent.
    for position in reversed(range(len(tree))):
        if children[position]:
            places[position] = (places[children[position][0]] + places[children[position][-1]]) / 2
    return places, leaves


def _prepare(axes: Axes, num_layers: int, leaves: int) -> None:
    plain_axes(axes)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([-level - 0.5 for level in range(num_layers)])
    axes.set_yticklabels([f"layer {num_layers - level}" for level in range(num_layers)], fontsize=SMALL_SIZE)
    axes.tick_params(length=0)
    axes.set_xlim(-0.7, leaves - 0.3)
    axes.set_ylim(-num_layers - 0.3, 0.3)


def _draw_steps(
    axes: Axes, tree: ComputationTree, across: NDArray[np.float64], depth: NDArray[np.int64], edge: int | None
) -> None:
    steps = np.arange(1, len(tree))
    parents = np.array([node.parent for node in tree.nodes])[1:]
    attention = np.array([node.attention for node in tree.nodes])[1:]
    segments = np.stack(
        [np.column_stack([across[steps], -depth[steps]]), np.column_stack([across[parents], -depth[parents]])], axis=1
    )
    strength = np.nan_to_num(attention).clip(0.0, 1.0)
    order = np.argsort(strength, kind="stable")
    widths = 0.8 + 2.6 * strength
    if edge is not None:
        marked = np.array([node.edge == edge for node in tree.nodes])[1:]
        axes.add_collection(
            LineCollection(list(segments[marked]), linewidths=widths[marked] + 6, colors=BLUE, alpha=0.45, zorder=1)
        )
    axes.add_collection(
        LineCollection(list(segments[order]), linewidths=widths[order], colors=SCORE_COLORS(strength[order]), zorder=2)
    )


def _draw_nodes(
    axes: Axes, tree: ComputationTree, across: NDArray[np.float64], depth: NDArray[np.int64], spacing: float
) -> None:
    is_target = np.array([node.node == tree.target for node in tree.nodes])
    longest = max(len(str(node.node)) for node in tree.nodes)
    diameter = float(np.clip(0.85 * spacing, 3.0, 22.0))
    axes.scatter(
        across,
        -depth,
        s=diameter**2,
        c=[ORANGE if is_one else "white" for is_one in is_target],
        edgecolors=MUTED,
        linewidths=0.8,
        zorder=3,
    )
    text_size = min(SMALL_SIZE, 1.35 * diameter / longest)
    if text_size < 4:
        return
    for node, x, level in zip(tree.nodes, across, depth, strict=True):
        axes.text(x, -level, str(node.node), fontsize=text_size, color=INK, ha="center", va="center_baseline", zorder=4)


def _title(tree: ComputationTree, edge: int | None) -> str:
    title = f"Computation tree of node {tree.target}: {count(len(tree), 'node')} in {count(tree.num_layers, 'layer')}"
    if edge is None:
        return title
    source, destination = tree.graph.edge_index[:, edge].tolist()
    times = sum(node.edge == edge for node in tree.nodes)
    return f"{title}\nedge {source} \N{RIGHTWARDS ARROW} {destination} (blue) occurs {count(times, 'time')}"
