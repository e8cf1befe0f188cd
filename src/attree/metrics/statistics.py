"""Pearson, Spearman, Kendall and AUROC as `torchmetrics.Metric` classes, and their base classes."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from attree.errors import ArgumentError, expect
from attree.metrics.functional.auroc import auroc, auroc_by_target
from attree.metrics.functional.correlation import kendall, pearson, spearman
from attree.metrics.functional.ranking import Values, check_columns
from attree.tensors.precision import exact_dtype


class ColumnMetric(Metric):
    """Base class of metrics over columns with one entry per pair of a target and an edge.

    `update` appends to the columns and `compute` reads them whole: ranks are known only when all pairs are. Columns are
    float64 (float32 on devices without it) for any input dtype, because a process without pairs must still offer a
    column of the same dtype to the others. Integers that float64 would round are refused: rounding could make ties.

    Args:
        kwargs: Arguments of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.columns:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def append(self, prefix: str = "", /, **columns: Tensor) -> None:
        """Check one batch of each column and append it.

        Args:
            prefix: Put before a column's name to get the name of its state.
            columns: The batches, by the names that errors use.
        """
        for name, column in columns.items():
            expect(isinstance(column, Tensor), name, "a tensor", type(column).__name__)
        check_columns(**columns)
        for name, column in columns.items():
            getattr(self, f"{prefix}{name}").append(as_floats(column.detach(), name))

    def column(self, name: str) -> Tensor:
        """Return a whole column; it is empty before the first update."""
        state = getattr(self, name)
        if isinstance(state, Tensor):
            return state.to(exact_dtype(state.device))
        if len(state) == 1:
            return state[0].to(exact_dtype(state[0].device))
        return torch.cat([torch.empty(0, dtype=exact_dtype(self.device), device=self.device), *state])

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Concatenate each column before processes exchange it, so that even empty columns have the same dtype."""
        for name, state in self.metric_state.items():
            if isinstance(state, list):
                state[:] = [self.column(name)]
        super().sync(*args, **kwargs)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value, or several as a curve.

        Args:
            val: A result of `compute` or `forward`, or a list of them. Default: the result of `compute`.
            ax: The matplotlib axes to draw into. Default: those of a new figure.

        Returns:
            The figure and its axes.
        """
        return self._plot(val, ax)


def as_floats(column: Tensor, name: str) -> Tensor:
    """Return the column in float64 where the device has it; refuse integers that the conversion could round."""
    values = column.to(exact_dtype(column.device))
    bits = 1 - round(math.log2(torch.finfo(values.dtype).eps))
    if not column.is_floating_point() and column.dtype.itemsize * 8 > bits:
        beyond = column[values.abs() >= 2**bits]
        if beyond.numel():
            expect(False, name, f"integers below 2**{bits} in magnitude, or floats", beyond[0].item())
    return values


class PairMetric(ColumnMetric):
    """Base class of a statistic of two columns; a subclass names the function that computes it."""

    columns = ("scores", "target")
    function: staticmethod[[Values, Values], Tensor]

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Append scores and the values to compare them with.

        Args:
            scores: A vector.
            target: A vector of the same length.
        """
        self.append(scores=scores, target=target)

    def compute(self) -> Tensor:
        """Compute the statistic over the pairs of all processes, as a 0-d float64 tensor."""
        return self.function(self.column("scores"), self.column("target"))


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
