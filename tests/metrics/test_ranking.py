"""The shortcuts of ranks: columns of mostly zeros, plain columns, the largest group of ties, labels checked once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics import FaithfulnessComparison
from attree.metrics.functional import Ranking, auroc, faithfulness_statistics, kendall, pearson, spearman

zeros = st.sampled_from([0.0, -0.0])
not_zero = st.one_of(
    st.sampled_from([-math.inf, -3.5, -5e-324, 5e-324, 2.0, 2.0, math.inf]),
    st.floats(-1e6, 1e6).filter(bool),
)


@st.composite
def mostly_zeros(draw: st.DrawFn) -> list[float]:
    """Values of which just under half, exactly half, more or all are 0, of either sign, in any order."""
    others = draw(st.lists(not_zero, max_size=25))
    fewest = max(len(others) - 1, 0)
    added = draw(st.lists(zeros, min_size=fewest, max_size=fewest + 25))
    return draw(st.permutations(others + added))


@given(mostly_zeros())
@example([])
@example([0.0])
@example([-0.0, 0.0, 0.0])
@example([1.0, 0.0])
@example([-1.0, 0.0])
@example([0.0, -0.0, math.inf, -math.inf])
@settings(max_examples=300, deadline=None)
def test_zeros_rank_where_they_stand(values: list[float]) -> None:
    ranking = Ranking(torch.tensor(values, dtype=torch.float64))
    distinct, counts = np.unique(np.array(values) + 0.0, return_counts=True)
    assert ranking.midranks[ranking.dense].tolist() == stats.rankdata(values).tolist()
    assert ranking.dense.tolist() == np.searchsorted(distinct, values).tolist()
    assert ranking.counts.tolist() == counts.tolist()
    assert not ranking.has_nan
    assert ranking.defined == (len(distinct) > 1)


@given(st.lists(st.sampled_from([-(2**62), -(2**62) + 1, -1, 0, 0, 0, 0, 1, 2**62, 2**62 + 1]), max_size=30))
@settings(max_examples=100, deadline=None)
def test_integers_rank_exactly(values: list[int]) -> None:
    ranking = Ranking(torch.tensor(values, dtype=torch.int64))
    distinct, counts = np.unique(np.array(values, dtype=np.int64), return_counts=True)
    assert ranking.dense.tolist() == np.searchsorted(distinct, values).tolist()
    assert ranking.counts.tolist() == counts.tolist()


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


@given(mostly_zeros(), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_auroc_of_plain_and_of_ranked_scores_equals_scikit_learn(values: list[float], seed: int) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    labels = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) < 0.4
    both = 0 < int(labels.sum()) < len(values)
    # Ranks are in the same order, and finite, as scikit-learn wants scores to be.
    expected = roc_auc_score(labels, stats.rankdata(values)) if both else math.nan
    for column in (scores, Ranking(scores)):
        assert auroc(column, labels).item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.float64])
def test_labels_of_every_dtype(dtype: torch.dtype) -> None:
    scores, labels = torch.tensor([-30.0, 2.0, 2.0, 900.0]), torch.tensor([0, 0, 1, 1]).to(dtype)
    assert auroc(scores, labels).item() == 0.875


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


def columns(n: int = 60) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    good, bad, noise, delta_pc, delta_ne = torch.rand(5, n, generator=torch.Generator().manual_seed(0))
    delta_pc = delta_pc.masked_fill(noise < 0.6, 0.0)
    scores = {"good one": good + delta_pc, "bad": bad, "random 0": noise.round(decimals=1)}
    return scores, delta_pc, delta_ne - delta_pc, delta_pc > 0.5


def test_comparison_gives_each_method_its_statistics_epoch_by_epoch() -> None:
    scores, delta_pc, delta_ne, changed = columns()
    metric = FaithfulnessComparison(scores, fixed=["random 0"])
    for epoch in range(2):
        now = {name: values if name == "random 0" else values + epoch * delta_pc for name, values in scores.items()}
        metric.reset()
        for part in (slice(0, 25), slice(25, None)):
            batch = {name: values[part] for name, values in now.items()}
            metric.update(batch, delta_pc[part] + epoch, delta_ne[part], changed[part])
        for name, values in metric.compute().items():
            assert values == faithfulness_statistics(now[name].double(), delta_pc + epoch, delta_ne, changed)


def test_comparison_of_undefined_labels_is_undefined() -> None:
    scores, delta_pc, delta_ne, changed = columns()
    metric = FaithfulnessComparison(scores)
    metric.update(scores, delta_pc, delta_ne, changed.double().index_fill(0, torch.tensor([7]), math.nan))
    for values in metric.compute().values():
        assert [name for name, value in values.items() if value.isnan()] == ["p_auroc", "faithfulness"]


def test_errors_name_the_argument_of_whoever_was_called() -> None:
    scores, delta_pc, delta_ne, changed = columns()
    wrong = changed.double().index_fill(0, torch.tensor([7]), 3.0)
    metric = FaithfulnessComparison(scores)
    metric.update(scores, delta_pc, delta_ne, wrong)
    expected = r"`changed` to be 0 or 1 everywhere, but got \[3.0\]"
    with pytest.raises(ArgumentError, match=expected):
        metric.compute()
    with pytest.raises(ArgumentError, match=expected):
        faithfulness_statistics(scores["bad"], delta_pc, delta_ne, wrong)
    with pytest.raises(ArgumentError, match=r"`labels` to be 0 or 1 everywhere, but got \[3.0\]"):
        auroc(scores["bad"], wrong)
    with pytest.raises(ArgumentError, match="`delta_ne` to be of length 60 as `delta_pc` is, but got 59"):
        metric.update(scores, delta_pc, delta_ne[1:], changed)
    with pytest.raises(ArgumentError, match="`bad` to be a tensor, but got 'list'"):
        metric.update({**scores, "bad": [1.0]}, delta_pc, delta_ne, changed)
    with pytest.raises(ArgumentError, match="`scores` to be scores of good one, bad, random 0"):
        metric.update({"bad": scores["bad"]}, delta_pc, delta_ne, changed)


def test_comparison_refuses_methods_named_like_its_columns() -> None:
    with pytest.raises(ArgumentError, match=r"`methods`.*delta_ne.*\['changed'\]"):
        FaithfulnessComparison(["gatt", "changed"])
