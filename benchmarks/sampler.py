"""Sampled edges per second of the torch neighbour sampler on Arxiv, and what loader workers are worth on a CPU.

    python benchmarks/sampler.py [--root data] [--batches 60]

The symmetrised graph, OGB's training nodes in batches of 1,024, 15 and 10 neighbours. `sampler` draws and numbers the
nodes; `loader` also gathers the features of the sampled nodes, 128 numbers each. If torch-sparse or pyg-lib is
installed, PyG's NeighborLoader is beside them. Times are CPU time of the process, the best of three rounds, with one
thread, so that a busy machine disturbs them little.

With loader workers, what counts is the CPU time that is left to the process that trains. The table has it for 0, 1 and
2 workers, beside a training step of a 2-layer GAT with 64 hidden units. It also has the time if the workers gather the
features, which PyG does by default.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

from attree.data import Arxiv, TorchNeighborSampler, neighbor_loader
from attree.models import GAT
from timing import timed

NEIGHBORS, BATCH = [15, 10], 1024


def rate(name: str, edges_of: Callable[[], int], rounds: int = 3) -> None:
    """Print the sampled edges per second of CPU time."""
    results = [timed(edges_of, time.process_time) for _ in range(rounds)]
    print(f"{name}: {max(edges / seconds for seconds, edges in results) / 1e6:.2f} million edges per second")


def sampled(sampler: TorchNeighborSampler | NeighborSampler, batches: tuple[torch.Tensor, ...]) -> int:
    """Sample batches; return the number of edges."""
    return sum(sampler.sample_from_nodes(NodeSamplerInput(None, batch)).row.numel() for batch in batches)


def loaded(loader: NodeLoader, batches: int) -> int:
    """Load batches; return the number of edges."""
    return sum(batch.edge_index.size(1) for batch in islice(loader, batches))


def left_to_training(loader: NodeLoader, batches: int) -> float:
    """CPU milliseconds a batch in this process."""
    iterator = iter(loader)
    next(iterator)  # starts the workers
    began = time.process_time()
    for batch in islice(iterator, batches):
        batch.x.view(-1)[::1024].sum()  # memory of another process is fetched when it is read
    return 1e3 * (time.process_time() - began) / batches


def step(graph: Data, loader: NodeLoader, batches: int) -> float:
    """CPU milliseconds of a training step."""
    model, total = GAT(graph.num_features, 40, 64, 2), 0.0
    for batch in islice(loader, batches):
        began = time.process_time()
        F.cross_entropy(model(batch.x, batch.edge_index)[:BATCH], batch.y[:BATCH]).backward()
        total += time.process_time() - began
    return 1e3 * total / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="data folder")
    parser.add_argument("--batches", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graph = Arxiv(split="public", root=arguments.root).graph
    train = graph.train_mask.nonzero().view(-1)
    order = train[torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))]
    batches = order.split(BATCH)[: arguments.batches]
    has_pyg = typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE
    # With pyg-lib, attree's loader would take PyG's sampler, too.
    has_pyg_lib, typing.WITH_PYG_LIB = typing.WITH_PYG_LIB, False

    seconds, sampler = timed(lambda: TorchNeighborSampler(graph.edge_index, graph.num_nodes, NEIGHBORS))
    print(f"sort {graph.num_edges:,} edges once: {seconds:.2f} s")
    for name, replace in (("sampler", False), ("sampler, with replacement", True)):
        sampler.replace = replace
        rate(name, partial(sampled, sampler, batches))
    new_loader = partial(neighbor_loader, graph, train, NEIGHBORS, BATCH)
    rate("loader", lambda: loaded(new_loader(), len(batches)))
    if has_pyg:
        typing.WITH_PYG_LIB = has_pyg_lib
        rate("PyG's sampler", partial(sampled, NeighborSampler(graph, NEIGHBORS), batches))
        columns = Data(x=graph.x.contiguous(), edge_index=graph.edge_index, y=graph.y)
        pyg = NeighborLoader(columns, NEIGHBORS, input_nodes=train, batch_size=BATCH, shuffle=True)
        rate("PyG's loader", lambda: loaded(pyg, len(batches)))
        typing.WITH_PYG_LIB = False
    else:
        print("PyG's NeighborLoader: neither pyg-lib nor torch-sparse is installed")

    table = Table("workers", "ms a batch", "ms if the workers gather features", title="CPU time left to training")
    for workers in (0, 1, 2):
        times = []
        for in_worker in (False, True):
            loader = new_loader(num_workers=workers)
            loader.filter_per_worker = in_worker
            times.append(f"{left_to_training(loader, len(batches)):.1f}")
        table.add_row(str(workers), *times)
    console = Console()
    console.print(table)
    print(f"training step: {step(graph, new_loader(), 5):.0f} ms of CPU time")


if __name__ == "__main__":
    main()
