"""Slow, obvious statistics of two columns, and columns to compute them of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

# Few distinct values, two of them infinite, so that ties of all kinds are the rule.
tied_values = st.sampled_from([-math.inf, -3.5, -1e-300, -0.0, 0.0, 0.0, 0.0, 1e-8, 2.0, 1e12, math.inf])
some_values = st.one_of(tied_values, st.floats(-1e6, 1e6))


@st.composite
def mostly_zeros(draw: st.DrawFn) -> list[float]:
    """Values of which just under half, exactly half, more or all are 0, of either sign, in any order."""
    not_zero = st.one_of(
        st.sampled_from([-math.inf, -3.5, -5e-324, 5e-324, 2.0, 2.0, math.inf]),
        st.floats(-1e6, 1e6).filter(bool),
    )
    others = draw(st.lists(not_zero, max_size=25))
    fewest = max(len(others) - 1, 0)
    added = draw(st.lists(st.sampled_from([0.0, -0.0]), min_size=fewest, max_size=fewest + 25))
    return draw(st.permutations(others + added))


def same(ours: Tensor, reference: float, tolerance: float = 1e-12) -> None:
    assert ours.dtype == torch.float64
    assert ours.ndim == 0
    assert ours.item() == pytest.approx(reference, abs=tolerance, rel=0, nan_ok=True)


def scipy_value(function: Callable, x: np.ndarray, y: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(x, y).statistic)


def kendall_by_definition(x: list[float], y: list[float]) -> float:
    balance = untied_x = untied_y = 0
    for i, j in combinations(range(len(x)), 2):
        sign_x, sign_y = (x[i] > x[j]) - (x[i] < x[j]), (y[i] > y[j]) - (y[i] < y[j])
        balance += sign_x * sign_y
        untied_x += sign_x != 0
        untied_y += sign_y != 0
    return balance / math.sqrt(untied_x * untied_y) if untied_x and untied_y else math.nan


def auroc_by_definition(scores: list[float], labels: list[bool]) -> float:
    positive = [s for s, label in zip(scores, labels, strict=True) if label]
    negative = [s for s, label in zip(scores, labels, strict=True) if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative)) if positive and negative else math.nan


def half_a_million(share: float) -> tuple[np.ndarray, np.ndarray]:
    """Two correlated columns, a third of the first and the given share of the second being 0."""
    rng = np.random.default_rng(1)
    n = 500_000
    x = np.where(rng.random(n) < 0.3, 0, rng.standard_normal(n))
    return x, np.where(rng.random(n) < share, 0, 0.3 * x + rng.standard_normal(n))


def many_ties() -> tuple[np.ndarray, np.ndarray]:
    """Two columns with 100,000 equal values, too many for int32 to sum their ranks."""
    rng = np.random.default_rng(2)
    x = np.concatenate([np.zeros(100_000), rng.random(60_000)]).astype(np.float32)
    return x, np.concatenate([rng.integers(0, 2, 100_000), rng.integers(0, 5, 60_000)])


def pair_columns(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, dPC, dNE and dP of n pairs, most of which no reduction touches."""
    generator = torch.Generator().manual_seed(seed)
    scores, delta_pc, delta_ne = torch.rand(3, n, generator=generator)
    quiet = torch.rand(n, generator=generator) < 0.7
    delta_pc, delta_ne = delta_pc.masked_fill(quiet, 0), (delta_ne - scores).masked_fill(quiet, 0)
    return scores, delta_pc, delta_ne, delta_pc > 0.8


def pair_batches(seed: int = 0, sizes: tuple[int, ...] = (40, 1, 25)) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Batches of the same columns, of few distinct values."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for size in sizes:
        scores, delta_pc, delta_ne = torch.rand(3, size, generator=generator).mul(8).round()
        result.append((scores, delta_pc, delta_ne - 0.3 * scores, delta_pc > 4))
    return result


def pooled(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """The columns of several batches, whole."""
    return [torch.cat(column) for column in zip(*parts, strict=True)]
