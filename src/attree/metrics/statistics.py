"""Pearson, Spearman, Kendall and AUROC as `torchmetrics.Metric` classes."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from attree.errors import ArgumentError, expect
from attree.metrics.base import ColumnMetric, PairMetric
from attree.metrics.functional.auroc import auroc, auroc_by_target
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
    """Spearman's rank correlation, exact for ties; see `attree.metrics.functional.spearman`.

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


class AUROC(PairMetric):
    """Area under the ROC curve of scores, with targets 0 or 1; see `attree.metrics.functional.auroc`.

    >>> import torch
    >>> AUROC()(torch.tensor([-30.0, 2.0, 2.0, 900.0]), torch.tensor([0, 0, 1, 1]))
    tensor(0.8750, dtype=torch.float64)
    """

    function = staticmethod(auroc)
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0


class TruthAUROC(ColumnMetric):
    """AUROC of scores against ground-truth edges, over all pairs or as a mean over targets.

    The paper pools all pairs (Table 2). With `average="target"` each target has the same weight, and only scores of one
    target are compared. Targets whose edges are all true or all false do not count.

    Args:
        average: None to pool all pairs, `"target"` for the mean of the targets' AUROCs.
        kwargs: Arguments of `torchmetrics.Metric`.

    >>> import torch
    >>> scores, labels = torch.tensor([0.1, 0.9, 40.0, 50.0]), torch.tensor([0, 1, 0, 1])
    >>> TruthAUROC()(scores, labels)
    tensor(0.7500, dtype=torch.float64)
    >>> TruthAUROC(average="target")(scores, labels, target=torch.tensor([4, 4, 8, 8]))
    tensor(1., dtype=torch.float64)
    """

    columns = ("scores", "labels")
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(self, average: Literal["target"] | None = None, **kwargs: Any) -> None:
        expect(average in (None, "target"), "average", 'None or "target"', average)
        super().__init__(**kwargs)
        self.average = average
        if average == "target":
            self.add_state("target", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor, target: Tensor | None = None) -> None:
        """Append pairs of a target and an edge.

        Args:
            scores: The method's score of each pair.
            labels: 1 (or True) if the edge is part of the target's ground truth, else 0.
            target: The target of each pair, as integers; only read, and required, with `average="target"`.
        """
        if self.average is None:
            self.append(scores=scores, labels=labels)
        elif target is None:
            raise ArgumentError('Expected argument `target` to be given, as `average` is "target", but got None.')
        else:
            self.append(scores=scores, labels=labels, target=target)

    def compute(self) -> Tensor:
        """Compute the AUROC over all processes; NaN if no target, or the pool, has both classes."""
        if self.average is None:
            return auroc(self.column("scores"), self.column("labels"))
        return auroc_by_target(self.column("scores"), self.column("labels"), self.column("target"))
