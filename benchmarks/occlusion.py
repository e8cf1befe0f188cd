"""Occlusion of all nodes: what the exact effect of every edge on every target costs, in forward passes.

    python benchmarks/occlusion.py [--data data] [--graphs cora,pubmed,arxiv] [--rounds 5]

A GAT of two layers, 64 hidden units wide (Arxiv: 16). Cora and PubMed: all nodes; Arxiv: 1,000 random ones, on the real
graph with random features and weights, as neither changes the cost. A round is one forward pass of the network and one
call of `Occlusion().attribute`, with all that it takes from model and graph on (pairs, one recorded pass, checks,
plan, reductions); the ratio is taken within rounds: its median and quartiles. Memory is the growth of the process while
it works for the first time, results included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import attree
from arxiv import NUM_NODES, load
from attree.data import Planetoid
from attree.models import GAT
from attree.subject import Subject
from reduction import growth
from timing import Race


def case(name: str, root: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, its features and edges, and the targets."""
    if name == "arxiv":
        model, x, edge_index = load(root, num_layers=2)
        return model, x, edge_index, torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(0))[:1000]
    graph = Planetoid("Cora" if name == "cora" else "PubMed", root=root).graph
    torch.manual_seed(0)
    model = GAT(graph.num_features, int(graph.y.max()) + 1, 64).eval()
    return model, graph.x, graph.edge_index, torch.arange(graph.num_nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--graphs", default="cora,pubmed,arxiv")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(
        "| graph | targets | scores | seconds | forward passes | memory |\n|---|---:|---:|---:|---:|---:|", flush=True
    )
    for name in arguments.graphs.split(","):
        model, x, edge_index, targets = case(name, arguments.data)
        subject = Subject.of(model, x, edge_index)
        _ = subject.attention, subject.head

        def forward(model: nn.Module = model, x: Tensor = x, edge_index: Tensor = edge_index) -> Tensor:
            with torch.no_grad():
                return model(x, edge_index)

        def occlusion(subject: Subject = subject, targets: Tensor = targets) -> Tensor:
            return attree.Occlusion().attribute(subject.fresh(), targets).scores

        with growth() as memory:
            occlusion()
        contestants: dict[str, Callable[[], Tensor]] = {"forward": forward, "occlusion": occlusion}
        race = Race(contestants, arguments.rounds)
        passes, scores = race.ratio("occlusion", "forward"), race.results["occlusion"].numel()
        seconds = race.time("occlusion").median
        cells = (name, f"{targets.numel():,}", f"{scores:,}", f"{seconds:.2f}", f"{passes:.1f}")
        print(f"| {' | '.join(cells)} | {memory.mebibytes:,.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
