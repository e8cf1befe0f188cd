"""Intervals against plain resampling with SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attree.paper.cells import bootstrap
from attree.paper.cells.bootstrap import intervals

TARGETS, DRAWS = 12, 150


def columns() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(5, 30, (TARGETS,), generator=generator)
    owner = torch.repeat_interleave(torch.arange(TARGETS), sizes)
    scores = (torch.rand(owner.numel(), generator=generator) * 8).round()  # with ties
    effect = torch.randn(TARGETS, generator=generator)[owner]
    delta_pc = scores + 3 * torch.randn(owner.numel(), generator=generator) + effect
    delta_ne = (scores * effect).round()
    return scores, delta_pc, delta_ne, delta_pc > delta_pc.quantile(0.8), owner


def test_intervals_are_those_of_plain_resampling() -> None:
    scores, delta_pc, delta_ne, changed, owner = columns()
    found = intervals({"gatt": scores}, delta_pc, delta_ne, changed, owner, {}, draws=DRAWS)
    picked = torch.randint(TARGETS, (DRAWS, TARGETS), generator=torch.Generator().manual_seed(0))
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
    assert {statistic for _, statistic in found} == set(drawn)
    for statistic, values in drawn.items():
        np.testing.assert_allclose(found["gatt", statistic], np.quantile(values, [0.025, 0.975]), atol=1e-6)


def test_thinned_intervals_lie_about_the_value_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, delta_pc, delta_ne, changed, owner = columns()
    tau = float(kendalltau(scores, delta_pc).statistic)
    full = intervals({"gatt": scores}, delta_pc, delta_ne, changed, owner, {}, draws=DRAWS)["gatt", "pc_kendall"]
    monkeypatch.setattr(bootstrap, "RANKED_PAIRS", 100)
    values = {("gatt", "pc_kendall"): tau}
    thin = intervals({"gatt": scores}, delta_pc, delta_ne, changed, owner, values, draws=DRAWS)["gatt", "pc_kendall"]
    assert thin[0] < tau < thin[1]
    assert 0.5 < (thin[1] - thin[0]) / (full[1] - full[0]) < 3


def test_what_is_undefined_has_no_interval() -> None:
    scores, delta_pc, delta_ne, changed, owner = columns()
    found = intervals({"constant": torch.ones_like(scores)}, delta_pc, delta_ne, torch.zeros_like(changed), owner, {})
    assert all(np.isnan(ends).all() for ends in found.values())
    assert intervals({"gatt": scores[:0]}, delta_pc[:0], delta_ne[:0], changed[:0], owner[:0], {}) == {}
