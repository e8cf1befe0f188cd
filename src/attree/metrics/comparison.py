"""The faithfulness of several methods over the same pairs, with all work shared that can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from attree.errors import expect
from attree.metrics.base import ColumnMetric
from attree.metrics.functional.auroc import as_labels
from attree.metrics.functional.faithfulness import faithfulness_statistics
from attree.metrics.functional.ranking import Ranking

DELTAS = ("delta_pc", "delta_ne", "changed")

PREFIX = "column_"
"""What attributes that hold columns start with, so that a method's name is never that of a metric's own attribute."""


class FaithfulnessComparison(ColumnMetric):
    """The seven faithfulness statistics and their mean, for each of several methods.

    What `Faithfulness` does for one method, without storing, gathering and sorting the deltas once per method.

    Args:
        methods: Names of the methods.
        fixed: Those of them whose scores are the same in every epoch (random ones). Their ranking is kept, also over
            `reset`, and made again only when the scores change: comparing is far quicker than sorting.
        kwargs: what every `torchmetrics.Metric` accepts.

    >>> import torch
    >>> metric = FaithfulnessComparison(["good", "bad"])
    >>> deltas = torch.tensor([0.3, 0.1, 0.0, 0.0])
    >>> metric.update({"good": deltas, "bad": -deltas}, deltas, deltas, deltas > 0.2)
    >>> {method: values["pc_pearson"].item() for method, values in metric.compute().items()}
    {'good': 1.0, 'bad': -1.0}
    """

    columns = ()

    def __init__(self, methods: Iterable[str], fixed: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.methods = tuple(methods)
        taken = [name for name in self.methods if name in DELTAS]
        expect(not taken, "methods", f"names other than {', '.join(DELTAS)}", taken)
        self.fixed = frozenset(fixed)
        unknown = sorted(self.fixed.difference(self.methods))
        expect(not unknown, "fixed", f"names among {', '.join(self.methods)}", unknown)
        self._kept: dict[str, Ranking] = {}
        for name in (*DELTAS, *self.methods):
            self.add_state(_state(name), default=[], dist_reduce_fx="cat")

    def update(self, scores: Mapping[str, Tensor], delta_pc: Tensor, delta_ne: Tensor, changed: Tensor) -> None:
        """Append pairs.

        Args:
            scores: What each method gives each pair.
            delta_pc: Decline of prediction confidence of each pair.
            delta_ne: Change of negative entropy of each pair.
            changed: Whether the prediction changed.
        """
        expect(set(scores) == set(self.methods), "scores", f"scores of {', '.join(self.methods)}", ", ".join(scores))
        columns = {"delta_pc": delta_pc, "delta_ne": delta_ne, "changed": changed, **scores}
        self.append(PREFIX, **columns)

    def compute(self) -> dict[str, dict[str, Tensor]]:
        """The statistics of each method, over the pairs of all processes; keys as in `faithfulness_statistics`."""
        pc, ne = (Ranking(self.column(_state(name))) for name in DELTAS[:2])
        changed = as_labels(self.column(_state("changed")), "changed")
        return {name: faithfulness_statistics(self._ranking(name), pc, ne, changed) for name in self.methods}

    def _ranking(self, method: str) -> Ranking:
        column = self.column(_state(method))
        if method not in self.fixed:
            return Ranking(column)
        kept = self._kept.get(method)
        if kept is None or kept.values.device != column.device or not kept.values.equal(column):
            # A copy: the caller's own tensor may be changed in place, and would then always equal itself.
            self._kept[method] = kept = Ranking(column.clone())
        return kept


def _state(name: str) -> str:
    """Attribute name of a column."""
    return f"{PREFIX}{name}"
