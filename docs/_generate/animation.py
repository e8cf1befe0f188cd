"""Draw the README's animated picture: each edge is taken out of a graph once, and the network predicts again.

    python docs/_generate/animation.py logs/infection/version_0 docs/images/taking_edges_out.gif

What the network predicts is computed by deleting the edge from the data, not by attree.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from torch import Tensor
from torch_geometric.utils import k_hop_subgraph

import attree
from attree.report.graph_drawing import Sketch, draw_edges, draw_nodes, sketch
from attree.report.style import BLUE, INK, MUTED, ORANGE, SCORE_COLORS, new_figure
from attree.runs.load_run import FinishedRun

HOLD = 6
"""Number of pictures that show the first and the last state."""


class Scene(NamedTuple):
    """A target and what happens to its prediction without each edge.

    Attributes:
        position: Position of the target among the nodes.
        nodes: Ids of the drawn nodes.
        ends: Ids of source and destination of the drawn edges, the weakest first, [2, m].
        before: Class probabilities with all edges.
        after: Class probabilities without each edge, [m, classes].
    """

    position: int
    nodes: Tensor
    ends: Tensor
    before: Tensor
    after: Tensor

    @property
    def effects(self) -> Tensor:
        """Decline of the predicted class's probability without each edge, [m]."""
        return self.before.max() - self.after[:, self.before.argmax()]


def scene_of(run: FinishedRun, target: int) -> Scene:
    """Predict for a target with all edges, and without each of its neighbourhood's."""
    graph = run.data.graph
    nodes, _, position, within = k_hop_subgraph(target, run.net.num_layers, graph.edge_index)

    def predicted(without: int | None) -> Tensor:
        keep = torch.arange(graph.num_edges) != (-1 if without is None else without)
        with torch.no_grad():
            return run.net.eval()(graph.x, graph.edge_index[:, keep])[target].softmax(dim=-1)

    edges = within.nonzero().view(-1)
    scene = Scene(
        int(position),
        nodes,
        graph.edge_index[:, edges],
        predicted(None),
        torch.stack([predicted(int(edge)) for edge in edges]),
    )
    order = scene.effects.argsort(stable=True)
    return scene._replace(ends=scene.ends[:, order], after=scene.after[order])


def choose(run: FinishedRun, targets: Tensor) -> tuple[int, Scene]:
    """Return a target with a small picture, and with edges of large, middle and no effect."""
    scenes = {}
    for target in targets.tolist():
        nodes, _, _, within = k_hop_subgraph(target, run.net.num_layers, run.data.graph.edge_index)
        if 8 <= nodes.numel() <= 11 and 8 <= int(within.sum()) <= 11:
            scenes[target] = scene_of(run, target)

    def variety(target: int) -> float:
        return float(scenes[target].effects.clamp(min=0).std())

    best = max(scenes, key=variety)
    return best, scenes[best]


def draw(run: FinishedRun, path: Path) -> None:
    """Write the animated picture."""
    target, scene = choose(run, run.data.truth.targets[:200])
    number = {int(node): place for place, node in enumerate(scene.nodes)}
    sources, destinations = ([number[int(end)] for end in ends] for ends in scene.ends)
    layout = sketch(np.array(sources), np.array(destinations), len(scene.nodes))
    names = list(run.data.class_names)
    figure = new_figure(7.2, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
    num_edges = scene.ends.shape[1]
    # -1 is the whole graph, num_edges the result.
    states = [-1] * HOLD + [state for edge in range(num_edges) for state in (edge, edge)] + [num_edges] * 2 * HOLD

    def show(frame: int) -> None:
        state = states[frame]
        is_edge = 0 <= state < num_edges
        _draw_graph(left, layout, scene, state)
        _draw_bars(right, scene.after[state] if is_edge else scene.before, int(scene.before.argmax()), names)
        title = f"Why '{names[int(scene.before.argmax())]}' for node {target}?"
        if is_edge:
            source, destination = scene.ends[:, state].tolist()
            title = f"Without edge {source} -> {destination} ..."
        elif state == num_edges:
            title = "... because of the dark edges (exact effects)"
        left.set_title(title, fontsize=10, color=INK, loc="left")

    animation = FuncAnimation(figure, show, frames=len(states), init_func=list)
    animation.save(path, writer=PillowWriter(fps=3), dpi=100)


def _draw_graph(axes: Axes, layout: Sketch, scene: Scene, state: int) -> None:
    """Draw the graph: edges up to `state` have the colour of their effect, the edge `state` itself is missing."""
    axes.clear()
    axes.set_axis_off()
    axes.set_aspect("equal")
    half_width, half_height = layout.half_size
    axes.set(xlim=(-half_width, half_width), ylim=(-half_height, half_height))
    share = (scene.effects.clamp(min=0) / scene.effects.max()).numpy()
    strength = np.where(np.arange(len(share)) < state, share, 0.0)
    colors = SCORE_COLORS(strength)
    if 0 <= state < len(share):
        colors[state] = 0.0  # transparent
    unmarked = np.zeros(len(scene.nodes), dtype=bool)
    draw_edges(axes, layout, strength, colors, np.zeros(len(share), dtype=bool))
    is_target = np.arange(len(scene.nodes)) == scene.position
    draw_nodes(axes, layout, is_target, unmarked, [str(int(node)) for node in scene.nodes])


def _draw_bars(axes: Axes, probabilities: Tensor, first: int, names: list[str]) -> None:
    """Draw the predicted probabilities; the class that is predicted with all edges is orange."""
    axes.clear()
    values = probabilities.tolist()
    colors = [ORANGE if place == first else BLUE for place in range(len(values))]
    axes.barh(range(len(values)), values, color=colors)
    axes.set_yticks(range(len(values)), names, fontsize=9, color=INK)
    axes.set(xlim=(-0.01, 1.2), xticks=[])
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    for place, value in enumerate(values):
        axes.text(value + 0.02, place, f"{value:.0%}", va="center", fontsize=9, color=INK)
    axes.set_title("... the network predicts", fontsize=10, color=MUTED, loc="left")


if __name__ == "__main__":
    draw(attree.load_run(sys.argv[1]), Path(sys.argv[2]))
