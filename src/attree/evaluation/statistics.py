"""The metrics of an evaluation, from the scores of methods and the effects of reductions of the same pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from attree.evaluation.names import WITHIN, MetricName, size_name
from attree.faithfulness import Reduction
from attree.metrics import EffectSizes, FaithfulnessComparison, WithinPearson


class PooledStatistics:
    """Compares the scores of several methods with effects, over the pairs of all targets of all processes.

    Args:
        columns: Columns of scores of each method: one, or one per draw of a random method, by name of the method.
        fixed: Columns whose scores never change; their ranking is kept.
        together: Whether several processes evaluate together.
        device: Device of the scores.
    """

    def __init__(
        self, columns: Mapping[str, Sequence[str]], fixed: Iterable[str], together: bool, device: torch.device
    ) -> None:
        self._columns = columns
        every = [column for of_method in columns.values() for column in of_method]
        # A single evaluating process must not wait for others: they may be busy elsewhere, or have ended.
        self._comparison = FaithfulnessComparison(every, fixed, sync_on_compute=together).to(device)
        self._within = WithinPearson(sync_on_compute=together).to(device)
        self._sizes = EffectSizes(sync_on_compute=together).to(device)

    def metrics(
        self, scores: Mapping[str, Tensor], reduction: Reduction, protocol: str, num_targets: int
    ) -> dict[str, Tensor]:
        """Return all metrics of one protocol by name.

        Args:
            scores: The scores of the pairs by column.
            reduction: The effects on the pairs.
            protocol: Name of the protocol.
            num_targets: Number of targets of all processes.
        """
        self._comparison.update(scores, reduction.delta_pc, reduction.delta_ne, reduction.changed)
        values = self._comparison.compute()
        self._comparison.reset()  # frees the memory of its columns
        owner, metrics = reduction.pairs.owner, {}
        for name, columns in self._columns.items():
            within = [self._within_targets(scores[column], reduction.delta_pc, owner) for column in columns]
            metrics[str(MetricName(name, WITHIN, protocol))] = mean_of(within)
            for statistic in values[columns[0]]:
                value = mean_of([values[column][statistic] for column in columns])
                metrics[str(MetricName(name, statistic, protocol))] = value
        self._sizes.update(reduction.delta_pc, owner)
        sizes = self._sizes.compute()
        self._sizes.reset()
        sizes["targets_without"] = num_targets - sizes.pop("targets_with")
        return metrics | {size_name(protocol, size): value for size, value in sizes.items()}

    def _within_targets(self, scores: Tensor, effects: Tensor, owner: Tensor) -> Tensor:
        """Return the mean over the targets of all processes of the correlation of scores with effects."""
        self._within.update(scores, effects, owner)
        value = self._within.compute()
        self._within.reset()
        return value


def mean_of(values: list[Tensor]) -> Tensor:
    """Return the mean of some numbers; of a single one, the number itself."""
    return values[0] if len(values) == 1 else torch.stack(values).mean()
