"""Uncertainty of an evaluation's statistics: how much each target moves them.

All methods are measured on the same targets. So the difference between two methods has its own interval, which is
narrower than the intervals of the methods suggest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from attree.evaluation.columns import PairColumns
from attree.evaluation.metric_names import (
    CHARACTERIZATION,
    FIDELITY_MINUS,
    FIDELITY_PLUS,
    OF_TRUTH,
    TRUTH,
    UNFAITHFULNESS,
    WITHIN,
    MetricName,
)
from attree.metrics.functional.faithfulness import pearson_by_target
from attree.metrics.functional.influence import (
    Influence,
    TargetInfluence,
    influence_on_mean,
    influences_on,
    undefined,
)
from attree.metrics.functional.intervals import LEVEL, Interval, interval_of, is_beyond_chance
from attree.metrics.functional.ranking import Ranking
from attree.metrics.functional.sets import characterization_score


@dataclass(frozen=True)
class Difference:
    """The difference between the statistics of two methods.

    Attributes:
        value: The difference.
        low: Lower end of its interval; NaN if it has none.
        high: Upper end of its interval.
        is_large: Whether it is beyond chance although there are too few targets for an interval.
    """

    value: float
    low: float
    high: float
    is_large: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0, or the size of the difference does."""
        return self.low > 0 or self.high < 0 or self.is_large

    def is_within(self, margin: float) -> bool:
        """Whether the interval lies between minus and plus the margin."""
        return abs(self.low) <= margin and abs(self.high) <= margin

    def __str__(self) -> str:
        return f"{self.value:+.3f}" + ("" if math.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]")


@dataclass(frozen=True)
class Certainty:
    """How much each target moves the metrics.

    Attributes:
        influences: The influence of each target, by metric name.
    """

    influences: Mapping[str, Influence] = field(default_factory=dict)

    def intervals(self) -> dict[str, Interval]:
        """Return the 95 % interval of every metric; NaN if it has none."""
        return {name: interval_of(influence) for name, influence in self.influences.items()}

    def contrast(self, first: MetricName, second: MetricName) -> Influence:
        """Return how much each target moves the difference between two metrics."""
        minuend, subtrahend = (self.influences.get(str(name), undefined(1)) for name in (first, second))
        return minuend.minus(subtrahend)

    def difference(
        self, metrics: Mapping[str, float], first: MetricName, second: MetricName, level: float = LEVEL
    ) -> Difference:
        """Return the difference between two metrics with its interval; NaN if one of them is unknown.

        Args:
            metrics: The metrics by name.
            first: A metric.
            second: The metric to subtract.
            level: How often the interval holds the true difference.
        """
        value = metrics.get(str(first), float("nan")) - metrics.get(str(second), float("nan"))
        influence = replace(self.contrast(first, second), value=value)
        if influence.error == 0:  # no target moves it, for instance because both scores are the same
            return Difference(value, value, value)
        is_large = {first.statistic, second.statistic} == {WITHIN} and is_beyond_chance(influence, level)
        return Difference(value, *interval_of(influence, level), is_large)


def influences_of(
    metrics: Mapping[str, float],
    pairs: PairColumns,
    truth: PairColumns | None,
    averaged: Iterable[str],
    by_target: Mapping[str, Tensor] | None = None,
    population: int | None = None,
) -> Certainty:
    """Compute how much each target moves every metric.

    Args:
        metrics: The metrics over all targets, by name.
        pairs: The pairs whose edges were reduced.
        truth: The pairs of the targets with ground truth.
        averaged: Methods whose metrics are means over several draws. The influence is that of the first draw.
        by_target: For metrics that are means over targets, the values of the single targets by metric name.
        population: Number of targets that those of the pairs were drawn from; None if they stand for any number of
            others. Targets with ground truth always do: nobody says whether more have true edges.
    """
    influences: dict[str, Influence] = {}
    if pairs.deltas and pairs.owner.numel():
        owner = pairs.owner.numpy()
        # All protocols share the rankings of the scores.
        influence = TargetInfluence(owner, int(owner[-1]) + 1)
        rankings = {name: Ranking(values) for name, values in pairs.scores.items()}
        for protocol, (delta_pc, delta_ne, changed) in pairs.deltas.items():
            pooled = influences_on(influence, rankings, Ranking(delta_pc), Ranking(delta_ne), changed)
            influences |= {
                str(MetricName(method, statistic, protocol)): pooled[method, statistic] for method, statistic in pooled
            }
            for method, scores in pairs.scores.items():
                values = pearson_by_target(scores, delta_pc, pairs.owner, influence.targets)
                influences[str(MetricName(method, WITHIN, protocol))] = influence_on_mean(
                    values.double().numpy(), "correlations"
                )
    for name, values in ({} if by_target is None else by_target).items():
        influences[name] = influence_on_mean(values.double().numpy())
    if population is not None:
        influences = {
            name: influence if name.endswith(OF_TRUTH) else influence.out_of(population)
            for name, influence in influences.items()
        }
    if truth is not None and truth.labels is not None and truth.owner.numel():
        owner = truth.owner.numpy()
        influence = TargetInfluence(owner, int(owner.max()) + 1)
        for method, scores in truth.scores.items():
            influences[str(MetricName(method, TRUTH))] = influence.auroc(Ranking(scores), truth.labels)
    influences |= {str(name): _characterized(*both) for name, both in _fidelities(influences).items()}
    for name, single in influences.items():
        metric = MetricName.parse(name)
        if metric is not None and metric.method in set(averaged) and name in metrics:
            influences[name] = replace(single, value=metrics[name])
    return Certainty(influences)


def mean_over_targets(by_target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean of each metric over the targets where it is defined, and the characterization scores."""
    means = {name: values.nanmean() for name, values in by_target.items()}
    scores = {str(name): characterization_score(*both) for name, both in _fidelities(means).items()}
    return means | scores


def _fidelities(by_name: Mapping[str, Any]) -> dict[MetricName, tuple[Any, Any]]:
    """Return fidelity+ and fidelity- of classifiers, by the name of the characterization score they give."""
    parsed = {name: MetricName.parse(name) for name in by_name}
    both = {}
    for metric in parsed.values():
        # Unfaithfulness is defined for classes only, and so is the characterization score.
        if metric is None or metric.statistic != UNFAITHFULNESS:
            continue
        plus, minus = (replace(metric, statistic=name) for name in (FIDELITY_PLUS, FIDELITY_MINUS))
        both[replace(metric, statistic=CHARACTERIZATION)] = by_name[str(plus)], by_name[str(minus)]
    return both


def _characterized(positive: Influence, negative: Influence) -> Influence:
    """Return the influences on the characterization score p q / ((p + q) / 2), with q = 1 - fidelity-."""
    p, q = positive.value, 1 - negative.value
    middle = (p + q) / 2
    if not middle > 0:
        return undefined(len(positive.by_target))
    by_target = (q * q * positive.by_target - p * p * negative.by_target) / (2 * middle * middle)
    return Influence(p * q / middle, by_target, min(positive.effective, negative.effective))
