"""What an evaluation measured: its metrics, and the scores and effects of single pairs that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from attree.attribution import Attribution, Pairs
from attree.evaluation.certainty import Certainty, PairColumns, influences_of
from attree.evaluation.names import METRIC_LABELS, NUMBER_LABELS
from attree.faithfulness import Reduction


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The numbers of an evaluation, without words and without the model.

    Attributes:
        metrics: Every metric by logged name; NaN if undefined.
        pairs: The (target, edge) pairs of the metrics; in a distributed run, those of this process.
        pair_scores: Each method's score of every pair; for a random method, of its first draw.
        reductions: By protocol, the effect of reducing each pair's edge on the prediction.
        predictions: Class probabilities of the targets, [targets, classes]; with several labels, of not having and of
            having the measured one, [targets, 2]; None for regression.
        truth_columns: Scores and labels of the pairs of targets with ground truth.
        by_target: For metrics of sets of edges, the values of the single targets by metric name.
        averaged: Methods whose metrics are means over several draws.
        seconds: Time that each method took to score the pairs.
        owner: Position of each pair's target among the targets of all processes; None in a single process.
        all_targets: Number of targets of all processes; None in a single process.
        population: Number of targets that the evaluated ones were drawn from; None if they stand for any number of
            others, as graphs do.
        has_intervals: Whether statistics have intervals.
        gathered_certainty: The certainty over the targets of several processes; None in a single process, which
            computes it when it is first needed.
    """

    metrics: dict[str, float]
    pairs: Pairs
    pair_scores: dict[str, Tensor]
    reductions: dict[str, Reduction]
    predictions: Tensor | None = None
    truth_columns: PairColumns | None = None
    by_target: dict[str, Tensor] = field(default_factory=dict)
    averaged: frozenset[str] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    owner: Tensor | None = None
    all_targets: int | None = None
    population: int | None = None
    has_intervals: bool = True
    gathered_certainty: Certainty | None = None

    @cached_property
    def scores(self) -> dict[str, Attribution]:
        """Each method's scores by target and edge."""
        pairs = self.pairs
        return {
            name: Attribution(name, pairs.graph, pairs.targets, pairs.ptr, pairs.edges, values)
            for name, values in self.pair_scores.items()
        }

    @property
    def targets(self) -> Tensor:
        """Ids of the explained nodes, pairs or graphs; in a distributed run, those of this process.

        For a part of a larger graph, these are ids of the whole graph; those of `pairs` are of the part.
        """
        return self.pairs.graph.whole_nodes(self.pairs.targets)

    @property
    def num_targets(self) -> int:
        """Number of explained nodes, pairs or graphs of all processes."""
        return self.targets.numel() if self.all_targets is None else self.all_targets

    @cached_property
    def predicts_numbers(self) -> bool:
        """Whether the model predicts numbers (regression), which have neither a confidence nor an entropy."""
        effects = [reduction.delta_ne for reduction in self.reductions.values() if reduction.delta_ne.numel()]
        return self.predictions is None and len(effects) > 0 and all(bool(entropy.isnan().all()) for entropy in effects)

    @property
    def statistic_labels(self) -> Mapping[str, str]:
        """Names of the statistics in tables, by their names in metrics."""
        return NUMBER_LABELS if self.predicts_numbers else METRIC_LABELS

    @property
    def is_exact(self) -> bool:
        """Whether all targets there are were evaluated, so that no number could differ with other targets."""
        return self.population is not None and self.num_targets >= self.population

    def num_changed(self, protocol: str) -> int:
        """Return the number of reductions that change the predicted class, which `p_auroc` is based on."""
        return int(self.reductions[protocol].changed.sum())

    def num_changed_targets(self, protocol: str) -> int:
        """Return the number of targets with a reduction that changes the predicted class."""
        return int(self.pairs.owner[self.reductions[protocol].changed].unique().numel())

    def columns(self) -> PairColumns:
        """Return the pairs as columns: scores by method, effects by protocol."""
        effects = {
            name: (reduction.delta_pc, reduction.delta_ne, reduction.changed)
            for name, reduction in self.reductions.items()
        }
        return PairColumns(self.pairs.owner if self.owner is None else self.owner, self.pair_scores, effects)

    @cached_property
    def certainty(self) -> Certainty:
        """How much each target moves every metric; computed on first use."""
        if self.gathered_certainty is not None:
            return self.gathered_certainty
        if not self.has_intervals:
            return Certainty()
        truth = None if self.truth_columns is None else self.truth_columns.on_cpu()
        columns = self.columns().on_cpu()
        return influences_of(self.metrics, columns, truth, self.averaged, self.by_target, self.population)
