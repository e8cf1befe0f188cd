"""Kendall's tau beside torchmetrics' and SciPy's, and all faithfulness statistics of ten million pairs.

    python benchmarks/kendall.py [--pairs 10000000]

Times are the best of several runs, in one process; the ratios are what carries over to other machines. Memory is
the peak of a fresh process that makes the columns and computes the statistics once, and how much of it is on top of
the peak before the computation.
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
from timing import best


def columns(n: int, zeros: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, dPC, dNE and dP of n pairs, a share of which no reduction touches."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(n)
    touched = rng.random(n) >= zeros
    delta_pc = np.where(touched, scores + rng.standard_normal(n), 0.0)
    delta_ne = np.where(touched, scores + 2 * rng.standard_normal(n), 0.0)
    scores_, pc, ne, changed = map(torch.from_numpy, (scores, delta_pc, delta_ne, delta_pc > 2))
    return scores_, pc, ne, changed


def side_by_side(n: int, zeros: float) -> None:
    scores, delta, _, _ = columns(n, zeros)
    ours, value = best(lambda: kendall(scores, delta), 50)
    prepared = (Ranking(scores), Ranking(delta))
    ranked, _ = best(lambda: kendall(*prepared), 50)
    scipy, reference = best(lambda: kendalltau(scores.numpy(), delta.numpy()).statistic, 50)
    peer, theirs = best(lambda: torch.as_tensor(kendall_rank_corrcoef(scores, delta)), 1)
    print(
        f"Kendall, {n:,} pairs, {zeros:.0%} zero deltas: {ours * 1e3:.2f} ms ({ranked * 1e3:.2f} ms once ranked)\n"
        f"  torchmetrics {peer * 1e3:8.1f} ms = {peer / ours:6.0f} x ours, difference {abs(theirs - value):.1e}\n"
        f"  SciPy        {scipy * 1e3:8.1f} ms = {scipy / ours:6.1f} x ours, difference {abs(reference - value):.1e}"
    )


def epoch(n: int, methods: int = 3) -> None:
    scores, delta_pc, delta_ne, changed = columns(n, 0.9)

    def run() -> None:
        pc, ne = Ranking(delta_pc), Ranking(delta_ne)
        for _ in range(methods):
            faithfulness_statistics(scores, pc, ne, changed)

    seconds, _ = best(run, 30)
    print(f"All statistics, {n:,} pairs, {methods} methods sharing the deltas: {seconds * 1e3:.1f} ms an epoch")


def peak_gib() -> float:
    """The largest memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def at_scale(n: int, zeros: float) -> str:
    data = columns(n, zeros)
    before = peak_gib()
    seconds, values = best(lambda: faithfulness_statistics(*data), 1)
    peak = peak_gib()
    return (
        f"All statistics, {n:,} pairs, {zeros:.0%} zero deltas: {seconds:.1f} s, peak {peak:.2f} GiB "
        f"(+{peak - before:.2f}), faithfulness {values['faithfulness']:.6f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000, help="how many pairs make the large case")
    pairs = parser.parse_args().pairs
    # torchmetrics divides its counts in the default dtype, and float32 would hide all digits after the eighth.
    torch.set_default_dtype(torch.float64)
    for zeros in (0.9, 0.0):
        side_by_side(16_000, zeros)
    epoch(16_000)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for line in fresh.map(at_scale, (pairs, pairs), (0.9, 0.0)):
            print(line)


if __name__ == "__main__":
    main()
