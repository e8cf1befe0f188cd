"""CPU time of the statistics of an evaluation in one process, and in each of several that share them.

    python benchmarks/shared_statistics.py [--pairs 9000000] [--processes 2] [--rounds 3]
    python benchmarks/shared_statistics.py --root data

The first command draws scores and effects at random, nine tenths of them exactly 0. Five methods are compared under one
protocol. The second takes those of 100 nodes of Arxiv, about 9 million pairs, explained by a 2-layer GAT that is not
trained, under both default protocols. That takes minutes and is not timed.

Printed is the CPU time of each process (its threads together), the best of the rounds, and its share of the time of one
process. As in a fit, the rankings of scores that do not change, those of Uniform and Random, are kept from the second
round on. The metrics must be equal to the last digit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import attree
from attree.attention import Graph
from attree.attribution import Pairs
from attree.data import Arxiv
from attree.evaluation.config import Shard
from attree.evaluation.statistics import PooledStatistics
from attree.faithfulness import Reduction
from attree.models import GAT

METHODS, PAIRS_OF_TARGET, TARGETS = ("gatt", "avgatt", "uniform", "random", "occlusion"), 1000, 100
COLUMNS = "columns.pt"


@dataclass(frozen=True)
class Columns:
    """Scores of pairs by method and effects (dPC, dNE, changed) by protocol; pairs of target k: `ptr[k]:ptr[k + 1]`."""

    ptr: Tensor
    scores: dict[str, Tensor]
    effects: dict[str, list[Tensor]]

    def of(self, shard: Shard) -> Columns:
        """The share of a process."""
        targets = shard.of(torch.arange(len(self.ptr) - 1))
        ptr = self.ptr[int(targets[0]) : int(targets[-1]) + 2]
        pairs = slice(int(ptr[0]), int(ptr[-1]))
        return Columns(
            ptr - ptr[0],
            {name: values[pairs].clone() for name, values in self.scores.items()},
            {name: [values[pairs].clone() for values in effects] for name, effects in self.effects.items()},
        )


def drawn(number: int) -> Columns:
    """Columns drawn at random, of so many pairs."""
    generator = torch.Generator().manual_seed(0)

    def column(name: str = "") -> Tensor:
        values = torch.rand(number, generator=generator, dtype=torch.float64)
        return values if name == "random" else values * (torch.rand(number, generator=generator) > 0.9)

    effects = column()
    scores = {name: column(name) for name in METHODS}
    return Columns(
        torch.arange(0, number + 1, PAIRS_OF_TARGET), scores, {"removal": [effects, column(), effects > 0.999]}
    )


def of_arxiv(root: str) -> Columns:
    """Columns of an evaluation of Arxiv."""
    graph = Arxiv(root=root).graph
    torch.manual_seed(0)
    model = GAT(graph.num_features, 40, 64, 2).eval()
    evaluation = attree.evaluate(model, graph, methods=METHODS, num_targets=TARGETS, random_draws=1)
    effects = {name: [r.delta_pc, r.delta_ne, r.changed] for name, r in evaluation.reductions.items()}
    return Columns(evaluation.pairs.ptr, dict(evaluation.pair_scores), effects)


def seconds(columns: Columns, rounds: int, shard: Shard) -> tuple[float, dict[str, str]]:
    """CPU seconds of the statistics in this process, and the metrics."""
    num_targets, columns = len(columns.ptr) - 1, columns.of(shard)
    targets = torch.arange(len(columns.ptr) - 1)
    edges = torch.zeros(int(columns.ptr[-1]), dtype=torch.int64)
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64), len(targets))
    pairs = Pairs(targets, columns.ptr, edges, edges.bool(), graph, None)
    reductions = {name: Reduction(pairs, *effects) for name, effects in columns.effects.items()}
    times, metrics = [], dict[str, Tensor]()
    statistics = PooledStatistics({name: [name] for name in METHODS}, ("uniform", "random"), shard.world_size > 1)
    for _ in range(rounds):
        began = time.process_time()
        metrics = statistics.metrics(columns.scores, reductions, num_targets)
        times.append(time.process_time() - began)
    return min(times), {name: float(value).hex() for name, value in metrics.items()}


def in_process(rank: int, processes: int, rounds: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    columns = torch.load(folder / COLUMNS, weights_only=False)
    torch.save(seconds(columns, rounds, Shard(rank, processes)), folder / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9_000_000, help="(target, edge) pairs (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="times to compute them (default: %(default)s)")
    parser.add_argument("--root", help="data folder; then, scores and effects are those of Arxiv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = options.pairs // PAIRS_OF_TARGET * PAIRS_OF_TARGET
    columns = drawn(whole) if options.root is None else of_arxiv(options.root)
    alone, metrics = seconds(columns, options.rounds, Shard())
    console = Console()
    console.print(f"{int(columns.ptr[-1]):,} pairs: {alone:.2f} s in one process")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save(columns, folder / COLUMNS)
        spawn(in_process, (options.processes, options.rounds, folder), nprocs=options.processes)
        for rank in range(options.processes):
            shared, values = torch.load(folder / f"{rank}.pt", weights_only=False)
            differing = [name for name, value in values.items() if value != metrics[name]]
            equal = "equal to the last digit" if not differing else f"{len(differing)} metrics differ: {differing[:3]}"
            console.print(f"process {rank + 1}: {shared:.2f} s, {shared / alone:.2f} of one process; {equal}")


if __name__ == "__main__":
    main()
