"""Cost curves: what training and explaining take as edges, targets and layers grow.

    python benchmarks/scaling.py [--largest 300000]

Directed random graphs with 10 edges a node, 128 features and 40 classes, a GAT with 64 hidden units, on the CPU. One
table for each quantity that grows, in Markdown. Times are the best of three, memory is what the named tensors take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from attree.attention import LoopedGraph, capture_attention
from attree.attribution import make_methods
from attree.data.infection import directed_erdos_renyi
from attree.data.neighbor_loader import neighbor_loader
from attree.models import GAT

DEGREE, FEATURES, CLASSES = 10, 128, 40


def best(function: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


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


def by_edges(sizes: list[int]) -> None:
    print("| edges | graph and features | full-batch step | sampled step (1,024 seeds, [15, 10]) | GAtt, 100 targets |")
    print("|---|---|---|---|---|")
    for size in sizes:
        graph, net = make(size)
        held = sum(value.numel() * value.element_size() for value in (graph.x, graph.edge_index, graph.y))
        full = best(partial(train_step, graph, net, size))
        batches = iter(neighbor_loader(graph, torch.arange(size), [15, 10], 1024))
        sampled = best(partial(sampled_step, batches, net))
        explained = explain(graph, net, 100)[0]
        print(
            f"| {graph.num_edges:,} | {held / 2**20:,.0f} MiB | {seconds(full)} | {seconds(sampled)} "
            f"| {seconds(explained)} |",
            flush=True,
        )


def explain(graph: Data, net: GAT, targets: int) -> tuple[float, int]:
    """Seconds from captured attention to scores, and how many scores there are."""
    looped = LoopedGraph(graph.edge_index, graph.x.size(0))
    attention = capture_attention(net, graph.x, graph.edge_index, graph=looped)
    method = make_methods(["gatt"])["gatt"]
    nodes = torch.randperm(graph.x.size(0), generator=torch.Generator().manual_seed(0))[:targets]
    scores = sum(part.scores.numel() for part in method.stream(attention, nodes))
    return best(lambda: [None for _ in method.stream(attention, nodes)]), scores


def by_targets(size: int, counts: list[int]) -> None:
    print(f"\n| targets ({size * DEGREE:,} edges, 2 layers) | GAtt | scores | of them per second |\n|---|---|---|---|")
    graph, net = make(size)
    for count in counts:
        taken, scores = explain(graph, net, count)
        print(f"| {count:,} | {seconds(taken)} | {scores:,} | {scores / taken / 1e6:.0f} million |", flush=True)


def by_layers(size: int, layers: list[int]) -> None:
    print(f"\n| layers ({size * DEGREE:,} edges, 10 targets) | GAtt | scores a target |\n|---|---|---|")
    for count in layers:
        graph, net = make(size, count)
        taken, scores = explain(graph, net, 10)
        print(f"| {count} | {seconds(taken)} | {scores / 10:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=300_000, help="nodes of the largest graph")
    largest = parser.parse_args().largest
    by_edges([size for size in (10_000, 30_000, 100_000, 300_000, 1_000_000) if size <= largest])
    by_targets(100_000, [10, 100, 1000, 10_000])
    by_layers(100_000, [1, 2, 3, 4])


if __name__ == "__main__":
    main()
