"""Influences of targets, and intervals, against derivatives of statistics that are written from their definitions."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics.functional import Ranking, faithfulness_influences, faithfulness_statistics, interval_of
from attree.metrics.functional.correlation import concordance_by_point
from attree.metrics.functional.influence import Influence, influence_on_mean
from attree.metrics.functional.intervals import is_beyond_chance, quantile
from helpers.influence import corrected, derivatives, interval

# Sums of at most 10^7 terms of at most 1 in float64, divided by sums of the same size: errors stay below 10^7 * 2^-53.
ROUNDING = 1e-9


def columns(targets: int, largest: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scores, effects and owners: with ties in all, and effects that differ from target to target."""
    generator = torch.Generator().manual_seed(1)
    owner = torch.repeat_interleave(torch.randint(5, largest, (targets,), generator=generator))
    scores = (torch.rand(owner.numel(), generator=generator) * 8).round()
    effect = torch.randn(targets, generator=generator)[owner]
    delta_pc = scores + 3 * torch.randn(owner.numel(), generator=generator) + effect
    delta_pc[torch.rand(owner.numel(), generator=generator) < 0.4] = 0.0
    delta_ne = (scores * effect).round()
    return scores, delta_pc.double(), delta_ne, delta_pc > delta_pc.quantile(0.8), owner


@pytest.mark.parametrize("targets", [50, 60])
def test_influences_are_the_derivatives_by_the_weight_of_a_target(targets: int) -> None:
    scores, delta_pc, delta_ne, changed, owner = columns(targets, largest=12)
    influences = faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, changed, owner)
    values = faithfulness_statistics(scores, delta_pc, delta_ne, changed)
    against = {"pc": delta_pc, "ne": delta_ne, "p": changed}
    for (_, name), influence in influences.items():
        assert influence.value == pytest.approx(float(values[name]), abs=ROUNDING)
        if name == "faithfulness" or name.endswith("_pearson"):
            assert np.isnan(influence.by_target).all(), "a few targets decide Pearson's correlation, and means with it"
            assert all(math.isnan(end) for end in interval_of(influence))
            continue
        measure, _, statistic = name.partition("_")
        arguments = statistic, scores.double().numpy(), against[measure].double().numpy(), owner.numpy()
        expected, effective = corrected(*arguments)
        np.testing.assert_allclose(influence.by_target, expected, atol=ROUNDING)
        assert influence.effective == pytest.approx(effective)
        assert derivatives(*arguments).sum() == pytest.approx(0.0, abs=ROUNDING)
        assert interval_of(influence) == pytest.approx(interval(*arguments), abs=ROUNDING)


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).exponential(size=15)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    influence = influence_on_mean(np.append(values, np.nan))
    assert interval_of(influence) == pytest.approx((expected.low, expected.high))
    other = np.random.default_rng(1).exponential(size=16)
    difference = influence_on_mean(np.append(values, 1.0)).minus(influence_on_mean(other))
    paired = stats.ttest_rel(np.append(values, 1.0), other).confidence_interval(0.9)
    assert interval_of(difference, 0.9) == pytest.approx((paired.low, paired.high))
    assert quantile(7.5, 0.99) == pytest.approx(stats.t.ppf(0.995, 7.5))


def test_a_mean_of_correlations_near_one_needs_many_targets() -> None:
    values = np.linspace(0.6, 1.0, 60)
    for number, has_interval in ((49, False), (50, True)):
        near_one = influence_on_mean(values[-number:], "correlations")
        assert math.isnan(interval_of(near_one)[0]) != has_interval
        middle = influence_on_mean(values[:number] - 0.2, "correlations")
        assert not math.isnan(interval_of(middle)[0])
        assert math.isnan(interval_of(near_one.minus(middle))[0]) != has_interval


@pytest.mark.parametrize("targets", [49, 50])
def test_pooled_statistics_need_fifty_targets(targets: int) -> None:
    scores, delta_pc, delta_ne, _, owner = columns(targets, largest=9)
    influences = faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, delta_pc > 0, owner)
    for statistic in ("pc_kendall", "ne_spearman", "p_auroc"):
        assert math.isnan(interval_of(influences["gatt", statistic])[0]) == (targets < 50)


def test_targets_drawn_from_finitely_many_say_more_of_them() -> None:
    """By the variance of a mean of draws without replacement, over all samples of three out of six."""
    values = np.array([1.0, 2.0, 4.0, 7.0, 11.0, 20.0])
    samples = np.array(list(combinations(values, 3)))
    errors = [influence_on_mean(sample).out_of(6).error for sample in samples]
    assert np.mean(np.square(errors)) == pytest.approx(samples.mean(axis=1).var())
    whole = influence_on_mean(values).out_of(6)
    assert whole.error == 0
    assert whole.value == values.mean()


def test_a_difference_with_too_few_targets_for_an_interval_is_certain_if_unseen_targets_cannot_turn_it() -> None:
    """20 targets miss a share of 1 - 0.05 ** (1 / 20) with probability 0.05; with all of it at -2, the mean is 0."""
    near_one = influence_on_mean(np.tile([0.9, 1.0], 10), "correlations")
    unseen = 1 - 0.05 ** (1 / 20)
    turning = 2 * unseen / (1 - unseen)
    for shift, is_certain in ((1e-6, True), (-1e-6, False)):
        half = stats.t.ppf(0.975, 19) * stats.sem(np.tile([0.9, 1.0], 10))
        other = influence_on_mean(np.full(20, 0.95 - half - turning - shift), "correlations")
        difference = near_one.minus(other)
        assert math.isnan(interval_of(difference)[0])
        assert is_beyond_chance(difference) == is_certain
    assert not is_beyond_chance(influence_on_mean(np.tile([0.4, 0.5], 10), "correlations"))  # it has an interval


def test_heavy_tails_widen_the_interval_of_many_targets() -> None:
    even, heavy = np.tile([-1.0, 1.0], 50), np.append(np.zeros(98), [-1.0, 1.0])
    for values, freedom in ((even, 99.0), (heavy, 2 / ((50 - 3) / 100 + 2 / 99))):
        low, high = interval_of(influence_on_mean(values))
        assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, freedom) * stats.sem(values))


def test_an_interval_stays_where_its_statistic_can_be() -> None:
    by_target = np.full(20, 0.1)
    assert interval_of(Influence(0.99, by_target, 20.0, "correlation"))[1] <= 1  # Fisher's z
    assert interval_of(Influence(0.99, by_target, 20.0, "probability"))[1] <= 1
    assert interval_of(Influence(0.99, by_target, 20.0, "mean"))[1] > 1


def test_methods_are_moved_by_the_same_targets() -> None:
    scores, *others = columns(targets=60)
    influences = faithfulness_influences({"once": scores, "twice": 2 * scores, "minus": -scores}, *others)
    np.testing.assert_array_equal(
        influences["once", "pc_kendall"].by_target, influences["twice", "pc_kendall"].by_target
    )
    np.testing.assert_allclose(
        influences["once", "pc_spearman"].by_target, -influences["minus", "pc_spearman"].by_target, atol=ROUNDING
    )
    nothing = influences["once", "pc_kendall"].minus(influences["twice", "pc_kendall"])
    assert all(math.isnan(end) for end in interval_of(nothing))


def test_what_is_undefined_has_no_interval() -> None:
    scores, delta_pc, delta_ne, changed, owner = columns(targets=55, largest=9)
    constant = {"constant": torch.ones_like(scores)}
    influences = faithfulness_influences(constant, delta_pc, delta_ne, torch.zeros_like(changed), owner)
    assert all(math.isnan(end) for influence in influences.values() for end in interval_of(influence))
    assert faithfulness_influences({"gatt": scores[:0]}, *(c[:0] for c in (delta_pc, delta_ne, changed, owner))) == {}
    with pytest.raises(ArgumentError, match="`owner`"):
        faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, changed, owner.flip(0))
    one_target = faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, changed, torch.zeros_like(owner))
    assert all(math.isnan(end) for influence in one_target.values() for end in interval_of(influence))


@pytest.mark.parametrize(("changing", "has_interval"), [(9, False), (29, False), (30, True)])
def test_an_auroc_counts_the_targets_that_decide_it_not_their_pairs(changing: int, has_interval: bool) -> None:
    """With 60 targets, at least half of them need a changed prediction, however many pairs change."""
    owner = torch.arange(60).repeat_interleave(50)
    scores = torch.rand(owner.numel(), generator=torch.Generator().manual_seed(0))
    changed = (owner < changing) & (torch.arange(owner.numel()) % 2 == 0)
    influences = faithfulness_influences({"gatt": scores}, scores, scores, changed, owner)
    assert math.isnan(interval_of(influences["gatt", "p_auroc"])[0]) != has_interval


def test_an_auroc_near_one_has_no_interval_unless_ten_targets_lose_a_comparison() -> None:
    owner = torch.arange(60).repeat_interleave(10)
    changed = torch.arange(owner.numel()) % 10 == 0
    for losing, has_interval in ((0, False), (9, False), (10, True)):
        # The changed pair has the highest score, but in `losing` targets it ties with others.
        scores = changed.double() * (owner >= losing)
        influences = faithfulness_influences({"gatt": scores}, scores, scores, changed, owner)
        assert math.isnan(interval_of(influences["gatt", "p_auroc"])[0]) != has_interval


def test_concordance_of_every_point_by_comparing_all() -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        count = int(torch.randint(1, 80, (), generator=generator))
        x, y = (torch.randint(0, 1 + seed, (count,), generator=generator).float() for _ in range(2))
        expected = ((x[:, None] - x).sign() * (y[:, None] - y).sign()).sum(dim=1)
        np.testing.assert_array_equal(concordance_by_point(Ranking(x), Ranking(y)), expected.numpy())
