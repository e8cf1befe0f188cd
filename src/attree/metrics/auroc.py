"""Area under the ROC curve as `torchmetrics.Metric` classes: of two columns, or of scores against true edges."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from attree.errors import ArgumentError, expect
from attree.metrics.base import ColumnMetric, PairMetric
from attree.metrics.functional.auroc import auroc, auroc_by_target


class AUROC(PairMetric):
    """Area under the ROC curve of scores of any range, target being 0 or 1; see `attree.metrics.functional.auroc`.

    >>> import torch
    >>> AUROC()(torch.tensor([-30.0, 2.0, 2.0, 900.0]), torch.tensor([0, 0, 1, 1]))
    tensor(0.8750, dtype=torch.float64)
    """

    function = staticmethod(auroc)
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0


class TruthAUROC(ColumnMetric):
    """AUROC of scores against ground-truth edges, over all pairs at once or as a mean over targets.

    Pooling is the paper's protocol (Table 2). With `average="target"` each target weighs the same and only scores of
    the same target are compared; targets whose edges are all true or all false are left out.

    Args:
        average: None to pool all pairs, `"target"` for the mean of each target's AUROC.
        kwargs: what every `torchmetrics.Metric` accepts.

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
            scores: what a method gives each pair.
            labels: 1 (or True) where the edge is part of the target's ground truth, else 0.
            target: which target each pair belongs to, as integers; needed, and read, only with `average="target"`.
        """
        if self.average is None:
            self.append(scores=scores, labels=labels)
        elif target is None:
            raise ArgumentError('Expected argument `target` to be given, as `average` is "target", but got None.')
        else:
            self.append(scores=scores, labels=labels, target=target)

    def compute(self) -> Tensor:
        """Compute the AUROC over all processes; NaN if no target, or not the pool, has both classes."""
        if self.average is None:
            return auroc(self.column("scores"), self.column("labels"))
        return auroc_by_target(self.column("scores"), self.column("labels"), self.column("target"))
