"""Kendall's tau-b against SciPy and its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from attree.metrics.functional import Ranking, kendall
from attree.metrics.functional.correlation import _inversions
from helpers.statistics import half_a_million, kendall_by_definition, many_ties, same, scipy_value, some_values


@given(st.lists(st.tuples(some_values, some_values), max_size=60))
@example([])
@example([(1.0, 2.0)])
@example([(0.1, float(i)) for i in range(10)])
@settings(max_examples=60, deadline=None)
def test_kendall_is_its_definition_with_ties_and_infinities(points: list[tuple[float, float]]) -> None:
    x, y = [p[0] for p in points], [p[1] for p in points]
    tau = kendall(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    same(tau, kendall_by_definition(x, y))


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
@pytest.mark.parametrize("swap", [False, True])
def test_kendall_equals_scipy_on_half_a_million(share: float, swap: bool) -> None:
    x, y = half_a_million(share)[:: -1 if swap else 1]
    same(kendall(torch.from_numpy(x), torch.from_numpy(y)), scipy_value(stats.kendalltau, x, y))


def test_a_hundred_thousand_ties_do_not_overflow() -> None:
    x, y = many_ties()
    same(kendall(torch.from_numpy(x), torch.from_numpy(y)), scipy_value(stats.kendalltau, x, y))


@pytest.mark.slow
def test_kendall_equals_scipy_on_ten_million() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(10_000_000)
    y = np.where(rng.random(len(x)) < 0.5, 0, x + rng.standard_normal(len(x)))
    same(kendall(torch.from_numpy(x), torch.from_numpy(y)), scipy_value(stats.kendalltau, x, y))


@pytest.mark.parametrize("n", [*range(40), 127, 128, 129, 500, 1023, 1024, 1025])
def test_inversions_against_all_pairs(n: int) -> None:
    rng = np.random.default_rng(n)
    p = rng.permutation(n)
    assert _inversions(p) == sum(int((p[i] > p[i + 1 :]).sum()) for i in range(n))
    assert _inversions(np.arange(n)[::-1]) == n * (n - 1) // 2
    assert _inversions(np.arange(n)) == 0


@pytest.mark.parametrize("n", [32_768, 32_775, 70_001])
def test_inversions_across_chunks(n: int) -> None:
    shifted = np.roll(np.arange(n), 7)
    assert _inversions(shifted) == 7 * (n - 7)
    swapped = np.arange(n)
    swapped[::2][: n // 2], swapped[1::2] = swapped[1::2].copy(), swapped[::2][: n // 2].copy()
    assert _inversions(swapped) == n // 2


GROUP = [(0.0, 0.0), (1.0, 0.0), (1.0, 0.0), (3.0, 0.0), (9.0, 0.0)]
"""Points of which y, more than x, is one group of ties."""


@pytest.mark.parametrize(
    "others",
    [
        [],
        [(2.0, 5.0)],
        [(2.0, -1.0), (0.5, 4.0), (7.0, 2.0), (-1.0, -3.0)],
        [(1.0, -1.0), (1.0, 4.0), (3.0, 2.0), (5.0, -3.0)],
        [(2.0, 4.0), (0.5, 4.0), (7.0, -1.0), (-1.0, -1.0)],
        [(1.0, 4.0), (1.0, 4.0), (1.0, 4.0), (7.0, -1.0), (7.0, -1.0), (0.0, 4.0), (7.0, 3.0)],
    ],
    ids=["none", "one", "without ties", "ties in x", "ties in y", "ties in both"],
)
def test_kendall_beside_its_largest_group(others: list[tuple[float, float]]) -> None:
    x, y = torch.tensor(GROUP + others, dtype=torch.float64).T
    expected = stats.kendalltau(x, y).statistic if others else math.nan
    for first, second in ((x, y), (y, x), (Ranking(x), Ranking(y))):
        assert kendall(first, second).item() == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert kendall(-x, y).item() == pytest.approx(-expected, abs=1e-12, nan_ok=True)
