"""GAtt on ogbn-arxiv, 169,343 papers with 2,315,598 citations both ways: time and memory.

    python benchmarks/arxiv.py [--data data] [--targets 10000] [--deep-targets 100]

1. 10,000 random targets, 2 layers, one result of about 49 million scores.
2. 100 random targets, 3 layers, about 14 million scores.
3. All nodes, 2 layers, streamed: each part is read and dropped, so memory stays flat.
4. 1,000 random targets, 2 layers, without a forward pass over the full graph: on unions of their neighbourhoods.

Memory is the peak of the resident memory above the graph with its attention loaded, each case in a fresh process.
The network is a GAT as it is initialised, and the features are as wide as the real ones but random: neither changes
the work.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch_geometric.utils import to_undirected

from attree.attention import Attention, capture_attention
from attree.attribution import GAtt, stream_subgraphs
from attree.io.terminal import track
from attree.models import GAT

NUM_NODES = 169_343
NUM_FEATURES = 128


class Outcome(NamedTuple):
    """What one case took."""

    scores: int
    seconds: float
    memory: float
    note: str = ""


def read_edges(root: str) -> Tensor:
    """The citations, both ways."""
    table = pd.read_csv(Path(root, "ogb", "ogbn_arxiv", "raw", "edge.csv.gz"), header=None)
    return to_undirected(torch.from_numpy(table.to_numpy().T.copy()), num_nodes=NUM_NODES)


def load(root: str, num_layers: int) -> tuple[GAT, Tensor, Tensor]:
    """A model, node features and edges."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = GAT(NUM_FEATURES, 40, hidden_channels=16, num_layers=num_layers).eval()
    return model, torch.randn(NUM_NODES, NUM_FEATURES, generator=generator), read_edges(root)


def attend(root: str, num_layers: int) -> Attention:
    """The attention of a network on the full graph, with the graph's rows prepared."""
    attention = capture_attention(*load(root, num_layers))
    GAtt().attribute(attention, 0)
    return attention


def random_nodes(count: int) -> Tensor:
    return torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(0))[:count]


class Memory:
    """Watches, from its making on, how far the resident memory of this process rises (Linux)."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed must not hide what will be taken
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
        self.start = self._read("VmRSS")

    def now(self) -> float:
        """GiB above the start."""
        return self._read("VmRSS") - self.start

    def peak(self) -> float:
        """Most GiB above the start so far."""
        return self._read("VmHWM") - self.start

    @staticmethod
    def _read(name: str) -> float:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20


def at_once(root: str, num_layers: int, count: int) -> Outcome:
    attention, targets = attend(root, num_layers), random_nodes(count)
    memory = Memory()
    start = time.perf_counter()
    result = GAtt().attribute(attention, targets)
    seconds = time.perf_counter() - start
    return Outcome(result.scores.numel(), seconds, memory.peak())


def streamed(root: str, num_layers: int) -> Outcome:
    attention = attend(root, num_layers)
    memory = Memory()
    start = time.perf_counter()
    scores, held = 0, []
    for part in track(GAtt().stream(attention), NUM_NODES, "All nodes, 2 layers"):
        scores += part.scores.numel()
        held.append(memory.now())
    seconds = time.perf_counter() - start
    first, last = (max(half) for half in (held[: len(held) // 2], held[len(held) // 2 :]))
    note = f"{len(held)} parts; at most {first:.2f} GiB above the graph in the first half, {last:.2f} GiB in the second"
    return Outcome(scores, seconds, memory.peak(), note)


def by_neighbourhoods(root: str, num_layers: int, count: int) -> Outcome:
    model, x, edge_index = load(root, num_layers)
    memory = Memory()
    start = time.perf_counter()
    scores, parts = 0, 0
    for part in stream_subgraphs(GAtt(), model, x, edge_index, random_nodes(count), progress=True):
        scores += part.scores.numel()
        parts += 1
    return Outcome(scores, time.perf_counter() - start, memory.peak(), f"{parts} parts, forward passes included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder; reads ogb/ogbn_arxiv/raw/edge.csv.gz in it")
    parser.add_argument("--targets", type=int, default=10_000, help="targets of the first case")
    parser.add_argument("--deep-targets", type=int, default=100, help="targets of the second case")
    parser.add_argument("--subgraph-targets", type=int, default=1_000, help="targets of the fourth case")
    parser.add_argument("--repeats", type=int, default=1, help="runs of the first two cases, of which the best counts")
    arguments = parser.parse_args()
    if not Path(arguments.data, "ogb", "ogbn_arxiv", "raw", "edge.csv.gz").is_file():
        parser.error(f"no ogb/ogbn_arxiv/raw/edge.csv.gz in {arguments.data!r}: unpack OGB's arxiv.zip there")

    cases: list[tuple[str, Callable[..., Outcome], tuple[int, ...], int]] = [
        (f"{arguments.targets:,} targets, 2 layers", at_once, (2, arguments.targets), arguments.repeats),
        (f"{arguments.deep_targets:,} targets, 3 layers", at_once, (3, arguments.deep_targets), arguments.repeats),
        ("all nodes, 2 layers, streamed", streamed, (2,), 1),
        (f"{arguments.subgraph_targets:,} targets, 2 layers, neighbourhoods", by_neighbourhoods,
         (2, arguments.subgraph_targets), 1),
    ]  # fmt: skip
    console = Console(width=120)
    table = Table(title=f"GAtt on ogbn-arxiv, {torch.get_num_threads()} threads")
    for column in ("case", "scores", "seconds", "ns a score", "memory above graph"):
        table.add_column(column, justify="left" if column == "case" else "right")
    notes = []
    for name, function, options, repeats in cases:
        with (
            console.status(name),
            ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh,
        ):
            runs = [fresh.submit(function, arguments.data, *options).result() for _ in range(repeats)]
        outcome = min(runs, key=lambda run: run.seconds)
        each = outcome.seconds / max(outcome.scores, 1) * 1e9
        memory = f"{max(run.memory for run in runs):.2f} GiB"
        table.add_row(name, f"{outcome.scores:,}", f"{outcome.seconds:.2f}", f"{each:.0f}", memory)
        if outcome.note:
            notes.append(f"{name}: {outcome.note}")
    console.print(table)
    for note in notes:
        console.print(note)


if __name__ == "__main__":
    main()
