"""Several methods over the same pairs get the statistics that each would get alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attree.errors import ArgumentError
from attree.metrics import FaithfulnessComparison, faithfulness
from attree.metrics.functional import Ranking, auroc, faithfulness_statistics


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


def expected(scores: dict[str, Tensor], *others: Tensor) -> dict[str, dict[str, Tensor]]:
    return {name: faithfulness_statistics(values.double(), *others) for name, values in scores.items()}


def test_fixed_columns_that_change_after_all_are_read_anew() -> None:
    scores, *others = columns()
    metric = FaithfulnessComparison(scores, fixed=["random 0"])
    for shift in range(3):
        metric.reset()
        now = {name: values.roll(shift) for name, values in scores.items()}
        metric.update(now, *others)
        assert metric.compute() == expected(now, *others)


def test_fixed_columns_changed_in_place_are_read_anew() -> None:
    scores, *others = columns()
    scores = {name: values.double() for name, values in scores.items()}
    metric = FaithfulnessComparison(scores, fixed=["random 0"])
    for _ in range(2):
        metric.reset()
        metric.update(scores, *others)
        assert metric.compute() == expected(scores, *others)
        scores["random 0"].copy_(scores["random 0"].roll(1))


def test_forward_gives_the_batch_and_keeps_the_whole() -> None:
    scores, *others = columns()
    metric = FaithfulnessComparison(scores, fixed=["random 0"])
    for part in (slice(0, 30), slice(30, None)):
        batch = {name: values[part] for name, values in scores.items()}
        rest = [column[part] for column in others]
        assert metric(batch, *rest) == expected(batch, *rest)
    assert metric.compute() == expected(scores, *others)


def test_fixed_columns_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, *others = columns()
    metric = FaithfulnessComparison(scores, fixed=["random 0"])
    ranked = []
    monkeypatch.setattr(faithfulness, "Ranking", lambda values: ranked.append(values) or Ranking(values))
    for _ in range(3):
        metric.reset()
        for part in (slice(0, 25), slice(25, None)):
            batch = {name: values[part] for name, values in scores.items()}
            metric.update(batch, *(column[part] for column in others))
        assert metric.compute() == expected(scores, *others)
    assert sum(values.equal(scores["random 0"].double()) for values in ranked) == 1
    assert sum(values.equal(scores["bad"].double()) for values in ranked) == 3


def test_a_fixed_method_is_one_of_the_methods() -> None:
    with pytest.raises(ArgumentError, match=r"`fixed` to be names among gatt, random, but got \['rnadom'\]"):
        FaithfulnessComparison(["gatt", "random"], fixed=["rnadom"])


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
    message = r"`changed` to be 0 or 1 everywhere, but got \[3.0\]"
    with pytest.raises(ArgumentError, match=message):
        metric.compute()
    with pytest.raises(ArgumentError, match=message):
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
