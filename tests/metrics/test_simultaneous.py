"""The level of intervals that hold together, against families whose level is known."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm, studentized_range

from attree.metrics.functional import joint_level
from attree.metrics.functional.influence import Influence, influence_on_mean

# The level is a share of 20,000 draws: a quantile at 0.95 is off by less than 0.006 of a share in 999 of 1,000 cases.
# A share of s has the bound norm.ppf((1 + level) / 2); it is compared on the scale of shares.
CHANCE = 3.3 * math.sqrt(0.95 * 0.05 / 20_000)


def orthogonal(number: int) -> list[Influence]:
    """Statistics that are not correlated."""
    return [
        Influence(0.1, column, 64.0) for column in np.linalg.qr(np.random.default_rng(0).normal(size=(64, number)))[0].T
    ]


@pytest.mark.parametrize("number", [2, 5, 20])
def test_unrelated_comparisons_are_those_of_sidak(number: int) -> None:
    assert joint_level(orthogonal(number)) ** number == pytest.approx(0.95, abs=CHANCE)


def test_the_same_comparison_twice_counts_once() -> None:
    (single,) = orthogonal(1)
    assert joint_level([single]) == 0.95
    assert joint_level([single] * 7, level=0.9) == pytest.approx(0.9, abs=2 * CHANCE)


@pytest.mark.parametrize("number", [3, 5])
def test_all_pairs_of_unrelated_methods_are_those_of_tukey(number: int) -> None:
    pairs = [first.minus(second) for first, second in combinations(orthogonal(number), 2)]
    bound = norm.ppf((1 + joint_level(pairs)) / 2)
    assert studentized_range.cdf(bound * math.sqrt(2), number, np.inf) == pytest.approx(0.95, abs=CHANCE)


def test_statistics_of_other_targets_count_as_unrelated() -> None:
    (first,) = orthogonal(1)
    other = influence_on_mean(np.random.default_rng(1).normal(size=10))
    assert joint_level([first, first, other]) ** 2 == pytest.approx(0.95, abs=CHANCE)


def test_what_no_target_moves_needs_no_care() -> None:
    exact = Influence(0.1, np.zeros(64), 64.0)
    unknown = Influence(0.1, np.full(64, math.nan), 64.0)
    assert joint_level([exact, unknown, *orthogonal(1)]) == 0.95
    assert joint_level([]) == 0.95
