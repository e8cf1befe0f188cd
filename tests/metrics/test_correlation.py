"""The pure functions against SciPy, scikit-learn and the definitions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics.functional import (
    Ranking,
    auroc,
    auroc_by_target,
    faithfulness_statistics,
    kendall,
    pearson,
    spearman,
)
from attree.metrics.functional.kendall import _inversions

CORRELATIONS = {"pearson": pearson, "spearman": spearman, "kendall": kendall}
KEYS = ["pc_pearson", "pc_kendall", "pc_spearman", "ne_pearson", "ne_kendall", "ne_spearman", "p_auroc"]

# Few distinct values, two of them infinite, so that ties of all kinds are the rule.
tied_values = st.sampled_from([-math.inf, -3.5, -1e-300, -0.0, 0.0, 0.0, 0.0, 1e-8, 2.0, 1e12, math.inf])
some_values = st.one_of(tied_values, st.floats(-1e6, 1e6))


def same(ours: Tensor, reference: float, tolerance: float = 1e-12) -> None:
    assert ours.dtype == torch.float64
    assert ours.ndim == 0
    assert ours.item() == pytest.approx(reference, abs=tolerance, rel=0, nan_ok=True)


def scipy_value(function: Callable, x: np.ndarray, y: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(x, y).statistic)


def kendall_by_definition(x: list[float], y: list[float]) -> float:
    score = untied_x = untied_y = 0
    for i, j in combinations(range(len(x)), 2):
        sign_x, sign_y = (x[i] > x[j]) - (x[i] < x[j]), (y[i] > y[j]) - (y[i] < y[j])
        score += sign_x * sign_y
        untied_x += sign_x != 0
        untied_y += sign_y != 0
    return score / math.sqrt(untied_x * untied_y) if untied_x and untied_y else math.nan


def auroc_by_definition(scores: list[float], labels: list[bool]) -> float:
    positive = [s for s, label in zip(scores, labels, strict=True) if label]
    negative = [s for s, label in zip(scores, labels, strict=True) if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative)) if positive and negative else math.nan


@given(st.lists(st.tuples(some_values, some_values), max_size=60))
@example([])
@example([(1.0, 2.0)])
@example([(0.1, float(i)) for i in range(10)])
@settings(max_examples=300, deadline=None)
def test_kendall_and_spearman_with_ties_and_infinities(points: list[tuple[float, float]]) -> None:
    x, y = [p[0] for p in points], [p[1] for p in points]
    tau = kendall(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    same(tau, kendall_by_definition(x, y))
    rho = spearman(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    defined = len(set(x)) > 1 and len(set(y)) > 1
    ranks = (stats.rankdata(x), stats.rankdata(y))
    same(rho, float(np.corrcoef(*ranks)[0, 1]) if defined else math.nan)


@given(st.lists(st.tuples(some_values, st.booleans()), max_size=60))
@settings(max_examples=200, deadline=None)
def test_auroc_is_the_chance_that_a_positive_wins(points: list[tuple[float, bool]]) -> None:
    scores, labels = [p[0] for p in points], [p[1] for p in points]
    ours = auroc(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels, dtype=torch.bool))
    same(ours, auroc_by_definition(scores, labels))


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.integers(5, 9)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_auroc_by_target_is_the_mean_of_each_targets(points: list[tuple[int, bool, int]]) -> None:
    values = []
    for target in {p[2] for p in points}:
        own = [p for p in points if p[2] == target]
        values.append(auroc_by_definition([p[0] for p in own], [p[1] for p in own]))
    values = [value for value in values if not math.isnan(value)]
    scores, labels, targets = torch.tensor([list(map(int, p)) for p in points]).reshape(-1, 3).long().T
    same(auroc_by_target(scores, labels, targets), float(np.mean(values)) if values else math.nan)


@pytest.mark.parametrize(("mean", "scale"), [(0, 1), (1e9, 1), (2.0**40, 1), (0, 1e-200), (0, 1e200)])
def test_pearson_keeps_its_digits(mean: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    # Multiples of 2**-10 are not rounded by the shift, so the correlation must not change.
    noise = np.round(rng.standard_normal((2, 5_000)) * 1024) / 1024
    noise[1] += noise[0]
    exact = np.corrcoef(*noise)[0, 1]
    same(pearson(*torch.from_numpy(noise * scale + mean)), exact, 1e-13)


@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
@pytest.mark.parametrize("swap", [False, True])
def test_correlations_equal_scipy_on_half_a_million(share: float, swap: bool) -> None:
    rng = np.random.default_rng(1)
    n = 500_000
    x = np.where(rng.random(n) < 0.3, 0, rng.standard_normal(n))
    y = np.where(rng.random(n) < share, 0, 0.3 * x + rng.standard_normal(n))
    if swap:
        x, y = y, x
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    same(kendall(a, b), scipy_value(stats.kendalltau, x, y))
    same(spearman(a, b), scipy_value(stats.spearmanr, x, y))
    same(pearson(a, b), scipy_value(stats.pearsonr, x, y))
    labels = rng.random(n) < 0.01
    same(auroc(a, torch.from_numpy(labels)), roc_auc_score(labels, x))


def test_a_hundred_thousand_ties_do_not_overflow() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([np.zeros(100_000), rng.random(60_000)]).astype(np.float32)
    y = np.concatenate([rng.integers(0, 2, 100_000), rng.integers(0, 5, 60_000)])
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    same(spearman(a, b), scipy_value(stats.spearmanr, x, y))
    same(kendall(a, b), scipy_value(stats.kendalltau, x, y))
    same(auroc(a, b > 0), roc_auc_score(y > 0, x))


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


def test_scores_far_outside_the_unit_interval_are_not_squashed() -> None:
    scores = torch.tensor([-1e30, 40.0, 41.0, 800.0, 801.0, 1e30])
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    same(auroc(scores, labels), roc_auc_score(labels, scores.double()))
    same(auroc(scores, labels), auroc(torch.arange(6), labels).item())


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8]
)
def test_every_dtype_gives_the_float64_answer(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    x, y = torch.from_numpy(rng.integers(-9, 9, (2, 300))).to(dtype)
    for name, reference in [("pearson", stats.pearsonr), ("spearman", stats.spearmanr), ("kendall", stats.kendalltau)]:
        same(CORRELATIONS[name](x, y), scipy_value(reference, x.double().numpy(), y.double().numpy()))


def test_integers_beyond_the_float64_mantissa_are_told_apart() -> None:
    scores = torch.tensor([2**60, 2**60 + 1])
    same(kendall(scores, torch.tensor([0, 1])), 1.0)
    same(auroc(scores, torch.tensor([False, True])), 1.0)


@pytest.mark.parametrize("function", CORRELATIONS.values(), ids=CORRELATIONS)
def test_undefined_is_nan_never_zero(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    rising = torch.arange(10.0)
    for constant in (torch.zeros(10), torch.full((10,), 0.1), torch.full((10,), 1e300, dtype=torch.float64)):
        assert function(rising, constant).isnan()
        assert function(constant, rising).isnan()
    for n in (0, 1):
        assert function(rising[:n], rising[:n]).isnan()


def test_auroc_of_one_class_is_nan() -> None:
    for labels in (torch.zeros(4), torch.ones(4)):
        assert auroc(torch.arange(4.0), labels).isnan()
        assert auroc_by_target(torch.arange(4.0), labels, torch.tensor([0, 0, 1, 1])).isnan()
    assert auroc(torch.empty(0), torch.empty(0)).isnan()
    assert auroc_by_target(torch.empty(0), torch.empty(0), torch.empty(0)).isnan()


def test_nan_makes_the_result_nan() -> None:
    clean, dirty = torch.arange(5.0), torch.tensor([0.0, 1.0, math.nan, 3.0, 0.5])
    for function in CORRELATIONS.values():
        assert function(clean, dirty).isnan()
        assert function(dirty, clean).isnan()
    labels, target = torch.tensor([0, 1, 0, 1, 1]), torch.zeros(5)
    assert auroc(dirty, labels).isnan()
    assert auroc(clean, dirty).isnan()
    assert auroc_by_target(dirty, labels, target).isnan()
    assert auroc_by_target(clean, labels, target * dirty).isnan()


def test_pearson_of_an_infinity_is_nan() -> None:
    assert pearson(torch.arange(3.0), torch.tensor([0.0, 1.0, math.inf])).isnan()


@pytest.mark.parametrize("function", CORRELATIONS.values(), ids=CORRELATIONS)
def test_perfect_order_is_exactly_one(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.linspace(-3, 11, 999)
    assert function(x, x).item() == pytest.approx(1, abs=1e-15)
    assert function(x, -x).item() == pytest.approx(-1, abs=1e-15)
    assert abs(function(x, x).item()) <= 1


def columns(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores, delta_pc, delta_ne = torch.rand(3, n, generator=generator)
    quiet = torch.rand(n, generator=generator) < 0.7
    delta_pc, delta_ne = delta_pc.masked_fill(quiet, 0), (delta_ne - scores).masked_fill(quiet, 0)
    return scores, delta_pc, delta_ne, delta_pc > 0.8


def test_the_seven_statistics_and_their_mean() -> None:
    scores, delta_pc, delta_ne, changed = columns(4_000, seed=0)
    values = faithfulness_statistics(scores, delta_pc, delta_ne, changed)
    assert list(values) == [*KEYS, "faithfulness"]
    for column, delta in (("pc", delta_pc), ("ne", delta_ne)):
        x, y = scores.double().numpy(), delta.double().numpy()
        same(values[f"{column}_pearson"], scipy_value(stats.pearsonr, x, y))
        same(values[f"{column}_kendall"], scipy_value(stats.kendalltau, x, y))
        same(values[f"{column}_spearman"], scipy_value(stats.spearmanr, x, y))
    same(values["p_auroc"], roc_auc_score(changed, scores))
    same(values["faithfulness"], float(np.mean([values[key].item() for key in KEYS])))


def test_rankings_made_once_give_the_same_and_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = columns(500, seed=1)
    expected = faithfulness_statistics(*plain)
    prepared = [Ranking(column) for column in plain]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("sorted again")

    monkeypatch.setattr(np, "argsort", refuse)
    assert faithfulness_statistics(*prepared) == expected
    assert faithfulness_statistics(*prepared[:3], plain[3]) == expected


def test_one_undefined_statistic_makes_the_mean_undefined() -> None:
    scores, delta_pc, delta_ne, changed = columns(50, seed=2)
    values = faithfulness_statistics(scores, delta_pc, delta_ne, torch.zeros_like(changed))
    assert [key for key, value in values.items() if value.isnan()] == ["p_auroc", "faithfulness"]


def test_ranking_describes_its_values() -> None:
    values = torch.tensor([3.0, -1.0, 3.0, math.inf, 0.0, -0.0, 3.0])
    ranking = Ranking(values)
    assert ranking.midranks[ranking.dense].tolist() == stats.rankdata(values).tolist()
    assert ranking.counts.tolist() == [1, 2, 3, 1]
    assert all(a < b for a, b in pairwise(ranking.midranks))
    assert len(ranking) == 7
    assert len(Ranking(torch.empty(0)).counts) == 0


def test_errors_name_the_argument() -> None:
    x = torch.arange(4.0)
    for function in CORRELATIONS.values():
        with pytest.raises(ArgumentError, match="`y` to be of length 4 as `x` is, but got 3"):
            function(x, x[:3])
        with pytest.raises(ArgumentError, match=r"`x` to be one-dimensional, but got 'shape \(2, 2\)'"):
            function(x.view(2, 2), x)
        with pytest.raises(ArgumentError, match="`y` to be a tensor or a Ranking, but got 'list'"):
            function(x, [1, 2, 3, 4])
        with pytest.raises(ArgumentError, match="`x` to be real"):
            function(x.to(torch.complex64), x)
    with pytest.raises(ArgumentError, match=r"`labels` to be 0 or 1 everywhere, but got \[2.0\]"):
        auroc(x, x)
    with pytest.raises(ArgumentError, match="`target`"):
        auroc_by_target(x, x > 1, x[:2])
    with pytest.raises(ArgumentError, match="`delta_ne`"):
        faithfulness_statistics(x, x, x[:2], x > 1)


def test_gradients_do_not_leak_into_the_statistics() -> None:
    scores, delta_pc, delta_ne, changed = columns(20, seed=3)
    values = faithfulness_statistics(scores.requires_grad_(), delta_pc, delta_ne, changed)
    assert not any(value.requires_grad for value in values.values())
