"""The torchmetrics classes do what users of torchmetrics expect."""

from __future__ import annotations

import pickle
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from torchmetrics import Metric

from attree.errors import ArgumentError
from attree.metrics import AUROC, Kendall, Pearson, Spearman, functional
from helpers.statistics import pair_batches, pooled
from helpers.versions import is_older

matplotlib.use("Agg")


PAIRS = [
    (Pearson, functional.pearson),
    (Spearman, functional.spearman),
    (Kendall, functional.kendall),
    (AUROC, functional.auroc),
]


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
def test_updates_accumulate_and_reset_forgets(metric_class: type[Metric], function: Any) -> None:
    metric = metric_class()
    parts = [(scores, changed) for scores, _, _, changed in pair_batches()]
    for part in parts:
        metric.update(*part)
    whole = function(*pooled(parts))
    assert metric.compute().equal(whole)
    assert metric.compute().dtype == torch.float64
    metric.reset()
    metric.update(*parts[0])
    assert metric.compute().equal(function(*parts[0]))


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
def test_forward_gives_the_batch_and_keeps_the_whole(metric_class: type[Metric], function: Any) -> None:
    metric = metric_class()
    parts = [(scores, changed) for scores, _, _, changed in pair_batches(sizes=(30, 20))]
    for part in parts:
        assert metric(*part).equal(function(*part))
    assert metric.compute().equal(function(*pooled(parts)))


@pytest.mark.parametrize("metric_class", [metric_class for metric_class, _ in PAIRS])
def test_pickle_clone_and_state_dict_keep_the_pairs(metric_class: type[Metric]) -> None:
    metric = metric_class()
    scores, _, _, changed = pair_batches()[0]
    metric.update(scores, changed)
    expected = metric.compute()
    assert pickle.loads(pickle.dumps(metric)).compute().equal(expected)
    assert metric.clone().compute().equal(expected)
    assert not metric.state_dict()
    metric.persistent(True)
    fresh = metric_class()
    fresh.load_state_dict(metric.state_dict())
    fresh.update(scores[:0], changed[:0])
    assert fresh.compute().equal(expected)
    other = metric_class()
    other.update(*(column[:7] for column in (scores, changed)))
    if is_older("torchmetrics", "1.5"):  # which cannot merge states
        return
    other.merge_state(metric)
    assert len(other.column("scores")) == len(scores) + 7


@pytest.mark.parametrize("metric_class", [metric_class for metric_class, _ in PAIRS])
def test_nothing_seen_is_nan_with_a_warning(metric_class: type[Metric]) -> None:
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert metric_class().compute().isnan()


def test_half_precision_modules_do_not_round_the_states() -> None:
    metric = Kendall()
    torch.nn.ModuleList([metric]).half()
    scores = 1 + torch.arange(4, dtype=torch.float64) * 1e-9
    metric.update(scores, scores)
    assert metric.compute() == 1


@pytest.mark.parametrize("metric_class", [metric_class for metric_class, _ in PAIRS])
def test_declared_properties_and_plot(metric_class: type[Metric]) -> None:
    metric = metric_class()
    assert metric.is_differentiable is False
    assert metric.higher_is_better is True
    assert metric.plot_upper_bound == 1
    scores, _, _, changed = pair_batches()[0]
    values = [metric(scores, changed) for _ in range(3)]
    for figure, axes in (metric.plot(), metric.plot(values)):
        assert axes.get_ylabel() == metric_class.__name__
        matplotlib.pyplot.close(figure)


def test_update_errors_name_the_argument() -> None:
    x = torch.arange(4.0)
    with pytest.raises(ArgumentError, match="`target` to be of length 4"):
        Kendall().update(x, x[:2])
    with pytest.raises(ArgumentError, match="`scores` to be a tensor, but got 'list'"):
        Pearson().update([1.0], x)


@pytest.mark.parametrize("value", [2**53, -(2**62), 2**63])
def test_integers_that_float64_would_round_are_refused(value: int) -> None:
    beyond = torch.from_numpy(np.array([0, value], dtype=np.uint64 if value > 2**62 else np.int64))
    with pytest.raises(ArgumentError, match=rf"`scores` to be integers below 2\*\*53 in magnitude.*got {value}"):
        Kendall().update(beyond, torch.arange(2))
    metric = Kendall()
    metric.update(torch.tensor([2**53 - 1, 2**53 - 2]), torch.tensor([1, 0]))
    assert metric.compute() == 1
