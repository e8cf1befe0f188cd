"""CPU time of the statistics of an evaluation in one process, and in each of several that share them.

    python benchmarks/shared_statistics.py [--pairs 9000000] [--processes 2] [--rounds 3]

Scores and effects are drawn at random: like those of Arxiv, nine tenths are exactly 0. Five methods are compared under
one protocol. Printed is the CPU time of each process (its threads together), the best of the rounds, and its share of
the time of one process. As in a fit, the rankings of scores that do not change, those of Uniform and Random, are kept
from the second round on. The metrics must be equal to the last digit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from attree.attention import Graph
from attree.attribution import Pairs
from attree.evaluation.config import Shard
from attree.evaluation.statistics import PooledStatistics
from attree.faithfulness import Reduction

METHODS, PAIRS_OF_TARGET = ("gatt", "avgatt", "uniform", "random", "occlusion"), 1000


def drawn(number: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Scores by method, and effects, of so many pairs."""
    generator = torch.Generator().manual_seed(0)

    def column(name: str = "") -> Tensor:
        values = torch.rand(number, generator=generator, dtype=torch.float64)
        return values if name == "random" else values * (torch.rand(number, generator=generator) > 0.9)

    effects = column()
    return {name: column(name) for name in METHODS}, [effects, column(), effects > 0.999]


def seconds(number: int, rounds: int, shard: Shard) -> tuple[float, dict[str, str]]:
    """CPU seconds of the statistics in this process, and the metrics."""
    scores, effects = drawn(number)
    targets = shard.of(torch.arange(number // PAIRS_OF_TARGET))
    first, last = int(targets[0]) * PAIRS_OF_TARGET, (int(targets[-1]) + 1) * PAIRS_OF_TARGET
    scores = {name: values[first:last].clone() for name, values in scores.items()}
    effects = [values[first:last].clone() for values in effects]
    ptr = torch.arange(0, last - first + 1, PAIRS_OF_TARGET)
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64), int(targets[-1]) + 1)
    edges = torch.zeros(last - first, dtype=torch.int64)
    pairs = Pairs(targets, ptr, edges, edges.bool(), graph, None)
    reductions = {"removal": Reduction(pairs, *effects)}
    columns, times, metrics = {name: [name] for name in METHODS}, [], dict[str, Tensor]()
    statistics = PooledStatistics(columns, ("uniform", "random"), shard.world_size > 1)
    for _ in range(rounds):
        began = time.process_time()
        metrics = statistics.metrics(scores, reductions, number // PAIRS_OF_TARGET)
        times.append(time.process_time() - began)
    return min(times), {name: float(value).hex() for name, value in metrics.items()}


def in_process(rank: int, processes: int, number: int, rounds: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    torch.save(seconds(number, rounds, Shard(rank, processes)), folder / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9_000_000, help="(target, edge) pairs (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="times to compute them (default: %(default)s)")
    options = parser.parse_args()
    number = options.pairs // PAIRS_OF_TARGET * PAIRS_OF_TARGET
    torch.set_num_threads(1)
    alone, metrics = seconds(number, options.rounds, Shard())
    console = Console()
    console.print(f"{number:,} pairs: {alone:.2f} s in one process")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spawn(in_process, (options.processes, number, options.rounds, folder), nprocs=options.processes)
        for rank in range(options.processes):
            shared, values = torch.load(folder / f"{rank}.pt", weights_only=False)
            differing = [name for name, value in values.items() if value != metrics[name]]
            equal = "equal to the last digit" if not differing else f"{len(differing)} metrics differ: {differing[:3]}"
            console.print(f"process {rank + 1}: {shared:.2f} s, {shared / alone:.2f} of one process; {equal}")


if __name__ == "__main__":
    main()
