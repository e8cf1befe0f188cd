"""Sampled edges per second of the torch neighbour sampler on Arxiv.

    python benchmarks/sampler.py [--root data] [--batches 60]

The symmetrised graph, OGB's training nodes in batches of 1,024, 15 and 10 neighbours. `sampler` draws and numbers the
nodes; `loader` also gathers the features of the sampled nodes, 128 numbers each.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

import torch
from torch_geometric.sampler import NodeSamplerInput

from attree.data import Arxiv, TorchNeighborSampler, neighbor_loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="data folder")
    parser.add_argument("--batches", type=int, default=60)
    arguments = parser.parse_args()
    graph = Arxiv(split="public", root=arguments.root).graph
    train = graph.train_mask.nonzero().view(-1)
    order = train[torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))]
    batches = order.split(1024)[: arguments.batches]

    began = time.perf_counter()
    sampler = TorchNeighborSampler(graph.edge_index, graph.num_nodes, [15, 10])
    print(f"sort {graph.num_edges:,} edges once: {time.perf_counter() - began:.2f} s")
    for name, replace in (("sampler", False), ("sampler, with replacement", True)):
        sampler.replace = replace
        best = 0.0
        for _ in range(3):
            began = time.perf_counter()
            edges = sum(sampler.sample_from_nodes(NodeSamplerInput(None, batch)).row.numel() for batch in batches)
            seconds = time.perf_counter() - began
            best = max(best, edges / seconds)
        print(f"{name}: {best / 1e6:.2f} million edges per second, {edges / len(batches):,.0f} edges a batch")
    loader = neighbor_loader(graph, train, [15, 10], 1024)
    began = time.perf_counter()
    edges = sum(batch.edge_index.size(1) for batch in islice(loader, len(batches)))
    print(f"loader: {edges / (time.perf_counter() - began) / 1e6:.2f} million edges per second")


if __name__ == "__main__":
    main()
