"""A graph of 100 million nodes on disk: how long it takes to explain single nodes exactly, and in how much memory.

    python benchmarks/on_disk.py --folder DIR [--nodes 100_000_000] [--edges 1_000_000_000] [--sample 100]
    python benchmarks/on_disk.py --folder DIR --compare 9    (a graph that fits into memory: both ways)

The in-degrees follow a power law, and sources are drawn at random. A line says first how long it takes and how much
disk. Nodes are drawn at random; cold means that none of the graph's pages are in memory when the node is explained.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

import attree
from attree.data.on_disk import OnDiskGraph, TooLargeError
from attree.data.on_disk.array_files import create
from attree.data.on_disk.graph import write_description
from attree.models import GAT

STEP = 2**22
EXPONENT = 2.5
"""Exponent of the distribution of in-degrees, as in many citation and web graphs."""

SECONDS_A_GIB = 22.0
"""Time to draw and write a GiB in the trial run that the notice is scaled from."""


def sizes(nodes: int, edges: int, features: int) -> float:
    """Return the bytes of the graph on disk."""
    return nodes * (8 + 2 * features + 1) + edges * 4


def generate(folder: Path, nodes: int, edges: int, features: int, seed: int = 0) -> None:
    """Draw a graph and write it, piece by piece; each piece has its own seed."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    smallest = edges / nodes * (EXPONENT - 2) / (EXPONENT - 1)
    indptr = create(folder / "indptr.npy", [nodes + 1], np.int64)
    for begin in range(0, nodes, STEP):
        count = min(STEP, nodes - begin)
        uniform = np.random.default_rng((seed, 0, begin)).random(count)
        mean_one = smallest * (1 - uniform) ** (-1 / (EXPONENT - 1))
        degrees = np.minimum(mean_one + np.random.default_rng((seed, 1, begin)).random(count) - 0.5, nodes // 4)
        indptr[begin + 1 : begin + count + 1] = total + np.maximum(degrees, 0).astype(np.int64).cumsum()
        total = int(indptr[begin + count])
    indptr.flush()
    indices, loops = create(folder / "indices.npy", [total], np.int32), []
    for begin in range(0, total, STEP):
        count = min(STEP, total - begin)
        indices[begin : begin + count] = np.random.default_rng((seed, 2, begin)).integers(nodes, size=count)
    for begin in range(0, nodes, STEP):
        ends = indptr[begin : begin + STEP + 1]
        row_of_edge = np.repeat(np.arange(begin, begin + len(ends) - 1), np.diff(ends))
        loops.append(int(ends[0]) + np.flatnonzero(indices[ends[0] : ends[-1]] == row_of_edge))
    indices.flush()
    np.save(folder / "self_loops.npy", np.concatenate(loops))
    x, y = create(folder / "x.npy", [nodes, features], np.float16), create(folder / "y.npy", [nodes], np.int8)
    table = np.random.default_rng(seed).standard_normal((2**16 + 4096, features), dtype=np.float32).astype(np.float16)
    for begin in range(0, nodes, 4096):  # rows of a random table: drawing 10 billion numbers would take half an hour
        rng = np.random.default_rng((seed, 3, begin))
        first, count = int(rng.integers(2**16)), min(4096, nodes - begin)
        x[begin : begin + count] = table[first : first + count]
        y[begin : begin + count] = rng.integers(40, size=count)
    x.flush()
    y.flush()
    of = {"indptr": "pointer", "indices": "edge", "self_loops": "list", "x": "node", "y": "node"}
    write_description(folder, nodes, of, name="random power law")


def forget(folder: Path) -> None:
    """Drop the pages of the graph from memory."""
    for path in folder.glob("*.npy"):
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak() -> float:
    """Return the largest memory of this process so far in MiB, mapped pages of files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(folder: Path, sample: int, hubs: int, memory: float) -> None:
    """Explain random nodes, cold and then warm, and the largest hubs; print the times."""
    graph = OnDiskGraph(folder, memory)
    torch.manual_seed(0)
    model = GAT(graph.num_features, 40, num_layers=2).eval()
    start = peak()
    print(f"interpreter, attree and network: {start:,.0f} MiB")
    print(f"experiments on the network, once: {timed(lambda: attree.explain(model, graph, 0)):.2f} s")
    nodes = np.random.default_rng(1).integers(graph.num_nodes, size=sample).tolist()
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    edges, refused = [], 0
    for node in nodes:
        try:
            del graph
            forget(folder)
            graph = OnDiskGraph(folder, memory)
            attree.explain(model, graph, int(nodes[0]))  # the experiments are not counted
            forget(folder)
            seconds["cold"].append(timed(partial(attree.explain, model, graph, node)))
            edges.append(len(attree.explain(model, graph, node).positions))
            seconds["warm"].append(timed(partial(attree.explain, model, graph, node)))
        except TooLargeError as error:
            refused += 1
            print(f"said: {error}")
    print(f"{len(edges)} random nodes, {statistics.median(edges):,.0f} edges around the median, {max(edges):,} at most")
    for name, times in seconds.items():
        print(f"{name}: median {statistics.median(times):.3f} s, slowest {max(times):.2f} s")
    print(f"peak memory: {peak():,.0f} MiB, {peak() - start:,.0f} above the start")
    degrees = np.diff(graph.array("indptr")[: min(graph.num_nodes, 2**25) + 1])
    for node in np.argsort(degrees)[::-1][: hubs * 40 : 40].tolist() if hubs else []:
        forget(folder)
        began = time.perf_counter()
        try:
            explanation = attree.explain(model, graph, node)
        except TooLargeError as error:
            print(f"hub {node}, {degrees[node]:,} in-edges, said after {time.perf_counter() - began:.2f} s: {error}")
            continue
        elapsed = time.perf_counter() - began
        count = explanation.subject.graph.num_nodes
        print(f"hub {node}, {degrees[node]:,} in-edges, {count:,} nodes: {elapsed:.1f} s cold, peak {peak():,.0f} MiB")
    whole = graph.num_nodes * graph.num_features * 4 + graph.num_edges * 16
    print(f"loading it whole would take {whole / 2**30:.1f} GiB, and one pass of the network several times as much")


def explained(folder: Path, node: int, memory: float, whole: bool, results: Any) -> None:
    """Explain a node on disk or in memory, in a process of its own; put a digest, memory and seconds into a queue."""
    torch.set_num_threads(1)
    graph = OnDiskGraph(folder, memory)
    torch.manual_seed(0)
    model = GAT(graph.num_features, 40, num_layers=2).eval()
    tiny = Data(x=torch.zeros(4, graph.num_features), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    attree.explain(model, tiny, 3, "gatt")  # so that all modules are imported
    start, began = peak(), time.perf_counter()
    evaluation = attree.explain(model, graph.to_data() if whole else graph, node, "gatt").evaluation
    (reduction,) = evaluation.reductions.values()
    tensors = *evaluation.pair_scores.values(), reduction.delta_pc, reduction.delta_ne, reduction.changed
    digest = hashlib.sha256(b"".join(values.numpy().tobytes() for values in tensors)).hexdigest()
    results.put((digest, len(evaluation.pairs), peak() - start, time.perf_counter() - began))


def compare(folder: Path, count: int, memory: float) -> None:
    """Explain random nodes on disk and in memory: are all numbers equal, and how much memory does each take?"""
    ratios = []
    for node in np.random.default_rng(1).permutation(OnDiskGraph(folder).num_nodes)[:count].tolist():
        rows = []
        for whole in (False, True):
            context = multiprocessing.get_context("spawn")
            results = context.Queue()
            process = context.Process(target=explained, args=(folder, node, memory, whole, results))
            process.start()
            rows.append(results.get())
            process.join()
        (digest, pairs, above, seconds), (expected, _, whole_above, whole_seconds) = rows
        ratios.append(above / whole_above)
        print(
            f"node {node}, {pairs:,} edges: {above:,.0f} MiB above the interpreter and {seconds:.1f} s on disk, "
            f"{whole_above:,.0f} MiB and {whole_seconds:.1f} s in memory; numbers "
            f"{'equal' if digest == expected else 'DIFFER'}",
            flush=True,
        )
    print(f"memory on disk: median {statistics.median(ratios):.3f}, largest {max(ratios):.3f} of that in memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=100_000_000)
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--hubs", type=int, default=3)
    parser.add_argument("--memory", type=float, default=8.0, help="GiB that a neighbourhood may take (default: 8)")
    parser.add_argument("--compare", type=int, default=None, metavar="N", help="explain N nodes on disk and in memory")
    options = parser.parse_args()
    if options.compare is not None:
        compare(options.folder, options.compare, options.memory * 2**30)
        return
    gib = sizes(options.nodes, options.edges, options.features) / 2**30
    if not (options.folder / "graph.json").exists():
        print(f"writes {gib:.1f} GiB to {options.folder}, in about {gib * SECONDS_A_GIB / 60:.1f} minutes", flush=True)
        free = os.statvfs(options.folder.parent if not options.folder.exists() else options.folder)
        if free.f_bavail * free.f_frsize < gib * 2**30:
            sys.exit("there is not so much room on this disk")
        arguments = options.folder, options.nodes, options.edges, options.features
        process = multiprocessing.get_context("spawn").Process(target=generate, args=arguments)  # for the peak memory
        began = time.perf_counter()
        process.start()
        process.join()
        took = time.perf_counter() - began
        print(f"generated in {took:.0f} s", flush=True)
    measure(options.folder, options.sample, options.hubs, options.memory * 2**30)


if __name__ == "__main__":
    main()
