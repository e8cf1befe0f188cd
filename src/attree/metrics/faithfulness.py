"""Faithfulness statistics as `torchmetrics` classes: pooled, within targets, and of sets of edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from attree.errors import expect
from attree.metrics.functional.auroc import as_labels
from attree.metrics.functional.faithfulness import (
    STATISTICS,
    edges_of_effect,
    effect_sizes,
    faithfulness_statistics,
    pearson_by_target,
    strongest_effects,
)
from attree.metrics.functional.ranking import Ranking
from attree.metrics.functional.sets import characterization_score, fidelity, unfaithfulness
from attree.metrics.statistics import ColumnMetric

DELTAS = ("delta_pc", "delta_ne", "changed")

PREFIX = "column_"
"""Prefix of the attributes that hold columns, so that no method's name collides with an attribute of the metric."""


class _Statistic(ColumnMetric):
    """One of the seven statistics; all members of the collection share the columns."""

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
    """The mean of the seven statistics; it computes all seven and keeps them for the collection."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("faithfulness", **kwargs)
        self.statistics: dict[str, Tensor] = {}

    def compute(self) -> Tensor:
        self.statistics = faithfulness_statistics(*map(self.column, self.columns))
        return self.statistics["faithfulness"]


class Faithfulness(MetricCollection):
    """The seven faithfulness statistics of a method and their mean; see `functional.faithfulness_statistics`.

    A `MetricCollection` of eight metrics in one compute group: the pairs are stored once, and `compute` gathers them
    over processes once and sorts each column once. `log_dict(collection)` works too, but then every member gathers and
    sorts by itself.

    Args:
        prefix: Put before every key, for instance `"explain/gatt/weight/"`.
        postfix: Put after every key.
        kwargs: Arguments of `torchmetrics.Metric`.

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
        # Torchmetrics updates the first member of a group: the mean, which computes all.
        group = ["faithfulness", *STATISTICS]
        super().__init__(members, prefix=prefix, postfix=postfix, compute_groups=[group])

    def compute(self) -> dict[str, Tensor]:
        """Compute the eight values over the pairs of all processes."""
        mean = self._mean()
        value = mean.compute()
        return self._named({name: v.to(value.device, copy=True) for name, v in mean.statistics.items()})

    def forward(self, scores: Tensor, delta_pc: Tensor, delta_ne: Tensor, changed: Tensor) -> dict[str, Tensor]:
        """Append pairs and return the eight values of these pairs only."""
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


class FaithfulnessComparison(ColumnMetric):
    """The seven faithfulness statistics and their mean, for each of several methods.

    The deltas are stored, gathered and sorted once for all methods; with one `Faithfulness` per method, once for each.

    Args:
        methods: Names of the methods.
        fixed: Methods whose scores are the same in every epoch, for instance random ones. Their ranking survives
            `reset` and is recomputed only when the scores change: comparing is much faster than sorting.
        kwargs: Arguments of `torchmetrics.Metric`.

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
        reserved = [name for name in self.methods if name in DELTAS]
        expect(not reserved, "methods", f"names other than {', '.join(DELTAS)}", reserved)
        self.fixed = frozenset(fixed)
        unknown = sorted(self.fixed.difference(self.methods))
        expect(not unknown, "fixed", f"names among {', '.join(self.methods)}", unknown)
        self._rankings: dict[str, Ranking] = {}
        for name in (*DELTAS, *self.methods):
            self.add_state(_state(name), default=[], dist_reduce_fx="cat")

    def update(self, scores: Mapping[str, Tensor], delta_pc: Tensor, delta_ne: Tensor, changed: Tensor) -> None:
        """Append pairs.

        Args:
            scores: Scores of the pairs, by method.
            delta_pc: Decline of the predicted class's probability, of each pair.
            delta_ne: Change of the negative entropy, of each pair.
            changed: Whether the predicted class changed, of each pair.
        """
        expect(set(scores) == set(self.methods), "scores", f"scores of {', '.join(self.methods)}", ", ".join(scores))
        columns = {"delta_pc": delta_pc, "delta_ne": delta_ne, "changed": changed, **scores}
        self.append(PREFIX, **columns)

    def compute(self) -> dict[str, dict[str, Tensor]]:
        """Compute each method's statistics over the pairs of all processes; keys as in `faithfulness_statistics`."""
        pc, ne = (Ranking(self.column(_state(name))) for name in DELTAS[:2])
        changed = as_labels(self.column(_state("changed")), "changed")
        return {name: faithfulness_statistics(self._ranking(name), pc, ne, changed) for name in self.methods}

    def _ranking(self, method: str) -> Ranking:
        """Return the ranking of a method's scores; rankings of methods with fixed scores are kept between epochs."""
        column = self.column(_state(method))
        if method not in self.fixed:
            return Ranking(column)
        ranking = self._rankings.get(method)
        if ranking is None or ranking.values.device != column.device or not ranking.values.equal(column):
            # A copy: if the caller changed the tensor in place, it would still be equal to itself.
            self._rankings[method] = ranking = Ranking(column.clone())
        return ranking


def _state(name: str) -> str:
    """Return the name of the attribute that holds a column."""
    return f"{PREFIX}{name}"


class WithinPearson(ColumnMetric):
    """Mean over targets of Pearson's correlation between scores and effects of the target's edges.

    Targets without an effect do not count; see `attree.metrics.functional.pearson_by_target`. All pairs of a target
    must be in one update.

    >>> import torch
    >>> metric = WithinPearson()
    >>> effects, target = torch.tensor([0.5, 0.0, 0.0, 0.5, 0.0]), torch.tensor([4, 4, 4, 8, 8])
    >>> metric(torch.tensor([1.0, 1.0, 0.0, 0.2, 0.1]), effects, target)
    tensor(0.7500, dtype=torch.float64)
    """

    columns = ("values",)
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0

    def update(self, scores: Tensor, effects: Tensor, target: Tensor) -> None:
        """Append the targets of some pairs.

        Args:
            scores: The method's score of each pair.
            effects: The effect of reducing each pair's edge.
            target: The target of each pair, as integers.
        """
        ids, owner = target.unique(return_inverse=True)
        self.append(values=pearson_by_target(scores, effects, owner, ids.numel()))

    def compute(self) -> Tensor:
        """Compute the mean over the targets of all processes; NaN if no target has an effect."""
        return self.column("values").sort().values.nanmean()  # sorted, so that no order of processes changes a digit


class EffectSizes(ColumnMetric):
    """How large effects are, as medians over targets, and how many targets have one.

    The strongest effect of a single edge (0 for a target without an effect), and the number of edges that hold 90 % of
    a target's effect. All pairs of a target must be in one update, with targets in ascending order.

    >>> import torch
    >>> sizes = EffectSizes()(torch.tensor([0.5, 0.125, -0.125, 0.0, 0.0]), torch.tensor([4, 4, 4, 8, 8]))
    >>> {name: value.item() for name, value in sizes.items()}
    {'strongest': 0.25, 'edges_90': 3.0, 'targets_with': 1.0}
    """

    columns = ("strongest", "edges")

    def update(self, effects: Tensor, target: Tensor) -> None:
        """Append the targets of some pairs.

        Args:
            effects: The effect of reducing each pair's edge.
            target: The target of each pair, as integers, ascending.
        """
        ids, owner = target.unique(return_inverse=True)
        strongest = strongest_effects(effects, owner, ids.numel())
        self.append(strongest=strongest, edges=edges_of_effect(effects, owner, ids.numel()))

    def compute(self) -> dict[str, Tensor]:
        """Compute the medians over the targets of all processes; NaN if there are none."""
        return effect_sizes(self.column("strongest"), self.column("edges"))


class _MeanOverTargets(Metric):
    """Mean of one value per target, over all processes."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def add(self, values: Tensor) -> None:
        """Add the values of some targets."""
        self.total = self.total + values.sum().to(self.total)
        self.count = self.count + values.numel()

    def compute(self) -> Tensor:
        """Return the mean; NaN without targets."""
        return self.total / self.count


class Fidelity(_MeanOverTargets):
    """Share of targets whose prediction changes when edges are masked: fidelity+ or fidelity-.

    >>> metric = Fidelity()
    >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 2]))
    >>> metric.compute()
    tensor(0.5000)
    """

    def update(self, predicted: Tensor, predicted_after: Tensor) -> None:
        """Add targets: their predicted classes with all edges and with some edges masked."""
        self.add(fidelity(predicted, predicted_after))


class Unfaithfulness(_MeanOverTargets):
    """Distance of the predictions from the chosen edges alone to the predictions from all edges, mean over targets.

    >>> metric = Unfaithfulness()
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False

    def update(self, probability: Tensor, probability_after: Tensor) -> None:
        """Add targets: their class probabilities with all edges and with the chosen edges alone."""
        self.add(unfaithfulness(probability, probability_after))


class CharacterizationScore(Metric):
    """Weighted harmonic mean of fidelity+ and 1 - fidelity-.

    Args:
        weight: Weight of fidelity+, in (0, 1).
        kwargs: Arguments of `torchmetrics.Metric`.

    >>> metric = CharacterizationScore()
    >>> metric.update(torch.tensor([0, 1]), without=torch.tensor([0, 2]), alone=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.6667)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, weight: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = weight
        self.positive, self.negative = Fidelity(**kwargs), Fidelity(**kwargs)

    def update(self, predicted: Tensor, without: Tensor, alone: Tensor) -> None:
        """Add targets: their predicted classes with all edges, without the chosen edges, and with these alone."""
        self.positive.update(predicted, without)
        self.negative.update(predicted, alone)

    def compute(self) -> Tensor:
        """Return the score over all targets."""
        return characterization_score(self.positive.compute(), self.negative.compute(), self.weight)

    def reset(self) -> None:
        """Remove all targets."""
        super().reset()
        self.positive.reset()
        self.negative.reset()
