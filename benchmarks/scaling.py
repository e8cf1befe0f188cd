"""Cost curves: what training and explaining take as edges, targets and layers grow.

    python benchmarks/scaling.py [--largest 300000] [--figure scaling.png]

Directed random graphs with 10 edges a node, 128 features and 40 classes, a GAT with 64 hidden units, on the CPU. One
table for each quantity that grows, in Markdown, and all of them as one figure. Times are the best of three, memory is
what the named tensors take. `GAtt` is from captured attention to scores; `reduction` is one forward pass in float64 and
then every pair of the targets reduced under `weight`, as in every epoch but a run's first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from attree.attention import Graph, capture_attention
from attree.attribution import GAtt, subgraph_pairs
from attree.data import neighbor_loader
from attree.data.datasets.infection import directed_erdos_renyi
from attree.faithfulness import PROTOCOLS, ExactReducer
from attree.models import GAT
from attree.report.style import INK, LOOKS, MUTED, VERMILION, Look, new_figure, panel_grid, plain_axes
from attree.subject import Subject
from timing import best

DEGREE, FEATURES, CLASSES = 10, 128, 40

Curves = dict[str, list[tuple[int, float]]]
"""Seconds by what grows, of each thing that is timed."""


def make(num_nodes: int, num_layers: int = 2) -> tuple[Data, GAT]:
    rng = np.random.default_rng(0)
    edge_index = directed_erdos_renyi(num_nodes, DEGREE / num_nodes, rng)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_nodes, FEATURES, generator=generator)
    graph = Data(x=x, edge_index=edge_index, y=torch.randint(CLASSES, (num_nodes,), generator=generator))
    torch.manual_seed(0)
    return graph, GAT(FEATURES, CLASSES, 64, num_layers)


def train_step(graph: Data, net: GAT, nodes: int) -> None:
    net.train()
    F.cross_entropy(net(graph.x, graph.edge_index)[:nodes], graph.y[:nodes]).backward()


def sampled_step(batches: Iterator[Data], net: GAT) -> None:
    batch = next(batches)
    train_step(batch, net, batch.batch_size)


def seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.1f} s"


def explain(graph: Data, net: GAT, targets: int) -> tuple[float, float, int]:
    """Seconds from captured attention to GAtt's scores, seconds of a reduction, and how many scores there are."""
    net.eval()
    looped = Graph(graph.edge_index, graph.x.size(0))
    attention = capture_attention(net, graph.x, graph.edge_index, graph=looped)
    nodes = torch.randperm(graph.x.size(0), generator=torch.Generator().manual_seed(0))[:targets]
    scores = sum(part.scores.numel() for part in GAtt().stream(attention, nodes))
    scored, _ = best(lambda: [None for _ in GAtt().stream(attention, nodes)], 3)

    pairs, reducer = (
        subgraph_pairs(looped, nodes, net.num_layers),
        ExactReducer(Subject.of(net, graph.x, graph.edge_index, graph=looped)),
    )
    reducer.record().reduce(pairs, PROTOCOLS["weight"])

    def reduce() -> None:
        reducer.record().reduce(pairs, PROTOCOLS["weight"])

    return scored, best(reduce, 3)[0], scores


def by_edges(sizes: list[int]) -> Curves:
    print(
        "| edges | graph and features | full-batch step | sampled step | GAtt, 100 targets | reduction, 100 targets |"
    )
    print("|---|---|---|---|---|---|")
    curves: Curves = {"full-batch step": [], "sampled step": [], "GAtt": [], "reduction": []}
    for size in sizes:
        graph, net = make(size)
        held = sum(value.numel() * value.element_size() for value in (graph.x, graph.edge_index, graph.y))
        full, _ = best(partial(train_step, graph, net, size), 3)
        batches = iter(neighbor_loader(graph, torch.arange(size), [15, 10], 1024))
        sampled, _ = best(partial(sampled_step, batches, net), 3)
        times = (full, sampled, *explain(graph, net, 100)[:2])
        print(f"| {graph.num_edges:,} | {held / 2**20:,.0f} MiB | {' | '.join(map(seconds, times))} |", flush=True)
        add(curves, graph.num_edges, times)
    return curves


def by_targets(size: int, counts: list[int]) -> Curves:
    print(f"\n| targets ({size * DEGREE:,} edges, 2 layers) | scores | GAtt | reduction |\n|---|---|---|---|")
    curves: Curves = {"GAtt": [], "reduction": []}
    graph, net = make(size)
    for count in counts:
        *times, scores = explain(graph, net, count)
        print(f"| {count:,} | {scores:,} | {' | '.join(map(seconds, times))} |", flush=True)
        add(curves, count, times)
    return curves


def by_layers(size: int, layers: list[int]) -> Curves:
    print(f"\n| layers ({size * DEGREE:,} edges, 10 targets) | scores a target | GAtt | reduction |\n|---|---|---|---|")
    curves: Curves = {"GAtt": [], "reduction": []}
    for count in layers:
        graph, net = make(size, count)
        *times, scores = explain(graph, net, 10)
        print(f"| {count} | {scores / 10:,.0f} | {' | '.join(map(seconds, times))} |", flush=True)
        add(curves, count, times)
    return curves


def add(curves: Curves, at: int, times: Iterable[float]) -> None:
    for curve, value in zip(curves.values(), times, strict=True):
        curve.append((at, value))


def draw(panels: dict[str, Curves], path: Path) -> None:
    """One panel for each quantity that grows, with logarithmic axes."""
    looks = {
        "full-batch step": Look(INK, "s"),
        "sampled step": Look(MUTED, "^"),
        "GAtt": LOOKS["gatt"],
        "reduction": Look(VERMILION, "D"),
    }
    figure = new_figure(10.5, 3.3)
    axes = panel_grid(figure, len(panels), 3)
    for panel, (grows, curves) in zip(axes, panels.items(), strict=True):
        for name, points in curves.items():
            look = looks[name]
            panel.plot(*zip(*points, strict=True), color=look.color, marker=look.marker, markersize=5, label=name)
        panel.set_yscale("log")
        if grows != "layers":
            panel.set_xscale("log")
        else:
            panel.set_xticks([at for at, _ in curves["GAtt"]])
        plain_axes(panel, grows, "seconds" if panel is axes[0] else "")
        panel.sharey(axes[0])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=300_000, help="nodes of the largest graph (%(default)s)")
    parser.add_argument("--figure", type=Path, help="also draw the curves into this file")
    options = parser.parse_args()
    panels = {
        "edges": by_edges([size for size in (10_000, 30_000, 100_000, 300_000, 1_000_000) if size <= options.largest]),
        "targets (1 million edges)": by_targets(100_000, [10, 100, 1000, 10_000]),
        "layers": by_layers(100_000, [1, 2, 3, 4]),
    }
    if options.figure is not None:
        draw(panels, options.figure)


if __name__ == "__main__":
    main()
