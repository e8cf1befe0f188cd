"""Influences of targets, and intervals, against derivatives of statistics that are written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics.functional import faithfulness_influences, faithfulness_statistics, interval_of
from attree.metrics.functional.concordance import concordance_by_point
from attree.metrics.functional.influence import Influence, influence_on_mean
from attree.metrics.functional.intervals import quantile
from attree.metrics.functional.ranking import Ranking
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


@pytest.mark.parametrize("targets", [12, 25])
def test_influences_are_the_derivatives_by_the_weight_of_a_target(targets: int) -> None:
    scores, delta_pc, delta_ne, changed, owner = columns(targets, largest=20)
    influences = faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, changed, owner)
    values = faithfulness_statistics(scores, delta_pc, delta_ne, changed)
    against = {"pc": delta_pc, "ne": delta_ne, "p": changed}
    for (_, name), influence in influences.items():
        assert influence.value == pytest.approx(float(values[name]), abs=ROUNDING)
        if name == "faithfulness":
            continue
        measure, _, statistic = name.partition("_")
        arguments = statistic, scores.double().numpy(), against[measure].double().numpy(), owner.numpy()
        expected, effective = corrected(*arguments)
        np.testing.assert_allclose(influence.by_target, expected, atol=ROUNDING)
        assert influence.effective == pytest.approx(effective)
        assert derivatives(*arguments).sum() == pytest.approx(0.0, abs=ROUNDING)
        assert interval_of(influence) == pytest.approx(interval(*arguments), abs=ROUNDING)
    mean = np.mean([influences["gatt", name].by_target for name in values if name != "faithfulness"], axis=0)
    np.testing.assert_allclose(influences["gatt", "faithfulness"].by_target, mean)


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
        assert not math.isnan(interval_of(influence_on_mean(values[:number] - 0.2, "correlations"))[0])
        # A difference of two methods is not near its bound.
        assert not math.isnan(interval_of(near_one.minus(influence_on_mean(values[:number] ** 2)))[0])


def test_an_interval_stays_where_its_statistic_can_be() -> None:
    by_target = np.full(20, 0.1)
    assert interval_of(Influence(0.99, by_target, 20.0, "correlation"))[1] <= 1
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
    scores, delta_pc, delta_ne, changed, owner = columns(targets=12)
    constant = {"constant": torch.ones_like(scores)}
    influences = faithfulness_influences(constant, delta_pc, delta_ne, torch.zeros_like(changed), owner)
    assert all(math.isnan(end) for influence in influences.values() for end in interval_of(influence))
    assert faithfulness_influences({"gatt": scores[:0]}, *(c[:0] for c in (delta_pc, delta_ne, changed, owner))) == {}
    with pytest.raises(ArgumentError, match="`owner`"):
        faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, changed, owner.flip(0))
    one_target = faithfulness_influences({"gatt": scores}, delta_pc, delta_ne, changed, torch.zeros_like(owner))
    assert all(math.isnan(end) for influence in one_target.values() for end in interval_of(influence))


@pytest.mark.parametrize(("changing", "has_interval"), [(9, False), (19, False), (20, True)])
def test_an_auroc_counts_the_targets_that_decide_it_not_their_pairs(changing: int, has_interval: bool) -> None:
    """With 40 targets, at least half of them need a changed prediction, however many pairs change."""
    owner = torch.arange(40).repeat_interleave(50)
    scores = torch.rand(owner.numel(), generator=torch.Generator().manual_seed(0))
    changed = (owner < changing) & (torch.arange(owner.numel()) % 2 == 0)
    influences = faithfulness_influences({"gatt": scores}, scores, scores, changed, owner)
    for statistic in ("p_auroc", "faithfulness"):
        assert math.isnan(interval_of(influences["gatt", statistic])[0]) != has_interval


def test_an_auroc_near_one_has_no_interval_unless_ten_targets_lose_a_comparison() -> None:
    owner = torch.arange(40).repeat_interleave(10)
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
