"""The metrics of an evaluation, from the scores of methods and the effects of reductions of the same pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from attree.attribution import Pairs
from attree.evaluation.columns import Exchange
from attree.evaluation.metric_names import FAITHFULNESS, WITHIN, MetricName, size_name
from attree.faithfulness import Reduction
from attree.metrics.functional.auroc import as_labels
from attree.metrics.functional.faithfulness import (
    STATISTICS,
    TargetDeviations,
    edges_of_effect,
    effect_sizes,
    strongest_effects,
)
from attree.metrics.functional.ranking import Ranking, Values
from attree.tensors.precision import exact_dtype

RANKING_WORK = 1
"""Work of ranking a column of scores, relative to that of comparing it with the effects of one protocol."""


class PooledStatistics:
    """Compares the scores of several methods with effects, over the pairs of all targets of all processes.

    Each column of scores is ranked once for all protocols. Several processes share the columns: each compares some with
    the effects, and these are gathered to it alone, in the order of the targets. So all statistics are those of one
    process, to the last digit.

    Args:
        columns: Columns of scores of each method: one, or one per draw of a random method, by name of the method.
        fixed: Columns whose scores seldom change. What is computed from them is kept, and used again if they are equal:
            comparing is much faster than sorting.
        together: Whether several processes evaluate together.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], fixed: Iterable[str], together: bool) -> None:
        self._columns = columns
        self._fixed = frozenset(fixed)
        self._together = together
        # Of fixed columns: this process's scores, what was computed from them, and the process that ranked them.
        self._last: dict[str, Tensor] = {}
        self._rankings: dict[str, Ranking] = {}
        self._deviations: dict[str, tuple[Pairs, TargetDeviations]] = {}
        self._ranked_by: dict[str, int] = {}

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
        scores = {name: values.detach() for name, values in scores.items()}
        is_new = {name: self._is_new(name, values) for name, values in scores.items()}
        pooled, within = self._pooled(scores, is_new, reductions), self._within(scores, reductions)
        places, metrics = {column: place for place, column in enumerate(scores)}, dict[str, Tensor]()
        for number, protocol in enumerate(reductions):
            correlations, sizes = within[protocol]
            for method, names in self._columns.items():
                draws = [places[name] for name in names if name in places]
                metrics[str(MetricName(method, WITHIN, protocol))] = mean_of([correlations[draw] for draw in draws])
                for statistic, values in zip(STATISTICS, pooled[draws, number].unbind(1), strict=True):
                    metrics[str(MetricName(method, statistic, protocol))] = mean_of(list(values))
                means = [pooled[draw, number].mean() for draw in draws]
                metrics[str(MetricName(method, FAITHFULNESS, protocol))] = mean_of(means)
            sizes["targets_without"] = num_targets - sizes.pop("targets_with")
            metrics |= {size_name(protocol, size): value for size, value in sizes.items()}
        return metrics

    def _is_new(self, name: str, values: Tensor) -> bool:
        """Whether a column differs from the last one; it always does unless it is fixed."""
        last = self._last.get(name)
        is_alike = last is not None and (last.device, last.dtype) == (values.device, values.dtype)
        if is_alike and last is not None and last.equal(values):
            return False
        if name in self._fixed:
            # A copy: if the caller changed the tensor in place, it would still be equal to itself.
            self._last[name] = values.clone()
            self._deviations.pop(name, None)
        return True

    def _pooled(
        self, scores: Mapping[str, Tensor], is_new: Mapping[str, bool], reductions: Mapping[str, Reduction]
    ) -> Tensor:
        """Return the statistics over all pairs, [columns, protocols, statistics]."""
        table = torch.zeros(len(scores), len(reductions), len(STATISTICS), dtype=torch.float64)
        first = next(iter(scores.values()))
        exchange = Exchange(len(first), first.device, self._together)
        rankings = self._ranked(scores, is_new, exchange, len(reductions))
        for number, reduction in enumerate(reductions.values()):
            pc, ne = (Ranking(exchange.everywhere(delta)) for delta in (reduction.delta_pc, reduction.delta_ne))
            changed = as_labels(exchange.everywhere(reduction.changed), "changed")
            effects: dict[str, Values] = {"delta_pc": pc, "delta_ne": ne, "changed": changed}
            for place, name in enumerate(scores):
                if name in rankings:
                    values = [float(function(rankings[name], effects[of])) for function, of in STATISTICS.values()]
                    table[place, number] = torch.tensor(values, dtype=torch.float64)
        return exchange.summed(table)

    def _ranked(
        self, scores: Mapping[str, Tensor], is_new: Mapping[str, bool], exchange: Exchange, num_protocols: int
    ) -> dict[str, Ranking]:
        """Return the rankings of the columns that this process compares with effects, over the pairs of all."""
        rankings = {}
        # A column is sent if it is new in any process: all must agree.
        news = exchange.summed(torch.tensor(list(is_new.values())).long()).tolist()
        for (name, rank), number_new in zip(self._shares(scores, exchange.size, num_protocols), news, strict=True):
            if number_new or self._ranked_by.get(name) != rank:
                column = exchange.joined(self._last.get(name, scores[name]), rank)
                if rank == exchange.rank:
                    rankings[name] = Ranking(column)
            elif rank == exchange.rank:
                rankings[name] = self._rankings[name]
            self._ranked_by[name] = rank
        # A column that is missing this time, a draw of a random method, may come again.
        absent = {name: ranking for name, ranking in self._rankings.items() if name not in scores}
        self._rankings = absent | {name: ranking for name, ranking in rankings.items() if name in self._fixed}
        return rankings

    def _shares(self, names: Iterable[str], num_processes: int, num_protocols: int) -> list[tuple[str, int]]:
        """Return the process that compares each column with the effects, so that all have about the same work."""
        work, ranks = [0] * num_processes, dict.fromkeys(names, 0)
        for name in sorted(ranks, key=lambda name: name in self._fixed):
            ranks[name] = work.index(min(work))
            work[ranks[name]] += num_protocols + (0 if name in self._fixed else RANKING_WORK)
        return list(ranks.items())

    def _within(
        self, scores: Mapping[str, Tensor], reductions: Mapping[str, Reduction]
    ) -> dict[str, tuple[list[Tensor], dict[str, Tensor]]]:
        """Return by protocol the mean over all targets of each column's correlation, and the sizes of effects."""
        result = {}
        pairs = next(iter(reductions.values())).pairs
        owner, number = pairs.owner, pairs.targets.numel()
        deviations = [self._deviations_of(name, values, pairs) for name, values in scores.items()]
        for protocol, reduction in reductions.items():
            delta_pc = reduction.delta_pc
            effects = TargetDeviations(delta_pc, owner, number)
            strongest = strongest_effects(delta_pc, owner, number).to(exact_dtype(delta_pc.device))
            edges = edges_of_effect(delta_pc, owner, number).to(strongest)
            values = torch.stack([*(column.correlation(effects) for column in deviations), strongest, edges])
            if self._together:
                exchange = Exchange(number, values.device)
                values = torch.stack([exchange.everywhere(row) for row in values])
                # If one process has a value that is NaN or infinite, the statistic is undefined in all.
                is_infinite = [not (column.is_finite and effects.is_finite) for column in deviations]
                undefined = exchange.summed(torch.tensor(is_infinite).long()).nonzero().view(-1)
                values[undefined.to(values.device)] = torch.nan
            # Sorted, so that no order of processes changes a digit.
            means = [row.sort().values.nanmean() for row in values[:-2]]
            result[protocol] = means, effect_sizes(values[-2], values[-1])
        return result

    def _deviations_of(self, name: str, values: Tensor, pairs: Pairs) -> TargetDeviations:
        """Return the deviations of a column from the means of targets; those of a fixed column are kept."""
        cached = self._deviations.get(name)
        if cached is not None and cached[0] is pairs:
            return cached[1]
        deviations = TargetDeviations(values, pairs.owner, pairs.targets.numel())
        if name in self._fixed:
            self._deviations[name] = pairs, deviations
        return deviations


def mean_of(values: list[Tensor]) -> Tensor:
    """Return the mean of some numbers; of a single one, the number itself."""
    return values[0] if len(values) == 1 else torch.stack(values).mean()
