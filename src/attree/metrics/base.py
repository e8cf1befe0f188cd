"""What all metric classes share: columns of float64 kept until they are asked for, and gathered over processes."""

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
    """A metric over columns with one entry per pair: `update` appends to them, `compute` reads them whole.

    Ranks exist only once all pairs are known, so the columns themselves are the state. They are float64 (on devices
    without it, float32) whatever comes in: a process that saw no pairs must still offer the others a column of their
    dtype to gather. Integers that this would round, and so might tie, are refused.

    Args:
        kwargs: what every `torchmetrics.Metric` accepts.
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
        """Check one batch of every column, and append it.

        Args:
            prefix: what the state of a column is called, before the column's own name.
            columns: the batches, by the names that errors use.
        """
        for name, column in columns.items():
            expect(isinstance(column, Tensor), name, "a tensor", type(column).__name__)
        check_columns(**columns)
        for name, column in columns.items():
            getattr(self, f"{prefix}{name}").append(_as_floats(column.detach(), name))

    def column(self, name: str) -> Tensor:
        """Return a column whole; empty if nothing came yet."""
        state = getattr(self, name)
        if isinstance(state, Tensor):
            return state.to(exact_dtype(state.device))
        if len(state) == 1:
            return state[0].to(exact_dtype(state[0].device))
        return torch.cat([torch.empty(0, dtype=exact_dtype(self.device), device=self.device), *state])

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Join each column before processes exchange them, so that all offer the same dtype, be it of no entries."""
        for name, state in self.metric_state.items():
            if isinstance(state, list):
                state[:] = [self.column(name)]
        super().sync(*args, **kwargs)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot a value, or several as a curve.

        Args:
            val: a result of `compute` or `forward`, or a list of them; by default what `compute` gives now.
            ax: the matplotlib axes to draw into; by default those of a new figure.

        Returns:
            The figure and its axes.
        """
        return self._plot(val, ax)


def _as_floats(column: Tensor, name: str) -> Tensor:
    """The column in float64, if there is one; integers of 2**53 and beyond, some of which it rounds, are refused."""
    values = column.to(exact_dtype(column.device))
    bits = 1 - round(math.log2(torch.finfo(values.dtype).eps))
    if not column.is_floating_point() and column.dtype.itemsize * 8 > bits:
        beyond = column[values.abs() >= 2**bits]
        if beyond.numel():
            expect(False, name, f"integers below 2**{bits} in magnitude, or floats", beyond[0].item())
    return values


class PairMetric(ColumnMetric):
    """A statistic of two columns; a subclass names the function that computes it."""

    columns = ("scores", "target")
    function: staticmethod[[Values, Values], Tensor]

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Append pairs of a score and what it is held against.

        Args:
            scores: a vector.
            target: a vector of the same length.
        """
        self.append(scores=scores, target=target)

    def compute(self) -> Tensor:
        """Compute the statistic over all pairs of all processes, as a 0-d float64 tensor."""
        return self.function(self.column("scores"), self.column("target"))
