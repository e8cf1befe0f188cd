"""Ranks of columns of mostly zeros, of integers, with NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from attree.metrics.functional import Ranking, auroc, kendall, pearson, spearman
from helpers.statistics import mostly_zeros, same


@given(mostly_zeros())
@example([])
@example([0.0])
@example([-0.0, 0.0, 0.0])
@example([1.0, 0.0])
@example([-1.0, 0.0])
@example([0.0, -0.0, math.inf, -math.inf])
@settings(max_examples=60, deadline=None)
def test_zeros_rank_where_they_stand(values: list[float]) -> None:
    ranking = Ranking(torch.tensor(values, dtype=torch.float64))
    distinct, counts = np.unique(np.array(values) + 0.0, return_counts=True)
    assert ranking.midranks[ranking.dense].tolist() == stats.rankdata(values).tolist()
    assert ranking.dense.tolist() == np.searchsorted(distinct, values).tolist()
    assert ranking.counts.tolist() == counts.tolist()
    assert not ranking.has_nan
    assert ranking.defined == (len(distinct) > 1)


def test_ranking_describes_its_values() -> None:
    values = torch.tensor([3.0, -1.0, 3.0, math.inf, 0.0, -0.0, 3.0])
    ranking = Ranking(values)
    assert ranking.midranks[ranking.dense].tolist() == stats.rankdata(values).tolist()
    assert ranking.counts.tolist() == [1, 2, 3, 1]
    assert all(a < b for a, b in pairwise(ranking.midranks))
    assert len(ranking) == 7
    assert len(Ranking(torch.empty(0)).counts) == 0


@given(st.lists(st.sampled_from([-(2**62), -(2**62) + 1, -1, 0, 0, 0, 0, 1, 2**62, 2**62 + 1]), max_size=30))
@settings(max_examples=40, deadline=None)
def test_integers_rank_exactly(values: list[int]) -> None:
    ranking = Ranking(torch.tensor(values, dtype=torch.int64))
    distinct, counts = np.unique(np.array(values, dtype=np.int64), return_counts=True)
    assert ranking.dense.tolist() == np.searchsorted(distinct, values).tolist()
    assert ranking.counts.tolist() == counts.tolist()


def test_integers_beyond_the_float64_mantissa_are_told_apart() -> None:
    scores = torch.tensor([2**60, 2**60 + 1])
    same(kendall(scores, torch.tensor([0, 1])), 1.0)
    same(auroc(scores, torch.tensor([False, True])), 1.0)


@given(st.lists(st.sampled_from([0, 0, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]), max_size=30))
@settings(max_examples=40, deadline=None)
def test_unsigned_integers_beyond_int64_rank_exactly(values: list[int]) -> None:
    array = np.array(values, dtype=np.uint64)
    ranking = Ranking(torch.from_numpy(array))
    distinct, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    assert ranking.dense.tolist() == inverse.tolist()
    assert ranking.counts.tolist() == counts.tolist()
    assert ranking.defined == (len(distinct) > 1)


def test_statistics_of_unsigned_integers_beyond_int64() -> None:
    scores = torch.from_numpy(np.array([2**63 + 5, 3, 2**64 - 1, 2**63 + 4], dtype=np.uint64))
    order = torch.tensor([2, 0, 3, 1])
    for function in (kendall, spearman):
        same(function(scores, order), 1.0)
    same(pearson(scores, order), stats.pearsonr([2.0**63 + 5, 3, 2.0**64, 2.0**63 + 4], order).statistic)
    for column in (scores, Ranking(scores)):
        same(auroc(column, order > 1), 1.0)


@pytest.mark.parametrize("zeros", [0, 3, 20])
@pytest.mark.parametrize("sign", [math.nan, -math.nan])
def test_nan_is_seen_among_any_number_of_zeros(zeros: int, sign: float) -> None:
    dirty = torch.tensor([1.0, sign, -math.inf, *[0.0] * zeros], dtype=torch.float64)
    clean = torch.arange(len(dirty))
    labels = clean % 2 == 0
    assert Ranking(dirty).has_nan
    assert not Ranking(dirty).defined
    for function in (pearson, spearman, kendall):
        assert function(Ranking(dirty), clean).isnan()
        assert function(clean, Ranking(dirty)).isnan()
    for scores in (dirty, Ranking(dirty)):
        assert auroc(scores, labels).isnan()


@pytest.mark.parametrize("function", [pearson, spearman, kendall, auroc])
def test_threads_and_several_columns_share_a_ranking(
    function: Callable[[Tensor | Ranking, Tensor | Ranking], Tensor],
) -> None:
    """A ranking lends memory for products: what one statistic leaves there must not enter another."""
    generator = torch.Generator().manual_seed(0)
    columns = [torch.rand(20_000, generator=generator, dtype=torch.float64) for _ in range(8)]
    labels = torch.rand(20_000, generator=generator) > 0.7
    expected = [float(function(column, labels)) for column in columns]
    shared = Ranking(labels)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda column: float(function(Ranking(column), shared)), columns)) == expected
    assert [float(function(Ranking(column), shared)) for column in columns] == expected
