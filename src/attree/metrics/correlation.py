"""Pearson's, Spearman's and Kendall's correlation as `torchmetrics.Metric` classes."""

from __future__ import annotations

from attree.metrics.base import PairMetric
from attree.metrics.functional.correlation import kendall, pearson, spearman


class Pearson(PairMetric):
    """Pearson's linear correlation of scores and targets; see `attree.metrics.functional.pearson`.

    >>> import torch
    >>> metric = Pearson()
    >>> metric.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    >>> metric.update(torch.tensor([3.0]), torch.tensor([4.0]))
    >>> metric.compute()
    tensor(0.9820, dtype=torch.float64)
    """

    function = staticmethod(pearson)
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0


class Spearman(PairMetric):
    """Spearman's rank correlation, exact with any number of ties; see `attree.metrics.functional.spearman`.

    >>> import torch
    >>> Spearman()(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 0.0, 5.0]))
    tensor(0.7746, dtype=torch.float64)
    """

    function = staticmethod(spearman)
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0


class Kendall(PairMetric):
    """Kendall's tau-b in O(n log n); see `attree.metrics.functional.kendall`.

    >>> import torch
    >>> Kendall()(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 0.0, 5.0]))
    tensor(0.7071, dtype=torch.float64)
    """

    function = staticmethod(kendall)
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0
