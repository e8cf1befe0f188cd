"""The metrics of an evaluation, from the scores of methods and the effects of reductions of the same pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from attree.evaluation.names import FAITHFULNESS, WITHIN, MetricName, size_name
from attree.evaluation.processes import Exchange
from attree.faithfulness import Reduction
from attree.metrics.base import as_floats
from attree.metrics.functional import Ranking, pearsons_by_target
from attree.metrics.functional.auroc import as_labels
from attree.metrics.functional.faithfulness import STATISTICS
from attree.metrics.functional.ranking import Values
from attree.metrics.functional.within import edges_of_effect, effect_sizes, strongest_effects
from attree.tensors.limits import exact_dtype

EFFECTS = ("delta_pc", "delta_ne")
"""Effects that scores are compared with. Each is one half of the work for a column of scores; the change of the class
belongs to the first."""


class PooledStatistics:
    """Compares the scores of several methods with effects, over the pairs of all targets of all processes.

    Each column of scores is ranked once for all protocols. Several processes share the columns: each computes the
    statistics of some, which are gathered to it alone, in the order of the targets. So all statistics are those of one
    process, to the last digit.

    Args:
        columns: Columns of scores of each method: one, or one per draw of a random method, by name of the method.
        fixed: Columns whose scores seldom change; their ranking is kept, and used again if they are equal.
        together: Whether several processes evaluate together.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], fixed: Iterable[str], together: bool) -> None:
        self._columns = columns
        self._fixed = frozenset(fixed)
        self._together = together
        self._last: dict[str, Ranking] = {}

    def metrics(
        self, scores: Mapping[str, Tensor], reductions: Mapping[str, Reduction], num_targets: int
    ) -> dict[str, Tensor]:
        """Return all metrics by name.

        Args:
            scores: The scores of the pairs by column. Of a random method, some of its columns may be missing.
            reductions: The effects on the pairs by protocol.
            num_targets: Number of targets of all processes.
        """
        if not reductions:
            return {}
        columns = {name: as_floats(values.detach(), "scores") for name, values in scores.items()}
        pooled, within = self._pooled(columns, reductions), self._within(columns, reductions)
        places, metrics = {column: place for place, column in enumerate(columns)}, dict[str, Tensor]()
        for number, protocol in enumerate(reductions):
            for method, names in self._columns.items():
                draws = [places[name] for name in names if name in places]
                correlations, sizes = within[protocol]
                metrics[str(MetricName(method, WITHIN, protocol))] = mean_of([correlations[draw] for draw in draws])
                for statistic, values in zip(STATISTICS, pooled[draws, number].unbind(1), strict=True):
                    metrics[str(MetricName(method, statistic, protocol))] = mean_of(list(values))
                means = [pooled[draw, number].mean() for draw in draws]
                metrics[str(MetricName(method, FAITHFULNESS, protocol))] = mean_of(means)
            sizes["targets_without"] = num_targets - sizes.pop("targets_with")
            metrics |= {size_name(protocol, size): value for size, value in sizes.items()}
        return metrics

    def _pooled(self, columns: Mapping[str, Tensor], reductions: Mapping[str, Reduction]) -> Tensor:
        """Return the statistics over all pairs, [columns, protocols, statistics]."""
        table = torch.zeros(len(columns), len(reductions), len(STATISTICS), dtype=torch.float64)
        work = [(place, effect) for place in range(len(columns)) for effect in EFFECTS]
        first = next(iter(columns.values()))
        exchange = Exchange(len(first), first.device) if self._together else None
        shares = [work] if exchange is None else exchange.shares(work)
        names, device = list(columns), first.device
        whole: dict[str, Tensor] = {}
        for place, name in enumerate(names):
            for rank, share in enumerate(shares):
                if any(place == taken for taken, _ in share):
                    column = columns[name] if exchange is None else exchange.joined(columns[name], rank)
                    whole |= {} if column is None else {name: column.to(device)}
        effects: list[dict[str, Values]] = []
        for reduction in reductions.values():
            parts = reduction.delta_pc, reduction.delta_ne, reduction.changed
            floats = [part.detach().to(exact_dtype(part.device)) for part in parts]
            pc, ne, changed = floats if exchange is None else [exchange.everywhere(part).to(device) for part in floats]
            effects.append({"delta_pc": Ranking(pc), "delta_ne": Ranking(ne), "changed": as_labels(changed, "changed")})
        rankings = {name: self._ranking(name, values) for name, values in whole.items()}
        for place, effect in shares[0 if exchange is None else exchange.rank]:
            for number, of_protocol in enumerate(effects):
                for statistic, (function, target) in enumerate(STATISTICS.values()):
                    if (target == "delta_ne") == (effect == "delta_ne"):
                        value = function(rankings[names[place]], of_protocol[target])
                        table[place, number, statistic] = float(value)
        return table if exchange is None else exchange.summed(table)

    def _within(
        self, columns: Mapping[str, Tensor], reductions: Mapping[str, Reduction]
    ) -> dict[str, tuple[list[Tensor], dict[str, Tensor]]]:
        """Return by protocol the mean over all targets of each column's correlation, and the sizes of effects."""
        result = {}
        for protocol, reduction in reductions.items():
            owner, number, delta_pc = reduction.pairs.owner, reduction.pairs.targets.numel(), reduction.delta_pc
            correlations = pearsons_by_target(list(columns.values()), delta_pc, owner, number)
            strongest = strongest_effects(delta_pc, owner, number).to(exact_dtype(delta_pc.device))
            edges = edges_of_effect(delta_pc, owner, number).to(strongest)
            values = torch.stack([*correlations, strongest, edges])
            if self._together:
                exchange = Exchange(number, values.device)
                values = torch.stack([exchange.everywhere(row) for row in values])
            # Sorted, so that no order of processes changes a digit.
            means = [row.sort().values.nanmean() for row in values[:-2]]
            result[protocol] = means, effect_sizes(values[-2], values[-1])
        return result

    def _ranking(self, name: str, values: Tensor) -> Ranking:
        """Return the ranking of a column. Comparing is much faster than sorting, so some are kept between epochs."""
        if name not in self._fixed:
            return Ranking(values)
        last = self._last.get(name)
        if last is None or last.values.device != values.device or not last.values.equal(values):
            # A copy: if the caller changed the tensor in place, it would still be equal to itself.
            self._last[name] = last = Ranking(values.clone())
        return last


def mean_of(values: list[Tensor]) -> Tensor:
    """Return the mean of some numbers; of a single one, the number itself."""
    return values[0] if len(values) == 1 else torch.stack(values).mean()
