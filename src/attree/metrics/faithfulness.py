"""All faithfulness statistics of one method as one `torchmetrics.MetricCollection`."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torchmetrics import MetricCollection

from attree.metrics.base import ColumnMetric
from attree.metrics.functional.faithfulness import STATISTICS, faithfulness_statistics


class _Statistic(ColumnMetric):
    """One of the seven statistics, over the columns that all members of the collection share."""

    columns = ("scores", "delta_pc", "delta_ne", "changed")
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name

    def update(self, scores: Tensor, delta_pc: Tensor, delta_ne: Tensor, changed: Tensor) -> None:
        self.append(scores=scores, delta_pc=delta_pc, delta_ne=delta_ne, changed=changed)

    def compute(self) -> Tensor:
        function, column = STATISTICS[self.name]
        return function(self.column("scores"), self.column(column))

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        figure, axes = super().plot(val, ax)
        axes.set_ylabel(self.name)
        return figure, axes


class _Mean(_Statistic):
    """The mean of the seven, which needs them all and so leaves them for the collection to read."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("faithfulness", **kwargs)
        self.statistics: dict[str, Tensor] = {}

    def compute(self) -> Tensor:
        self.statistics = faithfulness_statistics(*map(self.column, self.columns))
        return self.statistics["faithfulness"]


class Faithfulness(MetricCollection):
    """The seven faithfulness statistics of a method and their mean; see `functional.faithfulness_statistics`.

    A `MetricCollection` of eight metrics in one compute group: the pairs are stored once, and `compute` gathers them
    over processes once and sorts each column once. It also works through `log_dict(collection)`, at the price of
    every member gathering and sorting by itself.

    Args:
        prefix: put before every key, for instance `"explain/gatt/weight/"`.
        postfix: put after every key.
        kwargs: what every `torchmetrics.Metric` accepts.

    >>> import torch
    >>> metric = Faithfulness(prefix="gatt/")
    >>> deltas = torch.tensor([0.3, 0.1, 0.0, 0.0])
    >>> metric.update(torch.tensor([0.9, 0.5, 0.0, 0.0]), deltas, -deltas, deltas > 0.2)
    >>> values = metric.compute()
    >>> list(values)  # doctest: +NORMALIZE_WHITESPACE
    ['gatt/pc_pearson', 'gatt/pc_kendall', 'gatt/pc_spearman', 'gatt/ne_pearson', 'gatt/ne_kendall',
     'gatt/ne_spearman', 'gatt/p_auroc', 'gatt/faithfulness']
    >>> values["gatt/ne_kendall"], values["gatt/faithfulness"]
    (tensor(-1., dtype=torch.float64), tensor(0.1429, dtype=torch.float64))
    """

    def __init__(self, prefix: str | None = None, postfix: str | None = None, **kwargs: Any) -> None:
        members: dict[str, Any] = {name: _Statistic(name, **kwargs) for name in STATISTICS}
        members["faithfulness"] = _Mean(**kwargs)
        # The first of a group is the one that is updated: the mean, which computes all.
        group = ["faithfulness", *STATISTICS]
        super().__init__(members, prefix=prefix, postfix=postfix, compute_groups=[group])

    def compute(self) -> dict[str, Tensor]:
        """Compute the eight values over all pairs of all processes."""
        mean = self._mean()
        value = mean.compute()
        return self._named({name: v.to(value.device, copy=True) for name, v in mean.statistics.items()})

    def forward(self, scores: Tensor, delta_pc: Tensor, delta_ne: Tensor, changed: Tensor) -> dict[str, Tensor]:
        """Append pairs and return the eight values of these alone."""
        if self._mean().dist_sync_on_step:
            return super().forward(scores, delta_pc, delta_ne, changed)
        self.update(scores, delta_pc, delta_ne, changed)
        return self._named(faithfulness_statistics(scores, delta_pc, delta_ne, changed))

    def _mean(self) -> _Mean:
        """Return the member that holds the pairs, without copying them."""
        members = dict(self.items(keep_base=True, copy_state=False))
        return cast(_Mean, members["faithfulness"])

    def _named(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the prefix before and the postfix after each key."""
        return {f"{self.prefix or ''}{name}{self.postfix or ''}": value for name, value in values.items()}
