"""Kendall's tau beside torchmetrics' and SciPy's, and all faithfulness statistics of ten million pairs.

    python benchmarks/kendall.py [--pairs 10000000] [--rounds 25]

All take turns in one process. Printed are medians over the rounds, in brackets the quartiles that half of the rounds
lie between; the ratios are what carries over to other machines. Memory is the peak of a fresh process that makes the
columns and computes the statistics once, and how much of it is on top of the peak before the computation.
"""

from __future__ import annotations

import argparse
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torchmetrics.functional import kendall_rank_corrcoef

from attree.metrics.functional import Ranking, faithfulness_statistics, kendall
from timing import Race, timed


def columns(n: int, zeros: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, dPC, dNE and dP of n pairs, a share of which no reduction touches."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(n)
    touched = rng.random(n) >= zeros
    delta_pc = np.where(touched, scores + rng.standard_normal(n), 0.0)
    delta_ne = np.where(touched, scores + 2 * rng.standard_normal(n), 0.0)
    scores_, pc, ne, changed = map(torch.from_numpy, (scores, delta_pc, delta_ne, delta_pc > 2))
    return scores_, pc, ne, changed


def side_by_side(n: int, zeros: float, rounds: int) -> None:
    scores, delta, _, _ = columns(n, zeros)
    prepared = (Ranking(scores), Ranking(delta))
    race = Race(
        {
            "ours": lambda: float(kendall(scores, delta)),
            "once ranked": lambda: float(kendall(*prepared)),
            "SciPy": lambda: float(kendalltau(scores.numpy(), delta.numpy()).statistic),
        },
        rounds,
    )
    # It takes hundreds of times as long: a few rounds of its own do.
    slow = Race({"ours": lambda: float(kendall(scores, delta)), "torchmetrics": lambda: theirs(scores, delta)}, 3)
    print(f"Kendall, {n:,} pairs, {zeros:.0%} zero deltas: {1e3 * race.time('ours').median:.2f} ms")
    print(f"  once ranked  {race.ratio('once ranked', 'ours'):.2f} times ours")
    for name, peers, digits in (("SciPy", race, ".2f"), ("torchmetrics", slow, ".0f")):
        wrong = abs(peers.results[name] - peers.results["ours"])
        print(f"  {name:12} {peers.ratio(name, 'ours'):{digits}} times ours, difference {wrong:.1e}")
    print(f"  {'SciPy':12} {race.ratio('SciPy', 'once ranked'):.1f} times ours once ranked")


def theirs(scores: Tensor, delta: Tensor) -> float:
    return float(torch.as_tensor(kendall_rank_corrcoef(scores, delta)))


def epoch(n: int, rounds: int, methods: int = 3) -> None:
    scores, delta_pc, delta_ne, changed = columns(n, 0.9)

    def run() -> None:
        pc, ne = Ranking(delta_pc), Ranking(delta_ne)
        for _ in range(methods):
            faithfulness_statistics(scores, pc, ne, changed)

    each = 1e3 * Race({"epoch": run}, rounds).time("epoch").median
    print(f"All statistics, {n:,} pairs, {methods} methods sharing the deltas: {each:.1f} ms an epoch")


def peak_gib() -> float:
    """The largest memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def at_scale(n: int, zeros: float) -> str:
    data = columns(n, zeros)
    before = peak_gib()
    seconds, values = timed(lambda: faithfulness_statistics(*data))
    peak = peak_gib()
    return (
        f"All statistics, {n:,} pairs, {zeros:.0%} zero deltas: {seconds:.1f} s, peak {peak:.2f} GiB "
        f"(+{peak - before:.2f}), faithfulness {values['faithfulness']:.6f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000, help="how many pairs make the large case")
    parser.add_argument("--rounds", type=int, default=25, help="turns of each contestant (default: %(default)s)")
    arguments = parser.parse_args()
    pairs, rounds = arguments.pairs, arguments.rounds
    # torchmetrics divides its counts in the default dtype, and float32 would hide all digits after the eighth.
    torch.set_default_dtype(torch.float64)
    for zeros in (0.9, 0.0):
        side_by_side(16_000, zeros, rounds)
    epoch(16_000, rounds)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for line in fresh.map(at_scale, (pairs, pairs), (0.9, 0.0)):
            print(line)


if __name__ == "__main__":
    main()
