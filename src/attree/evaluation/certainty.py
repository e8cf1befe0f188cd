"""Uncertainty of an evaluation's statistics: a bootstrap over the targets.

All methods use the same resampled targets. So the difference between two methods has its own interval, which is
narrower than the intervals of the methods suggest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from attree.evaluation.names import (
    CHARACTERIZATION,
    FIDELITY_MINUS,
    FIDELITY_PLUS,
    TRUTH,
    UNFAITHFULNESS,
    MetricName,
)
from attree.metrics.functional.bootstrap import (
    Interval,
    Resamples,
    faithfulness_of,
    percentile_interval,
    percentile_intervals,
    resample_targets,
    resampled_auroc,
)
from attree.metrics.functional.correlation_bootstrap import ResampledPairs
from attree.metrics.functional.ranking import Ranking
from attree.metrics.functional.sets import characterization_score


@dataclass(frozen=True)
class PairColumns:
    """Columns with one entry per (target, edge) pair.

    Attributes:
        owner: Position of each pair's target among all targets.
        scores: Each method's score of every pair.
        deltas: By protocol: dPC, dNE and whether the class changed. Empty in a comparison with ground truth.
        labels: Whether each pair's edge is true, in a comparison with ground truth; else None.
    """

    owner: Tensor
    scores: Mapping[str, Tensor]
    deltas: Mapping[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    labels: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> PairColumns:
        """Return the columns with a function applied to each of them."""
        return PairColumns(
            function(self.owner),
            {name: function(values) for name, values in self.scores.items()},
            {name: (function(pc), function(ne), function(changed)) for name, (pc, ne, changed) in self.deltas.items()},
            None if self.labels is None else function(self.labels),
        )

    def at(self, positions: Tensor) -> PairColumns:
        """Return the pairs at some positions, in the given order."""
        return self.map(lambda column: column[positions])

    def on_cpu(self) -> PairColumns:
        """Return the columns as tensors on the CPU, without gradients."""
        return self.map(lambda column: column.detach().cpu())

    @classmethod
    def joined(cls, parts: Iterable[PairColumns]) -> PairColumns:
        """Return the (target, edge) pairs of several processes in one object, sorted by target."""
        parts = list(parts)
        first = parts[0]
        labels = [part.labels for part in parts if part.labels is not None]
        deltas = {}
        for name in first.deltas:
            pc, ne, changed = zip(*(part.deltas[name] for part in parts), strict=True)
            deltas[name] = torch.cat(pc), torch.cat(ne), torch.cat(changed)
        whole = cls(
            torch.cat([part.owner for part in parts]),
            {name: torch.cat([part.scores[name] for part in parts]) for name in first.scores},
            deltas,
            torch.cat(labels) if labels else None,
        )
        return whole.at(whole.owner.argsort(stable=True))


@dataclass(frozen=True)
class Difference:
    """The difference between the statistics of two methods.

    Attributes:
        value: The difference.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
    """

    value: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Certainty:
    """The values of metrics in every resample of the targets.

    Attributes:
        resampled: The values by metric name.
    """

    resampled: Mapping[str, Resamples] = field(default_factory=dict)

    def intervals(self) -> dict[str, Interval]:
        """Return the 95 % interval of every metric."""
        return percentile_intervals(self.resampled)

    def difference(self, metrics: Mapping[str, float], first: MetricName, second: MetricName) -> Difference:
        """Return the difference between two metrics with its interval; NaN if one of them is unknown."""
        one, other = (self.resampled.get(str(name), np.full(1, np.nan)) for name in (first, second))
        value = metrics.get(str(first), float("nan")) - metrics.get(str(second), float("nan"))
        return Difference(value, *percentile_interval(one - other))


def resample(
    metrics: Mapping[str, float],
    pairs: PairColumns,
    truth: PairColumns | None,
    averaged: Iterable[str],
    resamples: int,
    seed: int,
    by_target: Mapping[str, Tensor] | None = None,
) -> Certainty:
    """Compute every metric in resamples of the targets.

    Args:
        metrics: The metrics over all targets, by name.
        pairs: The pairs whose edges were reduced.
        truth: The pairs of the targets with ground truth.
        averaged: Methods whose metrics are means over several draws. Only one draw is resampled, so its values are
            shifted to have the mean of all draws.
        resamples: Number of resamples; 0 computes nothing.
        seed: Seed of the resamples.
        by_target: For metrics that are means over targets, the values of the single targets by metric name.
    """
    found: dict[str, Resamples] = {}
    if resamples == 0:
        return Certainty(found)
    if pairs.deltas and pairs.owner.numel():
        owner = pairs.owner.numpy()
        # All protocols share the rankings of the scores.
        drawn = ResampledPairs(owner, resample_targets(int(owner[-1]) + 1, resamples, seed), seed)
        rankings = {name: Ranking(values) for name, values in pairs.scores.items()}
        for protocol, (delta_pc, delta_ne, changed) in pairs.deltas.items():
            own = faithfulness_of(drawn, rankings, Ranking(delta_pc), Ranking(delta_ne), changed)
            found |= {str(MetricName(method, statistic, protocol)): own[method, statistic] for method, statistic in own}
    if truth is not None and truth.labels is not None and truth.owner.numel():
        owner = truth.owner.numpy()
        weights = resample_targets(int(owner.max()) + 1, resamples, seed)
        for method, scores in truth.scores.items():
            found[str(MetricName(method, TRUTH))] = resampled_auroc(scores, truth.labels, owner, weights)
    for name, by in ({} if by_target is None else by_target).items():
        values = by.double().numpy()
        weights = resample_targets(len(values), resamples, seed)
        known = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            found[name] = (weights @ np.where(known, values, 0.0)) / (weights @ known)
    found |= {str(name): _characterized(*values) for name, values in _fidelities(found).items()}
    moved = set(averaged)
    for name, values in found.items():
        metric = MetricName.parse(name)
        if metric is not None and metric.method in moved and name in metrics and np.isfinite(values).any():
            found[name] = values + (metrics[name] - np.nanmean(values))
    return Certainty(found)


def mean_over_targets(by_target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean of each metric over the targets where it is defined, and the characterization scores."""
    found = {name: values.nanmean() for name, values in by_target.items()}
    scores = {str(name): characterization_score(*values) for name, values in _fidelities(found).items()}
    return found | scores


def _fidelities(found: Mapping[str, Any]) -> dict[MetricName, tuple[Any, Any]]:
    """Return fidelity+ and fidelity- of classifiers, by the name of the characterization score they give."""
    parsed = {name: MetricName.parse(name) for name in found}
    both = {}
    for metric in parsed.values():
        # Unfaithfulness is defined for classes only, and so is the characterization score.
        if metric is None or metric.statistic != UNFAITHFULNESS:
            continue
        plus, minus = (replace(metric, statistic=one) for one in (FIDELITY_PLUS, FIDELITY_MINUS))
        both[replace(metric, statistic=CHARACTERIZATION)] = found[str(plus)], found[str(minus)]
    return both


def _characterized(positive: Resamples, negative: Resamples) -> Resamples:
    score = characterization_score(torch.from_numpy(positive), torch.from_numpy(negative))
    values: Resamples = score.numpy()
    return values


def gathered(columns: PairColumns | None) -> PairColumns | None:
    """Return the pairs of all processes. All processes must call this together."""
    if columns is None:
        return None
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, columns.on_cpu())
    return PairColumns.joined(parts)
