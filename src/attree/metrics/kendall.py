"""Kendall's tau-b as a `torchmetrics.Metric` class."""

from __future__ import annotations

from attree.metrics.base import PairMetric
from attree.metrics.functional.kendall import kendall


class Kendall(PairMetric):
    """Kendall's tau-b in O(n log n); see `attree.metrics.functional.kendall`.

    >>> import torch
    >>> Kendall()(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 0.0, 5.0]))
    tensor(0.7071, dtype=torch.float64)
    """

    function = staticmethod(kendall)
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0
