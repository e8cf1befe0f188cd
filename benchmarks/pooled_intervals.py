"""Why Pearson's correlation over pooled pairs has no interval: how often six ways to compute one hold the true value.

    python benchmarks/pooled_intervals.py [--data data] [--samples 300] [--draws 300]

Populations as in benchmarks/coverage.py; a sample draws 20 or 100 targets with replacement. A cell is the lowest and
the highest share of samples over three methods, two protocols, dPC and dNE.

- influence: infinitesimal jackknife, t on Fisher's z with the effective number of targets (earlier versions of attree).
- jackknife: exact jackknife over targets, t on Fisher's z. few: the same with as many degrees of freedom as targets
  effectively decide the error.
- bca, percentile-t: bootstrap over targets, `--draws` draws.
- even: `influence` in the samples in which at least 10 targets effectively decide the error, as a guard would print it.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
import torch
from numpy import ndarray as Array
from scipy.special import ndtr, ndtri, stdtrit

from coverage import METHODS, PROTOCOLS, SIZES, Population, population

WAYS = ("influence", "jackknife", "few", "bca", "percentile-t", "even")


def moments(x: Array, y: Array, owner: Array) -> Array:
    """The sums of 1, x, y, x^2, y^2 and xy by target, [targets, 6]."""
    return np.stack([np.bincount(owner, column) for column in (np.ones_like(x), x, y, x * x, y * y, x * y)], axis=1)


def fisher(sums: Array) -> Array:
    """Fisher's z of the correlation, from sums [..., 6]."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    with np.errstate(all="ignore"):
        correlation = (xy - x * y / n) / np.sqrt(np.maximum(xx - x * x / n, 0) * np.maximum(yy - y * y / n, 0))
    return np.arctanh(np.clip(correlation, -1 + 1e-9, 1 - 1e-9))


def influences(targets: Array, weights: Array) -> Array:
    """The corrected influence of each target on Fisher's z, for weights of the targets [draws, targets]."""
    n, x, y, xx, yy, xy = ((weights @ targets)[:, None, column] for column in range(6))
    mx, my = x / n, y / n
    k, kx, ky, kxx, kyy, kxy = targets.T
    with np.errstate(all="ignore"):
        vx, vy = xx - n * mx * mx, yy - n * my * my
        root = np.sqrt(vx * vy)
        correlation = (xy - n * mx * my) / root
        by_x, by_y = (kxx - 2 * mx * kx + mx * mx * k) / vx, (kyy - 2 * my * ky + my * my * k) / vy
        both = (kxy - mx * ky - my * kx + mx * my * k) / root
        return (both - correlation / 2 * (by_x + by_y)) / (1 - k / n) / (1 - correlation**2)


def intervals(targets: Array, draws: int, generator: np.random.Generator) -> dict[str, tuple[float, float]]:
    """The interval of Fisher's z by each way."""
    count, z = len(targets), float(fisher(targets.sum(0)))
    by_target = influences(targets, np.ones((1, count)))[0]
    squares = by_target**2
    effective = 1 / float(((targets[:, 0] / targets[:, 0].sum()) ** 2).sum())
    deciding = min(effective, float(squares.sum()) ** 2 / float((squares**2).sum()))
    error = math.sqrt(float(squares.sum()))
    without = fisher(targets.sum(0) - targets)
    apart = without - without.mean()
    jackknife = math.sqrt((count - 1) / count * float((apart**2).sum()))
    halves = {
        "influence": stdtrit(effective - 1, 0.975) * error,
        "jackknife": stdtrit(count - 1, 0.975) * jackknife,
        "few": stdtrit(max(deciding - 1, 0.5), 0.975) * jackknife,
        "even": stdtrit(effective - 1, 0.975) * error if deciding >= 10 else math.nan,
    }
    intervals_by_name = {name: (z - half, z + half) for name, half in halves.items()}
    weights = generator.multinomial(count, np.ones(count) / count, size=draws).astype(float)
    drawn = fisher(weights @ targets)
    bias = ndtri(np.clip((drawn < z).mean(), 1 / draws, 1 - 1 / draws))
    skew = -float((apart**3).sum()) / (6 * float((apart**2).sum()) ** 1.5)
    ends = [ndtr(bias + (bias + q) / (1 - skew * (bias + q))) for q in ndtri([0.025, 0.975])]
    intervals_by_name["bca"] = (float(np.nanquantile(drawn, ends[0])), float(np.nanquantile(drawn, ends[1])))
    with np.errstate(all="ignore"):
        ratios = (drawn - z) / np.sqrt((weights * influences(targets, weights) ** 2).sum(1))
    low, high = np.quantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    intervals_by_name["percentile-t"] = (z - high * error, z - low * error)
    return intervals_by_name


def shares(whole: Population, size: int, samples: int, draws: int) -> dict[str, list[float]]:
    """The share of samples whose interval holds the true value, by way and statistic."""
    generator, owner = np.random.default_rng(size), whole.pairs.owner.numpy()
    by_way: dict[str, list[float]] = {way: [] for way in WAYS}
    for method in METHODS:
        scores = whole.pairs.scores[method].double().numpy()
        for protocol in PROTOCOLS:
            for effects in whole.pairs.deltas[protocol][:2]:
                columns = [(c - c.mean()) / c.std() for c in (scores, effects.double().numpy())]
                targets = moments(columns[0], columns[1], owner)
                truth = float(fisher(targets.sum(0)))
                held: dict[str, list[float]] = {way: [] for way in WAYS}
                for _ in range(samples):
                    intervals_by_name = intervals(targets[generator.integers(0, len(targets), size)], draws, generator)
                    for way, (low, high) in intervals_by_name.items():
                        held[way].append(math.nan if math.isnan(low) else float(low <= truth <= high))
                for way, outcomes in held.items():
                    if np.isfinite(outcomes).mean() >= 0.1:
                        by_way[way].append(float(np.nanmean(outcomes)))
    return by_way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument(
        "--datasets", type=lambda text: text.split(","), default=["Cora", "Infection", "Texas", "CiteSeer"]
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| population, targets | " + " | ".join(WAYS) + " |\n|---|" + "---|" * len(WAYS))
    for name in arguments.datasets.split(","):
        whole = population(name, arguments.data)
        for size in SIZES:
            by_way = shares(whole, size, arguments.samples, arguments.draws)
            cells = [f"{min(v):.2f} to {max(v):.2f}" if v else "none" for v in by_way.values()]
            print(f"| {name}, {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
