"""Intervals of the seven statistics: a bootstrap over targets, since pairs of one target are not independent.

A draw weighs target k as often as it was drawn, w_k. Every statistic is then a function of w through sums over
targets, or over pairs of targets, that are made once: no draw sorts anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RANKED_PAIRS = 2500
"""Pairs that intervals of rank correlations are made of; more are thinned, evenly within every target."""

Interval = tuple[float, float]


def intervals(
    scores: Mapping[str, Tensor],
    delta_pc: Tensor,
    delta_ne: Tensor,
    changed: Tensor,
    owner: Tensor,
    values: Mapping[tuple[str, str], float],
    draws: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> dict[tuple[str, str], Interval]:
    """Percentile intervals of the seven statistics of several methods.

    Args:
        scores: Each method's score of every pair.
        delta_pc: Decline of the predicted class's probability.
        delta_ne: Change of the negative entropy.
        changed: Whether the predicted class changed.
        owner: Position of every pair's target, ascending.
        values: The statistics of all pairs by method and name: intervals made of thinned pairs are moved to lie about
            them.
        draws: Number of draws.
        level: Share of the draws within the interval.
        seed: Seed of the draws.

    Returns:
        Low and high end, by method and name of the statistic.
    """
    if owner.numel() == 0:
        return {}
    targets = int(owner.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    picked = torch.randint(targets, (draws, targets), generator=generator)
    weights = torch.zeros(draws, targets, dtype=torch.float64)
    weights.scatter_add_(1, picked, torch.ones_like(weights))
    thin = _thinned(owner, generator)
    deltas = {"pc": delta_pc.double(), "ne": delta_ne.double()}
    ranked = {name: _Ranked.of(delta[thin], owner[thin], targets) for name, delta in deltas.items()}
    found: dict[tuple[str, str], Interval] = {}
    for method, own in scores.items():
        x = own.double()
        mine = _Ranked.of(x[thin], owner[thin], targets)
        for name, delta in deltas.items():
            found[method, f"{name}_pearson"] = _interval(_pearson(x, delta, owner, weights), level)
            for statistic, correlation in (("kendall", _kendall), ("spearman", _spearman)):
                estimate, drawn = correlation(mine, ranked[name], owner[thin], weights)
                shift = values.get((method, f"{name}_{statistic}"), estimate) - estimate
                found[method, f"{name}_{statistic}"] = _interval(drawn + shift, level)
        found[method, "p_auroc"] = _interval(_auroc(x, changed, owner, weights), level)
    return found


def _interval(drawn: Tensor, level: float) -> Interval:
    drawn = drawn[drawn.isfinite()]
    if drawn.numel() == 0:
        return float("nan"), float("nan")
    tail = (1 - level) / 2
    low, high = drawn.quantile(torch.tensor([tail, 1 - tail], dtype=drawn.dtype)).tolist()
    return low, high


def _thinned(owner: Tensor, generator: torch.Generator) -> Tensor:
    """Positions of at most `RANKED_PAIRS` pairs, of every target the same share, drawn at random."""
    count = owner.numel()
    if count <= RANKED_PAIRS:
        return torch.arange(count)
    order = torch.randperm(count, generator=generator)
    order = order[torch.argsort(owner[order], stable=True)]
    places = (torch.arange(RANKED_PAIRS, dtype=torch.float64) * (count / RANKED_PAIRS)).long()
    return order[places]


def _sums(values: Tensor, owner: Tensor, targets: int) -> Tensor:
    return torch.zeros(targets, dtype=torch.float64).index_add_(0, owner, values)


def _pearson(x: Tensor, y: Tensor, owner: Tensor, weights: Tensor) -> Tensor:
    """Pearson of every draw, [draws], from moments about the overall means (which keeps digits)."""
    targets = weights.shape[1]
    x, y = x - x.mean(), y - y.mean()
    moments = torch.stack([_sums(v, owner, targets) for v in (torch.ones_like(x), x, y, x * x, y * y, x * y)], dim=1)
    n, sx, sy, sxx, syy, sxy = (weights @ moments).unbind(dim=1)
    return (sxy - sx * sy / n) / ((sxx - sx * sx / n) * (syy - sy * sy / n)).clamp(min=0).sqrt()


@dataclass(frozen=True)
class _Ranked:
    """A column of pairs, ranked against those of every target.

    Attributes:
        below: How many pairs of each target have a smaller value, ties counting half, [pairs, targets].
        sign: Sign of the difference of every two pairs, [pairs, pairs].
        untied: Number of pairs of two targets that are not tied, [targets, targets].
    """

    below: Tensor
    sign: np.ndarray
    untied: Tensor

    @classmethod
    def of(cls, values: Tensor, owner: Tensor, targets: int) -> _Ranked:
        below = torch.zeros(values.numel(), targets, dtype=torch.float64)
        for target in owner.unique().tolist():
            own = values[owner == target].sort().values
            left, right = torch.searchsorted(own, values), torch.searchsorted(own, values, right=True)
            below[:, target] = (left + right).double() / 2
        rank = values.unique(return_inverse=True)[1].numpy().astype(np.float32)
        sign = np.sign(rank[:, None] - rank[None, :])
        return cls(below, sign, _between(np.abs(sign), owner, targets))


def _between(matrix: np.ndarray, owner: Tensor, targets: int) -> Tensor:
    """Sums of a matrix over the blocks of every two targets, [targets, targets]."""
    present, counts = owner.unique_consecutive(return_counts=True)
    starts = (counts.cumsum(0) - counts).numpy()
    blocks = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1, dtype=np.float64)
    sums = torch.zeros(targets, targets, dtype=torch.float64)
    sums[present.unsqueeze(1), present.unsqueeze(0)] = torch.from_numpy(blocks)
    return sums


def _with_all(weights: Tensor) -> Tensor:
    """The draws, preceded by every target once."""
    return torch.cat([torch.ones_like(weights[:1]), weights])


def _spearman(x: _Ranked, y: _Ranked, owner: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Spearman of all pairs, and of every draw: a pair's rank is a weighted sum of its ranks among each target's."""
    every = _with_all(weights)
    by_pair = every[:, owner]
    middle = by_pair.sum(dim=1, keepdim=True) / 2  # the weighted mean of ranks that count ties half
    rank_x, rank_y = every @ x.below.t() - middle, every @ y.below.t() - middle
    covariance = (by_pair * rank_x * rank_y).sum(dim=1)
    found = covariance / ((by_pair * rank_x**2).sum(dim=1) * (by_pair * rank_y**2).sum(dim=1)).sqrt()
    return float(found[0]), found[1:]


def _kendall(x: _Ranked, y: _Ranked, owner: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Kendall's tau-b of all pairs and of every draw: sums over pairs of targets, weighed by both."""
    every = _with_all(weights)
    concordance = _between(x.sign * y.sign, owner, every.shape[1])
    top, left, right = (((every @ sums) * every).sum(dim=1) for sums in (concordance, x.untied, y.untied))
    found = top / (left * right).sqrt()
    return float(found[0]), found[1:]


def _auroc(x: Tensor, changed: Tensor, owner: Tensor, weights: Tensor) -> Tensor:
    """AUROC of every draw, [draws]: how often a changed pair of target k scores above an unchanged one of target l."""
    targets = weights.shape[1]
    positive = x[changed]
    wins = torch.zeros(targets, targets, dtype=torch.float64)
    for target in range(targets):
        negative = x[(owner == target) & ~changed].sort().values
        left, right = torch.searchsorted(negative, positive), torch.searchsorted(negative, positive, right=True)
        wins[:, target] = _sums((left + right).double() / 2, owner[changed], targets)
    positives = weights @ _sums(changed.double(), owner, targets)
    negatives = weights @ _sums((~changed).double(), owner, targets)
    return ((weights @ wins) * weights).sum(dim=1) / (positives * negatives)
