"""Resampled statistics against plain resampling with SciPy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics.functional import bootstrap, correlation_bootstrap
from attree.metrics.functional.bootstrap import percentile_interval, resample_targets, resampled_faithfulness
from attree.metrics.functional.concordance import concordance_by_point
from attree.metrics.functional.faithfulness import STATISTICS, faithfulness_statistics
from attree.metrics.functional.ranking import Ranking

RESAMPLES = 40


def columns(targets: int, largest: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scores, effects and owners: with ties in all, and effects that differ from target to target."""
    generator = torch.Generator().manual_seed(1)
    owner = torch.repeat_interleave(torch.randint(5, largest, (targets,), generator=generator))
    scores = (torch.rand(owner.numel(), generator=generator) * 8).round()
    effect = torch.randn(targets, generator=generator)[owner]
    delta_pc = scores + 3 * torch.randn(owner.numel(), generator=generator) + effect
    delta_pc[torch.rand(owner.numel(), generator=generator) < 0.4] = 0.0
    delta_ne = (scores * effect).round()
    return scores, delta_pc, delta_ne, delta_pc > delta_pc.quantile(0.8), owner


def plainly(
    scores: Tensor, delta_pc: Tensor, delta_ne: Tensor, changed: Tensor, owner: Tensor, resamples: int
) -> dict[str, list[float]]:
    """Each statistic of each resample: the drawn targets' pairs, repeated as often as they were drawn."""
    targets = int(owner.max()) + 1
    picked = torch.randint(targets, (resamples, targets), generator=torch.Generator().manual_seed(0))
    drawn: dict[str, list[float]] = {}
    for row in picked:
        index = torch.cat([(owner == target).nonzero().view(-1) for target in row])
        x = scores[index].numpy()
        for name, delta in (("pc", delta_pc), ("ne", delta_ne)):
            y = delta[index].numpy()
            drawn.setdefault(f"{name}_pearson", []).append(float(np.corrcoef(x, y)[0, 1]))
            drawn.setdefault(f"{name}_kendall", []).append(float(kendalltau(x, y).statistic))
            drawn.setdefault(f"{name}_spearman", []).append(float(spearmanr(x, y).statistic))
        drawn.setdefault("p_auroc", []).append(float(roc_auc_score(changed[index].numpy(), x)))
    return drawn


def test_few_pairs_are_resampled_exactly() -> None:
    scores, *others = columns(targets=12)
    found = resampled_faithfulness({"gatt": scores}, *others, resamples=RESAMPLES)
    expected = plainly(scores, *others, resamples=RESAMPLES)
    for statistic, values in expected.items():
        np.testing.assert_allclose(found["gatt", statistic], values, atol=1e-6)
    mean = np.mean([expected[name] for name in STATISTICS], axis=0)
    np.testing.assert_allclose(found["gatt", "faithfulness"], mean, atol=1e-6)


def test_many_pairs_follow_the_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, *others = columns(targets=60)
    monkeypatch.setattr(bootstrap, "COMPARED", 0)
    assert others[0].numel() > correlation_bootstrap.EXACT_PAIRS
    found = resampled_faithfulness({"gatt": scores}, *others, resamples=RESAMPLES)
    for statistic, values in plainly(scores, *others, resamples=RESAMPLES).items():
        spread = float(np.std(values))
        assert np.sqrt(np.mean((found["gatt", statistic] - values) ** 2)) < 0.25 * spread, statistic
        low, high = percentile_interval(found["gatt", statistic])
        np.testing.assert_allclose((low, high), np.quantile(values, [0.025, 0.975]), atol=0.3 * spread)


def test_the_first_order_starts_from_the_statistic_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, *others = columns(targets=60)
    monkeypatch.setattr(bootstrap, "resample_targets", lambda targets, resamples, seed: np.ones((1, targets)))
    found = resampled_faithfulness({"gatt": scores}, *others)
    for statistic, value in faithfulness_statistics(scores, *others[:3]).items():
        assert found["gatt", statistic][0] == pytest.approx(float(value), abs=1e-12)


def test_thinned_pairs_of_few_targets_lie_about_the_value_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, *others = columns(targets=12, largest=90)
    exact = resampled_faithfulness({"gatt": scores}, *others, resamples=RESAMPLES)
    monkeypatch.setattr(correlation_bootstrap, "THINNED_PAIRS", 150)
    thin = resampled_faithfulness({"gatt": scores}, *others, resamples=RESAMPLES)
    for statistic in ("pc_kendall", "pc_spearman"):
        low, high = percentile_interval(thin["gatt", statistic])
        assert low < float(faithfulness_statistics(scores, *others[:3])[statistic]) < high
        assert 0.4 < (high - low) / float(np.ptp(exact["gatt", statistic])) < 2.5


def test_concordance_of_every_point_by_comparing_all() -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        count = int(torch.randint(1, 80, (), generator=generator))
        x, y = (torch.randint(0, 1 + seed, (count,), generator=generator).float() for _ in range(2))
        expected = ((x[:, None] - x).sign() * (y[:, None] - y).sign()).sum(dim=1)
        np.testing.assert_array_equal(concordance_by_point(Ranking(x), Ranking(y)), expected.numpy())


def test_methods_see_the_same_targets() -> None:
    scores, *others = columns(targets=60)
    found = resampled_faithfulness({"one": scores, "twice": 2 * scores, "other": -scores}, *others)
    np.testing.assert_array_equal(found["one", "pc_kendall"], found["twice", "pc_kendall"])
    np.testing.assert_allclose(found["one", "pc_spearman"], -found["other", "pc_spearman"], atol=1e-12)


def test_what_is_undefined_has_no_interval() -> None:
    scores, delta_pc, delta_ne, changed, owner = columns(targets=12)
    constant = {"constant": torch.ones_like(scores)}
    found = resampled_faithfulness(constant, delta_pc, delta_ne, torch.zeros_like(changed), owner)
    assert all(math.isnan(end) for values in found.values() for end in percentile_interval(values))
    assert (
        resampled_faithfulness({"gatt": scores[:0]}, *(one[:0] for one in (delta_pc, delta_ne, changed, owner))) == {}
    )
    with pytest.raises(ArgumentError, match="`owner`"):
        resampled_faithfulness({"gatt": scores}, delta_pc, delta_ne, changed, owner.flip(0))


def test_every_resample_draws_as_many_targets_as_there_are() -> None:
    drawn = resample_targets(7, resamples=50, seed=3)
    assert drawn.shape == (50, 7)
    assert (drawn.sum(axis=1) == 7).all()
    assert not (drawn == resample_targets(7, resamples=50, seed=4)).all()
