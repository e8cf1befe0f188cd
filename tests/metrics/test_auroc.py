"""AUROC, pooled and by target, against scikit-learn and its definition."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from attree.errors import ArgumentError
from attree.metrics import TruthAUROC
from attree.metrics.functional import Ranking, auroc, auroc_by_target
from helpers.statistics import auroc_by_definition, half_a_million, many_ties, mostly_zeros, same, some_values


@given(st.lists(st.tuples(some_values, st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_auroc_is_the_chance_that_a_positive_wins(points: list[tuple[float, bool]]) -> None:
    scores, labels = [p[0] for p in points], [p[1] for p in points]
    ours = auroc(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels, dtype=torch.bool))
    same(ours, auroc_by_definition(scores, labels))


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.integers(5, 9)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_auroc_by_target_is_the_mean_of_each_targets(points: list[tuple[int, bool, int]]) -> None:
    values = []
    for target in {p[2] for p in points}:
        own = [p for p in points if p[2] == target]
        values.append(auroc_by_definition([p[0] for p in own], [p[1] for p in own]))
    values = [value for value in values if not math.isnan(value)]
    scores, labels, targets = torch.tensor([list(map(int, p)) for p in points]).reshape(-1, 3).long().T
    same(auroc_by_target(scores, labels, targets), float(np.mean(values)) if values else math.nan)


@pytest.mark.parametrize("share", [0.0, 0.95])
def test_auroc_equals_scikit_learn_on_half_a_million(share: float) -> None:
    _, scores = half_a_million(share)
    labels = np.random.default_rng(2).random(len(scores)) < 0.01
    same(auroc(torch.from_numpy(scores), torch.from_numpy(labels)), roc_auc_score(labels, scores))


def test_a_hundred_thousand_ties_do_not_overflow() -> None:
    x, y = many_ties()
    same(auroc(torch.from_numpy(x), torch.from_numpy(y > 0)), roc_auc_score(y > 0, x))


@given(mostly_zeros(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_auroc_of_plain_and_of_ranked_scores_equals_scikit_learn(values: list[float], seed: int) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    labels = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) < 0.4
    both = 0 < int(labels.sum()) < len(values)
    # Ranks are in the same order, and finite, as scikit-learn wants scores to be.
    expected = roc_auc_score(labels, stats.rankdata(values)) if both else math.nan
    for column in (scores, Ranking(scores)):
        assert auroc(column, labels).item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_scores_far_outside_the_unit_interval_are_not_squashed() -> None:
    scores = torch.tensor([-1e30, 40.0, 41.0, 800.0, 801.0, 1e30])
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    same(auroc(scores, labels), roc_auc_score(labels, scores.double()))
    same(auroc(scores, labels), auroc(torch.arange(6), labels).item())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.float64])
def test_labels_of_every_dtype(dtype: torch.dtype) -> None:
    scores, labels = torch.tensor([-30.0, 2.0, 2.0, 900.0]), torch.tensor([0, 0, 1, 1]).to(dtype)
    assert auroc(scores, labels).item() == 0.875


def test_auroc_of_one_class_is_nan() -> None:
    for labels in (torch.zeros(4), torch.ones(4)):
        assert auroc(torch.arange(4.0), labels).isnan()
        assert auroc_by_target(torch.arange(4.0), labels, torch.tensor([0, 0, 1, 1])).isnan()
    assert auroc(torch.empty(0), torch.empty(0)).isnan()
    assert auroc_by_target(torch.empty(0), torch.empty(0), torch.empty(0)).isnan()


def test_nan_makes_the_result_nan() -> None:
    clean, dirty = torch.arange(5.0), torch.tensor([0.0, 1.0, math.nan, 3.0, 0.5])
    labels, target = torch.tensor([0, 1, 0, 1, 1]), torch.zeros(5)
    assert auroc(dirty, labels).isnan()
    assert auroc(clean, dirty).isnan()
    assert auroc_by_target(dirty, labels, target).isnan()
    assert auroc_by_target(clean, labels, target * dirty).isnan()


def test_truth_auroc_pools_or_averages() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(300, generator=generator), torch.rand(300, generator=generator) < 0.4
    target = torch.randint(0, 12, (300,), generator=generator) * 1000
    labels[target == 3000] = False
    pool, mean = TruthAUROC(), TruthAUROC(average="target")
    for chunk in torch.arange(300).split(70):
        pool.update(scores[chunk], labels[chunk], target[chunk])
        mean.update(scores[chunk], labels[chunk], target=target[chunk])
    own = [roc_auc_score(labels[target == t], scores[target == t]) for t in target.unique() if t != 3000]
    assert pool.compute().item() == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert mean.compute().item() == pytest.approx(sum(own) / len(own), abs=1e-12)
    assert pickle.loads(pickle.dumps(mean)).compute().equal(mean.compute())


def test_errors_name_the_argument() -> None:
    x = torch.arange(4.0)
    with pytest.raises(ArgumentError, match=r"`labels` to be 0 or 1 everywhere, but got \[2.0\]"):
        auroc(x, x)
    with pytest.raises(ArgumentError, match="`target`"):
        auroc_by_target(x, x > 1, x[:2])
    with pytest.raises(ArgumentError, match="`average`"):
        TruthAUROC(average="macro")
    with pytest.raises(ArgumentError, match="`target` to be given"):
        TruthAUROC(average="target").update(x, x > 1)
