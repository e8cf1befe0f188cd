"""Pearson and Spearman against SciPy, and what all three correlations have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics.functional import kendall, pearson, spearman
from helpers.statistics import half_a_million, many_ties, same, scipy_value, some_values

CORRELATIONS = {"pearson": pearson, "spearman": spearman, "kendall": kendall}


@given(st.lists(st.tuples(some_values, some_values), max_size=60))
@example([])
@example([(1.0, 2.0)])
@example([(0.1, float(i)) for i in range(10)])
@settings(max_examples=60, deadline=None)
def test_spearman_is_the_correlation_of_ranks_with_ties_and_infinities(points: list[tuple[float, float]]) -> None:
    x, y = [p[0] for p in points], [p[1] for p in points]
    rho = spearman(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    defined = len(set(x)) > 1 and len(set(y)) > 1
    ranks = (stats.rankdata(x), stats.rankdata(y))
    same(rho, float(np.corrcoef(*ranks)[0, 1]) if defined else math.nan)


@pytest.mark.parametrize(("mean", "scale"), [(0, 1), (1e9, 1), (2.0**40, 1), (0, 1e-200), (0, 1e200)])
def test_pearson_keeps_its_digits(mean: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    # Multiples of 2**-10 are not rounded by the shift, so the correlation must not change.
    noise = np.round(rng.standard_normal((2, 5_000)) * 1024) / 1024
    noise[1] += noise[0]
    exact = np.corrcoef(*noise)[0, 1]
    same(pearson(*torch.from_numpy(noise * scale + mean)), exact, 1e-13)


@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
def test_correlations_equal_scipy_on_half_a_million(share: float) -> None:
    x, y = half_a_million(share)
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    same(spearman(a, b), scipy_value(stats.spearmanr, x, y))
    same(pearson(a, b), scipy_value(stats.pearsonr, x, y))


def test_a_hundred_thousand_ties_do_not_overflow() -> None:
    x, y = many_ties()
    same(spearman(torch.from_numpy(x), torch.from_numpy(y)), scipy_value(stats.spearmanr, x, y))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8]
)
def test_every_dtype_gives_the_float64_answer(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    x, y = torch.from_numpy(rng.integers(-9, 9, (2, 300))).to(dtype)
    for name, reference in [("pearson", stats.pearsonr), ("spearman", stats.spearmanr), ("kendall", stats.kendalltau)]:
        same(CORRELATIONS[name](x, y), scipy_value(reference, x.double().numpy(), y.double().numpy()))


@pytest.mark.parametrize("function", CORRELATIONS.values(), ids=CORRELATIONS)
def test_undefined_is_nan_never_zero(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    rising = torch.arange(10.0)
    for constant in (torch.zeros(10), torch.full((10,), 0.1), torch.full((10,), 1e300, dtype=torch.float64)):
        assert function(rising, constant).isnan()
        assert function(constant, rising).isnan()
    for n in (0, 1):
        assert function(rising[:n], rising[:n]).isnan()


@pytest.mark.parametrize("function", CORRELATIONS.values(), ids=CORRELATIONS)
def test_nan_makes_the_result_nan(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    clean, dirty = torch.arange(5.0), torch.tensor([0.0, 1.0, math.nan, 3.0, 0.5])
    assert function(clean, dirty).isnan()
    assert function(dirty, clean).isnan()


def test_pearson_of_an_infinity_is_nan() -> None:
    assert pearson(torch.arange(3.0), torch.tensor([0.0, 1.0, math.inf])).isnan()


@pytest.mark.parametrize("function", CORRELATIONS.values(), ids=CORRELATIONS)
def test_perfect_order_is_exactly_one(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.linspace(-3, 11, 999)
    assert function(x, x).item() == pytest.approx(1, abs=1e-15)
    assert function(x, -x).item() == pytest.approx(-1, abs=1e-15)
    assert abs(function(x, x).item()) <= 1


@pytest.mark.parametrize("function", CORRELATIONS.values(), ids=CORRELATIONS)
def test_errors_name_the_argument(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.arange(4.0)
    with pytest.raises(ArgumentError, match="`y` to be of length 4 as `x` is, but got 3"):
        function(x, x[:3])
    with pytest.raises(ArgumentError, match=r"`x` to be one-dimensional, but got 'shape \(2, 2\)'"):
        function(x.view(2, 2), x)
    with pytest.raises(ArgumentError, match="`y` to be a tensor or a Ranking, but got 'list'"):
        function(x, [1, 2, 3, 4])
    with pytest.raises(ArgumentError, match="`x` to be real"):
        function(x.to(torch.complex64), x)
