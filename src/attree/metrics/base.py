"""Base classes of the metrics: they store float64 columns and gather them over processes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from attree.errors import expect
from attree.metrics.functional.ranking import Values, check_columns
from attree.tensors.limits import exact_dtype


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
