"""Draw a small directed graph, and a computation tree with all its messages.

Lines are computed here and not by Matplotlib's arrow patches: a few collections per panel draw many times faster than
hundreds of patches, and self-loops can point to the side where their node has room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection, LineCollection, PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from attree.attribution import ComputationTree
from attree.errors import expect
from attree.report.layout import centred, place, pushed_apart
from attree.report.style import BLUE, INK, MUTED, ORANGE, SCORE_COLORS, SMALL_SIZE, count, new_figure, plain_axes
from attree.tensors.arrays import Floats, Ints

MARGIN = 2.8
"""Space around the outermost nodes, in node radii, for self-loops and the larger target."""

_STEPS = 40


@dataclass(frozen=True)
class Sketch:
    """Layout of a graph, which can be drawn several times in different colours.

    Attributes:
        positions: Positions of the nodes, [n, 2].
        radius: Radius of a node.
        curves: Points along every edge, from the rim of its source to the rim of its destination.
    """

    positions: Floats
    radius: float
    curves: list[Floats]

    @property
    def half_size(self) -> tuple[float, float]:
        """Half the width and half the height of the drawing, self-loops included."""
        width, height = np.abs(self.positions).max(axis=0) + MARGIN * self.radius
        return max(float(width), 1.0), max(float(height), 0.35)


def sketch(sources: Ints, destinations: Ints, num_nodes: int) -> Sketch:
    """Lay out a small graph for a picture, so that drawn distances follow distances in the graph.

    Nodes have ids 0 to n - 1, and the graph need not be connected. They stand as on a page, see `attree.report.layout`,
    so the same graph always looks the same. Two edges in opposite directions bend apart. A self-loop points to the
    widest gap between the other edges of its node.
    """
    radius = float(np.clip(0.4 / np.sqrt(num_nodes), 0.022, 0.1))
    positions = _layout(sources, destinations, num_nodes, radius)
    pairs = set(zip(sources.tolist(), destinations.tolist(), strict=True))
    directions = _gap_directions(positions, pairs)
    curves = []
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        if source == destination:
            curves.append(_loop(positions[source], directions[source], radius))
        else:
            bend = 0.14 if (destination, source) in pairs else 0.0
            curves.append(_arc(positions[source], positions[destination], bend, radius))
    return Sketch(positions, radius, curves)


def _layout(sources: Ints, destinations: Ints, num_nodes: int, radius: float) -> Floats:
    """Return centred positions in [-1, 1] x [-1, 1], with the longer side horizontal and no nodes that overlap."""
    if num_nodes == 1:
        return np.zeros((1, 2))
    positions = centred(pushed_apart(place(sources, destinations, num_nodes), least=3.2 * radius))
    return positions / np.abs(positions).max()


def _gap_directions(positions: Floats, pairs: set[tuple[int, int]]) -> list[float]:
    """Return, for every node, the angle in the middle of the widest gap between the directions of its neighbours."""
    angles: list[list[float]] = [[] for _ in positions]
    for source, destination in pairs:
        if source != destination:
            step = positions[destination] - positions[source]
            angles[source].append(float(np.arctan2(step[1], step[0])))
            angles[destination].append(float(np.arctan2(-step[1], -step[0])))
    return [_widest_gap(np.sort(directions)) if directions else np.pi / 2 for directions in angles]


def _widest_gap(angles: Floats) -> float:
    gaps = np.diff(angles, append=angles[0] + 2 * np.pi)
    widest = int(gaps.argmax())
    return float(angles[widest] + gaps[widest] / 2)


def _arc(start: Floats, end: Floats, bend: float, radius: float) -> Floats:
    """Return the points of a curved line between two nodes, without the points inside the nodes' discs."""
    step = end - start
    control = (start + end) / 2 + 2 * bend * np.array([step[1], -step[0]])
    t = np.linspace(0, 1, _STEPS)[:, None]
    points = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
    outside = (_distance(points, start) > radius) & (_distance(points, end) > 1.1 * radius)
    if outside.sum() >= 2:
        return points[outside]
    return points[[_STEPS // 2 - 1, _STEPS // 2]]


def _loop(node: Floats, direction: float, radius: float) -> Floats:
    size = 0.8 * radius
    centre = node + (radius + 0.6 * size) * np.array([np.cos(direction), np.sin(direction)])
    turn = direction + np.pi + np.linspace(0, 2 * np.pi, _STEPS)
    points = centre + size * np.column_stack([np.cos(turn), np.sin(turn)])
    return points[_distance(points, node) > 1.1 * radius]


def _distance(points: Floats, point: Floats) -> Floats:
    return np.hypot(*(points - point).T)


def draw_edges(axes: Axes, layout: Sketch, strength: Floats, colors: Floats, marked: NDArray[np.bool_]) -> None:
    """Draw every edge as an arrow. Stronger edges are wider and lie above weaker ones.

    Args:
        axes: Where to draw.
        layout: Layout of the graph.
        strength: Strength of each edge between 0 and 1, [m].
        colors: Colour of each edge, [m, 4].
        marked: Which edges get a blue halo, [m].
    """
    order = np.argsort(strength, kind="stable")
    widths = (0.7 + 2.8 * strength) * min(1.0, 18 * layout.radius)
    sizes = layout.radius * (0.55 + 0.35 * strength) + 0.01
    shafts, heads = [], []
    for edge in order:
        shaft, head = _arrow(layout.curves[edge], sizes[edge])
        shafts.append(shaft)
        heads.append(head)
    halos = [layout.curves[edge] for edge in order if marked[edge]]
    halo_widths = [widths[edge] + 4.5 for edge in order if marked[edge]]
    axes.add_collection(
        LineCollection(halos, linewidths=halo_widths, colors=BLUE, alpha=0.45, capstyle="round", zorder=1)
    )
    axes.add_collection(LineCollection(shafts, linewidths=widths[order], colors=colors[order], zorder=2))
    axes.add_collection(PolyCollection(heads, facecolors=colors[order], edgecolors="none", zorder=3))


def _arrow(curve: Floats, size: float) -> tuple[Floats, Floats]:
    """Split a curve into a shaft and a triangular head of length `size`."""
    tip = curve[-1]
    far = _distance(curve, tip) > size
    last = int(np.flatnonzero(far)[-1]) if far.any() else 0
    along = tip - curve[last]
    along /= max(float(np.hypot(*along)), 1e-12)
    base = tip - size * along
    side = 0.45 * size * np.array([-along[1], along[0]])
    shaft = np.vstack([curve[: last + 1], base + 0.2 * size * along])
    return shaft, np.vstack([tip, base + side, base - side])


def draw_nodes(
    axes: Axes,
    layout: Sketch,
    is_target: NDArray[np.bool_],
    marked: NDArray[np.bool_],
    names: list[str],
    fills: Sequence[str] | None = None,
) -> None:
    """Draw every node as a disc with its name. Targets are orange; marked nodes have a blue rim.

    Args:
        axes: Where to draw.
        layout: Layout of the graph.
        is_target: Which nodes are explained, [n]; none if the whole graph is explained.
        marked: Which nodes get a blue rim, [n].
        names: Text on each node; may be empty.
        fills: Colours of the other nodes; white by default.
    """
    fill_colors = ["white"] * len(names) if fills is None else fills
    diameters = 2 * layout.radius * np.where(is_target, 1.25, 1.0)
    discs = EllipseCollection(
        diameters,
        diameters,
        np.zeros(len(diameters)),
        units="xy",
        offsets=layout.positions,
        offset_transform=axes.transData,
        facecolors=[ORANGE if is_root else fill for is_root, fill in zip(is_target, fill_colors, strict=True)],
        edgecolors=[BLUE if is_marked else MUTED for is_marked in marked],
        linewidths=np.where(marked, 1.6, 0.8),
        zorder=4,
    )
    axes.add_collection(discs)
    for name, (x, y) in zip(names, layout.positions.tolist(), strict=True):
        if name:
            lines = name.split("\n")
            size = min(SMALL_SIZE, 255 * layout.radius / max(2, *map(len, lines)))
            centred: dict[str, Any] = {"ha": "center", "va": "center_baseline" if len(lines) == 1 else "center"}
            axes.text(x, y, name, fontsize=size, color=INK, zorder=5, parse_math=False, **centred)


LEVEL_INCHES = 1.25
LEAF_INCHES = 0.36
MOST_NODES = 400
MOST_LEAVES_WITH_NUMBERS = 30
"""With more leaves, the attention numbers would overlap."""

HALOS = (BLUE, "#009E73", "#CC79A7", "#56B4E9")
"""Colours of marked edges; the attention and the target use others."""


def computation_tree(
    tree: ComputationTree, edge: int | None = None, max_nodes: int = MOST_NODES, repeated: int = len(HALOS)
) -> Figure:
    """Draw a target's computation tree, as the paper's Figure 2: the root on top, one level of edges per layer.

    Every occurrence of a node is drawn separately. Colour and width of a line show the attention that its layer gives
    to the edge; if there is room, the attention is also printed. By default, the repeated edges that carry most
    attention to the root are marked, each in its own colour. If `edge` is given, only that edge is marked, in blue: the
    paths from its marks up to the root are the flows whose attention GAtt adds up.

    If the tree was pruned when it was built, the title says how many nodes are not shown.

    Args:
        tree: The computation tree.
        edge: Id in `tree.graph.edge_index` of the edge to mark; None marks repeated edges.
        max_nodes: Size of the largest tree to draw. A larger tree must be built with `prune=True`.
        repeated: Number of repeated edges to mark.
    """
    size = len(tree)
    expect(size <= max_nodes, "tree", f"a computation tree of at most `max_nodes` = {max_nodes} nodes", size)
    expect(0 <= repeated <= len(HALOS), "repeated", f"an integer in [0, {len(HALOS)}]", repeated)
    if edge is not None:
        expect(0 <= edge < tree.graph.num_edges, "edge", f"an edge id in [0, {tree.graph.num_edges})", edge)
    marked = {edge: BLUE} if edge is not None else dict(zip(_repeated(tree)[:repeated], HALOS, strict=False))
    across, leaves = _places(tree)
    depth = np.array([node.depth for node in tree.nodes])
    width = float(np.clip(LEAF_INCHES * leaves, 5.0, 24.0))
    figure = new_figure(width + 0.8, LEVEL_INCHES * tree.num_layers + 1.5, _title(tree))
    axes = figure.add_subplot()
    _prepare(axes, tree.num_layers, leaves)
    spacing = 72 * width / leaves
    _draw_lines(axes, tree, across, depth, marked)
    if leaves <= MOST_LEAVES_WITH_NUMBERS:
        _write_attention(axes, tree, across, depth)
    _draw_nodes(axes, tree, across, depth, spacing)
    bar = figure.colorbar(
        ScalarMappable(Normalize(0.0, 1.0), SCORE_COLORS), ax=axes, fraction=0.03, pad=0.01, aspect=25
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL_SIZE, colors=MUTED, labelcolor=INK, length=2)
    bar.set_label("attention", fontsize=SMALL_SIZE, color=INK)
    handles = [
        Line2D([], [], linewidth=6, color=color, alpha=0.45, label=_occurrences(tree, marked_edge))
        for marked_edge, color in marked.items()
    ]
    if handles:
        columns = len(handles) if width > 2.0 * len(handles) else 2
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=SMALL_SIZE)
    return figure


def _repeated(tree: ComputationTree) -> list[int]:
    """Return the edges that occur more than once, sorted by the attention that they carry to the root."""
    product = np.ones(len(tree))
    carried: dict[int, list[float]] = {}
    for position, node in enumerate(tree.nodes):
        if node.parent >= 0:
            product[position] = product[node.parent] * np.nan_to_num(node.attention)
            carried.setdefault(node.edge, []).append(float(product[position]))
    totals = {edge: math.fsum(products) for edge, products in carried.items() if len(products) > 1}
    return sorted(totals, key=lambda edge: (-totals[edge], edge))


def _occurrences(tree: ComputationTree, edge: int) -> str:
    source, destination = tree.graph.edge_index[:, edge].tolist()
    times = sum(node.edge == edge for node in tree.nodes)
    qualifier = "" if len(tree) == tree.size else "shown "
    return f"{source} \N{RIGHTWARDS ARROW} {destination}, {qualifier}{count(times, 'time')}"


def _places(tree: ComputationTree) -> tuple[NDArray[np.float64], int]:
    """Return the horizontal position of each node, and the number of leaves.

    Leaves are placed at distance 1 in depth-first order, every other node midway between its first and last child.
    """
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
    # Nodes are listed breadth first, so in reverse order every child comes before its parent.
    for position in reversed(range(len(tree))):
        if children[position]:
            places[position] = (places[children[position][0]] + places[children[position][-1]]) / 2
    return places, leaves


def _prepare(axes: Axes, num_layers: int, leaves: int) -> None:
    """Prepare the axes for the figure of a computation tree: set the limits, and label the levels by layer."""
    plain_axes(axes)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([-level - 0.5 for level in range(num_layers)])
    axes.set_yticklabels([f"layer {num_layers - level}" for level in range(num_layers)], fontsize=SMALL_SIZE)
    axes.tick_params(length=0)
    axes.set_xlim(-0.7, leaves - 0.3)
    axes.set_ylim(-num_layers - 0.3, 0.3)


def _draw_lines(
    axes: Axes,
    tree: ComputationTree,
    across: NDArray[np.float64],
    depth: NDArray[np.int64],
    marked: Mapping[int, str],
) -> None:
    """Draw the messages of a computation tree as lines, coloured by attention, with halos behind marked edges."""
    steps = np.arange(1, len(tree))
    parents = np.array([node.parent for node in tree.nodes])[1:]
    attention = np.array([node.attention for node in tree.nodes])[1:]
    segments = np.stack(
        [np.column_stack([across[steps], -depth[steps]]), np.column_stack([across[parents], -depth[parents]])], axis=1
    )
    strength = np.nan_to_num(attention).clip(0.0, 1.0)
    order = np.argsort(strength, kind="stable")
    widths = 0.8 + 2.6 * strength
    edges = np.array([node.edge for node in tree.nodes])[1:]
    is_marked = np.isin(edges, list(marked))
    halos = [marked[edge] for edge in edges[is_marked].tolist()]
    axes.add_collection(
        LineCollection(list(segments[is_marked]), linewidths=widths[is_marked] + 6, colors=halos, alpha=0.45, zorder=1)
    )
    axes.add_collection(
        LineCollection(list(segments[order]), linewidths=widths[order], colors=SCORE_COLORS(strength[order]), zorder=2)
    )


def _write_attention(axes: Axes, tree: ComputationTree, across: NDArray[np.float64], depth: NDArray[np.int64]) -> None:
    """Print the attention on each line, near the lower end, where lines are farthest apart."""
    for position, node in enumerate(tree.nodes):
        if node.parent >= 0:
            x = 0.68 * across[position] + 0.32 * across[node.parent]
            axes.text(
                x,
                -depth[position] + 0.32,
                f"{node.attention:.2f}".lstrip("0"),
                fontsize=SMALL_SIZE - 1.5,
                color=INK,
                ha="center",
                va="center",
                zorder=2.5,
                bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            )


def _draw_nodes(
    axes: Axes, tree: ComputationTree, across: NDArray[np.float64], depth: NDArray[np.int64], spacing: float
) -> None:
    """Draw the nodes of a computation tree as discs, with node ids if there is room, and the target in orange."""
    is_target = np.array([node.node == tree.target for node in tree.nodes])
    texts = [str(number) for number in tree.graph.whole_ids([node.node for node in tree.nodes])]
    longest = max(map(len, texts))
    diameter = float(np.clip(0.85 * spacing, 3.0, 22.0))
    axes.scatter(
        across,
        -depth,
        s=diameter**2,
        c=[ORANGE if is_root else "white" for is_root in is_target],
        edgecolors=MUTED,
        linewidths=0.8,
        zorder=3,
    )
    text_size = min(SMALL_SIZE, 1.35 * diameter / longest)
    if text_size < 4:
        return
    for text, x, level in zip(texts, across, depth, strict=True):
        axes.text(x, -level, text, fontsize=text_size, color=INK, ha="center", va="center_baseline", zorder=4)


def _title(tree: ComputationTree) -> str:
    (target,) = tree.graph.whole_ids([tree.target])
    title = f"Computation tree of node {target}: {count(tree.size, 'node')} in {count(tree.num_layers, 'layer')}"
    hidden = tree.size - len(tree)
    return f"{title}\n({count(hidden, 'node')} with less attention not shown)" if hidden else title
