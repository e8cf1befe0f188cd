"""The metrics of an evaluation and their uncertainty, in one process or in several.

All methods are measured on the same targets. So the difference between two methods has its own interval, which is
narrower than the intervals of the methods suggest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import get_backend_config

from attree.evaluation.names import (
    CHARACTERIZATION,
    FAITHFULNESS,
    FIDELITY_MINUS,
    FIDELITY_PLUS,
    OF_TRUTH,
    TRUTH,
    UNFAITHFULNESS,
    WITHIN,
    MetricName,
    size_name,
)
from attree.faithfulness import Reduction
from attree.metrics.functional import pearsons_by_target
from attree.metrics.functional.auroc import as_labels
from attree.metrics.functional.influence import (
    Influence,
    TargetInfluence,
    influence_on_mean,
    influences_on,
    undefined,
)
from attree.metrics.functional.intervals import LEVEL, Interval, interval_of, is_beyond_chance
from attree.metrics.functional.ranking import Ranking, Values
from attree.metrics.functional.sets import characterization_score
from attree.metrics.functional.within import (
    STATISTICS,
    edges_of_effect,
    effect_sizes,
    pearson_by_target,
    strongest_effects,
)
from attree.metrics.statistics import as_floats
from attree.tensors.limits import exact_dtype

T = TypeVar("T")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
"""Types of the columns that are sent; a process names the type of each by its place here."""


class Exchange:
    """Columns of the same length of all processes, joined in the order of their ranks.

    All processes must make it, and call each method, together.

    Args:
        length: Number of entries in this process.
        device: Device of the columns.
    """

    def __init__(self, length: int, device: torch.device) -> None:
        self.rank, self._size = dist.get_rank(), dist.get_world_size()
        self._device = device_of_messages(device)
        lengths = torch.zeros(self._size, dtype=torch.int64)
        lengths[self.rank] = length
        self._lengths: list[int] = self.summed(lengths).tolist()

    def shares(self, work: Sequence[T]) -> list[Sequence[T]]:
        """Return the share of each process of some work, of nearly equal lengths."""
        ends = [len(work) * rank // self._size for rank in range(self._size + 1)]
        return [work[begin:end] for begin, end in pairwise(ends)]

    def joined(self, column: Tensor, rank: int) -> Tensor | None:
        """Return a column of all processes in the process of a rank, and None in the others."""
        padded = self._padded(column)
        parts = [torch.empty_like(padded) for _ in self._lengths] if rank == self.rank else None
        dist.gather(padded, parts, dst=rank)
        return None if parts is None else self._cut(parts)

    def everywhere(self, column: Tensor) -> Tensor:
        """Return a column of all processes, in every process."""
        padded = self._padded(column)
        parts = [torch.empty_like(padded) for _ in self._lengths]
        dist.all_gather(parts, padded)
        return self._cut(parts)

    def summed(self, table: Tensor) -> Tensor:
        """Return the sum of a table over all processes, on the host."""
        table = table.to(self._device, copy=True)
        dist.all_reduce(table)
        return table.cpu()

    def _padded(self, column: Tensor) -> Tensor:
        """Return a column where messages are sent from, as long as the longest one."""
        column = column.detach().to(self._device)
        return torch.cat([column, column.new_zeros(max(self._lengths) - len(column))])

    def _cut(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part[:length] for part, length in zip(parts, self._lengths, strict=True)])


def gathered(columns: PairColumns | None) -> PairColumns | None:
    """Return the pairs of all processes in the first process, on the host, sorted by target; None in the others.

    All processes must call this together. Tensors are sent, one column of one process at a time: an object would be
    pickled, copied to the device whole, and received by every process.
    """
    if columns is None:
        return None
    sent: list[Tensor] = []
    columns.map(lambda column: sent.append(_sendable(column)) or column)  # type: ignore[func-returns-value]
    device = device_of_messages(columns.owner.device)
    header = torch.tensor([len(columns.owner), *(DTYPES.index(column.dtype) for column in sent)], device=device)
    headers = [torch.empty_like(header) for _ in range(dist.get_world_size())]
    dist.all_gather(headers, header)
    if dist.get_rank() > 0:
        for column in sent if len(columns.owner) else ():
            dist.send(column.to(device).contiguous(), dst=0)
        return None
    parts = [columns.on_cpu()]
    for rank, (length, *codes) in enumerate((header.tolist() for header in headers[1:]), start=1):
        received = iter([_received(rank, length, DTYPES[code], device) for code in codes])
        parts.append(columns.map(partial(_next_like, received)))
    return PairColumns.joined(parts)


def _sendable(column: Tensor) -> Tensor:
    """Return a column in a type that every backend can send: there are some that cannot send truth values."""
    column = column.detach()
    return column.to(torch.uint8) if column.dtype == torch.bool else column


def _received(rank: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Receive one column of another process, and move it to the host before the next one comes."""
    column = torch.empty(length, dtype=dtype, device=device)
    if length:
        dist.recv(column, src=rank)
    return column.cpu()


def _next_like(received: Iterator[Tensor], column: Tensor) -> Tensor:
    """Return the next received column, as truth values if this process's column holds such."""
    values = next(received)
    return values.bool() if column.dtype == torch.bool else values


def device_of_messages(device: torch.device) -> torch.device:
    """Return the device that messages are sent from: the host if a backend can, else that of the columns (NCCL)."""
    return torch.device("cpu") if "cpu:" in get_backend_config() else device


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
