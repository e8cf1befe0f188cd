"""Measure the quality of explanations for fixed targets, as often as needed while the model trains."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import cast

import torch
from torch import Tensor, nn

from attree.attention.bypass_and_locality import Bypass
from attree.attention.softmax_hook import message_passing
from attree.attribution import AttributionMethod, Uniform, make_methods, subject_pairs
from attree.data import GroundTruth
from attree.errors import AttreeError, UnsupportedModelError, expect, expect_bool, expect_instance
from attree.evaluation.certainty import influences_of, mean_over_targets
from attree.evaluation.columns import gathered
from attree.evaluation.config import EvaluationConfig, Shard, default_methods, defined_protocols
from attree.evaluation.edge_sets import SetEvaluator, TruthEvaluator
from attree.evaluation.metric_names import BYPASS, EFFECTS, SPARSITY, TRUTH, MetricName
from attree.evaluation.result import Evaluation
from attree.evaluation.statistics import PooledStatistics, mean_of
from attree.evaluation.verdict import HIDDEN_TARGETS, PROTOCOL, effects_together, may_be_hidden
from attree.faithfulness import Effects, Reducer, Reduction, resolve_protocols, score_pairs
from attree.faithfulness.effect_measures import Progress
from attree.source.target_labels import TargetLabels, describe_network, predicted_classes
from attree.subject import Subject
from attree.subject.missed_by_attention import bypass_of, what_attention_misses
from attree.subject.target_roots import Targets

TRIED_EDGES = 8
"""Number of edges around a target that are enough to try out the evaluation."""


class Evaluator:
    """Evaluates explanations of fixed targets. Everything that does not depend on the weights is computed once.

    Args:
        subject: The model call to explain.
        targets: Nodes, pairs or graphs whose predictions are measured while edges are reduced; the same in every
            process.
        config: What to measure: methods, protocols, draws, seed.
        truth: True edges of the nodes that have some, or None.
        labels: True classes and names, for tables, figures and the page.
        shard: This process's share of the targets.
        warn: Warn in the first evaluation if attention explains the model only in part (because of skip connections,
            for example).
    """

    def __init__(
        self,
        subject: Subject,
        targets: Targets,
        config: EvaluationConfig | None = None,
        truth: GroundTruth | None = None,
        *,
        labels: TargetLabels | None = None,
        shard: Shard | None = None,
        warn: bool = True,
    ) -> None:
        expect_instance(subject, "subject", Subject)
        expect_instance(config, "config", EvaluationConfig, optional=True)
        expect_instance(truth, "truth", GroundTruth, optional=True)
        expect_instance(labels, "labels", TargetLabels, optional=True)
        expect_instance(shard, "shard", Shard, optional=True)
        expect_bool(warn, "warn")
        alone = config is None or not config.sets or shard is None or shard.world_size == 1
        expect(alone, "config.sets", "False if several processes evaluate together", True)
        shard = Shard() if shard is None else shard
        config = EvaluationConfig() if config is None else config
        truth = truth if config.ground_truth else None
        has_tree = subject.layers.untraced is None
        if subject.level != "edge" and has_tree and not message_passing(subject.model):
            raise UnsupportedModelError(
                f"Expected {subject.call.name} to have layers that send messages along edges, which methods can score, "
                "but it only attends over all nodes: `attree.explain(model, data, target).nodes` says which nodes a "
                "prediction reads."
            )
        self.config = config
        self.subject = subject
        self.truth = truth
        self.labels = TargetLabels() if labels is None else labels
        self.protocols = defined_protocols(resolve_protocols(config.protocols, subject.model), subject)
        self._reducer = Reducer(subject) if self.protocols else None
        methods = default_methods(self._reducer, self.protocols) if config.methods is None else config.methods
        self.methods = make_methods(methods, seed=config.seed)
        expect(EFFECTS not in self.methods, "methods", f"methods with names other than {EFFECTS}", EFFECTS)
        self.targets = subject.targets(targets)
        self._shard = shard
        self._positions = shard.of(torch.arange(self.targets.numel()))
        self.pairs = subject_pairs(subject, shard.of(self.targets))
        self._truth = None if truth is None else TruthEvaluator(subject, truth, shard)
        # Methods by the names of their score columns: one column per method, or per draw of a random method.
        self._columns = {name: _columns(name, method, config.random_draws) for name, method in self.methods.items()}
        columns = {column: method for group in self._columns.values() for column, method in group.items()}
        fixed = [column for column, method in columns.items() if method.is_random or isinstance(method, Uniform)]
        names = {name: list(of_method) for name, of_method in self._columns.items()}
        self._statistics = PooledStatistics(names, fixed, shard.world_size > 1)
        self._random_scores: dict[str, Tensor] = {}
        if self._reducer is None and any(method.reads_effects for method in self.methods.values()):
            self._reducer = Reducer(subject)
        bypass = bypass_of(subject, self.targets)
        self._last_bypass = bypass, _versions(subject.call.user_model)
        self._warns = warn and shard.rank == 0

    @property
    def explained(self) -> Tensor:
        """The targets whose explanations are saved: nodes with ground truth, or else the evaluated targets."""
        if self.truth is None or self.subject.level == "graph":
            return self.targets
        return self.truth.targets.to(self.subject.device)

    def try_out(self) -> None:
        """Evaluate one target with few edges around it, so that what cannot be explained is refused early."""
        target = self.targets[:1]
        if self.pairs.targets.numel():  # this process has a share of the targets
            flow = torch.bincount(self.pairs.owner[self.pairs.flow], minlength=self.pairs.targets.numel())
            is_enough = flow >= min(TRIED_EDGES, int(flow.max()))
            target = self.pairs.targets[flow.masked_fill(~is_enough, int(flow.max()) + 1).argmin().view(1)]
        Evaluator(self.subject, target, replace(self.config, random_draws=1), warn=False).evaluate()

    def evaluate(self, progress: Progress | None = None, *, final: bool = True) -> Evaluation:
        """Evaluate the model's current weights. All processes return the same metrics.

        Until the next call, `self.subject` keeps the attention of these weights, so that figures and files agree.

        Args:
            progress: Called as `progress(done, total)`, in numbers of pairs, after each chunk of reductions.
            final: Average random methods over their draws, not only take the first; and compare methods that read
                effects (occlusion) with ground truth. That reduces every edge around every target with ground truth,
                and takes several times as long as the rest.
        """
        effects = None if self._reducer is None else self._reducer.record()
        self.subject = (
            self.subject.with_current_weights() if effects is None else self.subject.with_attention(effects.attention)
        )
        if self._warns:
            self._warns = False
            for sentence in what_attention_misses(self.subject, self._last_bypass[0]):
                warnings.warn(sentence, stacklevel=2)
        return self._evaluate(effects, progress, final)

    def _evaluate(self, effects: Effects | None, progress: Progress | None, final: bool) -> Evaluation:
        """Measure all methods under all protocols and against ground truth, and return the evaluation."""
        metrics: dict[str, Tensor] = {}
        reductions: dict[str, Reduction] = {}
        for protocol in self.protocols:  # first, because some methods read the effects
            assert effects is not None
            reductions[protocol.name] = effects.reduce(self.pairs, protocol, progress=progress)
        compared = self._compared_with_truth(final)
        if self._truth is not None:
            for name in compared:
                columns = self._columns[name]
                aurocs = [self._truth.auroc(self.subject, method, effects) for method in columns.values()]
                metrics[str(MetricName(name, TRUTH))] = mean_of(aurocs)
        scores: dict[str, Tensor] = {}
        seconds: dict[str, float] = {}
        for name, columns in self._columns.items():
            for column, method in columns.items() if final else [*columns.items()][:1]:
                began = perf_counter()
                scores[column] = self._scores(column, method, effects)
                seconds.setdefault(name, perf_counter() - began)
        metrics |= self._statistics.metrics(scores, reductions, self.targets.numel())
        by_target = self._measure_sets(scores) if self.config.sets and final else {}
        metrics |= mean_over_targets(by_target)
        numbers = {name: float(value) for name, value in metrics.items()}
        if final:
            numbers |= self._together(numbers, reductions, effects)
        bypass = self._bypass()
        if bypass.exists:
            numbers[BYPASS] = bypass.share
        return Evaluation(
            metrics=numbers,
            pairs=self.pairs,
            pair_scores={name: scores[next(iter(columns))] for name, columns in self._columns.items()},
            reductions=reductions,
            predictions=predicted_classes(self.subject, self.pairs.targets),
            truth_columns=None if self._truth is None else self._truth.columns(compared),
            by_target=by_target,
            averaged=frozenset(name for name, columns in self._columns.items() if final and len(columns) > 1),
            seconds=seconds,
            owner=None if self._shard.world_size == 1 else self._positions[self.pairs.owner.cpu()],
            all_targets=self.targets.numel(),
            population=_population(self.subject),
            has_intervals=self.config.intervals,
            method_labels={name: method.label for name, method in self.methods.items()},
            settings={name: method.settings() for name, method in self.methods.items()},
            meanings={protocol.name: protocol.meaning for protocol in self.protocols},
            target_labels=self.labels.at(self.pairs.targets),
            all_target_labels=self.labels,
            network=describe_network(self.subject),
            subject=self.subject,
            attention=None if self.subject.layers.untraced else self.subject.layers,
            roots=None if self.subject.layers.untraced else self.subject.roots(self.pairs.targets),
            truth=self.truth,
        )

    def _together(
        self, metrics: Mapping[str, float], reductions: Mapping[str, Reduction], effects: Effects | None
    ) -> dict[str, float]:
        """Return the effect of two edges at once by name, if single effects may hide it.

        Every process measures the same targets, so that no process has to wait for others.
        """
        leading = sorted(self.protocols, key=lambda protocol: protocol.name != PROTOCOL)
        is_possible = effects is not None and leading and self.methods and self.subject.head.mode != "regression"
        if not is_possible or not may_be_hidden(metrics, [protocol.name for protocol in leading]):
            return {}
        pairs = subject_pairs(self.subject, self.targets[:HIDDEN_TARGETS])
        assert effects is not None
        is_alone = self._shard.world_size == 1  # then these are the first pairs
        sizes = sum(
            (reductions[protocol.name] if is_alone else effects.reduce(pairs, protocol)).delta_pc[: len(pairs)].abs()
            for protocol in leading
        )
        single = (reductions[leading[0].name] if is_alone else effects.reduce(pairs, leading[0])).delta_pc[: len(pairs)]
        scores = score_pairs(next(iter(self.methods.values())), self.subject, pairs, effects)
        try:
            return effects_together(self.subject, pairs, single, [scores, cast(Tensor, sizes)], leading[0])
        except AttreeError:  # no engine reduces sets of edges of this model
            return {}

    def _compared_with_truth(self, final: bool) -> dict[str, AttributionMethod]:
        """Return the methods to compare with ground truth by name; for a random method, its first draw."""
        first = {name: next(iter(columns.values())) for name, columns in self._columns.items()}
        return {
            name: method for name, method in first.items() if final or not (method.reads_effects or method.truth_at_end)
        }

    def _measure_sets(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return metrics of sets of edges by name, one value per target; for a random method, of its first draw."""
        sets = SetEvaluator(self.subject, self.pairs)
        by_target: dict[str, Tensor] = {}
        for name, columns in self._columns.items():
            column, method = next(iter(columns.items()))
            by_target[str(MetricName(name, SPARSITY))] = sets.sparsity(scores[column])
            for protocol in self.protocols:
                for statistic, values in sets.measure(scores[column], protocol).items():
                    by_target[str(MetricName(name, statistic, protocol.name))] = values
            if self._truth is not None:
                for statistic, values in self._truth.by_target(method).items():
                    by_target[str(MetricName(name, statistic))] = values
        return by_target

    def with_certainty(self, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation with intervals over the targets of all processes, in the first process.

        All processes must call this together; the others have no intervals. In a single process, an evaluation computes
        its intervals on first use.
        """
        if self._shard.world_size == 1 or not evaluation.has_intervals:
            return evaluation
        columns, truth = gathered(evaluation.columns()), gathered(evaluation.truth_columns)
        if columns is None:
            return replace(evaluation, has_intervals=False)
        certainty = influences_of(
            evaluation.metrics, columns, truth, evaluation.averaged, population=evaluation.population
        )
        return replace(evaluation, gathered_certainty=certainty)

    def _bypass(self) -> Bypass:
        """Return how much bypasses attention with the current weights; measured again only if the weights changed."""
        bypass, versions = self._last_bypass
        now = _versions(self.subject.call.user_model)
        if now is None or now != versions:
            bypass = bypass_of(self.subject, self.targets)
            self._last_bypass = bypass, now
        return bypass

    def _scores(self, column: str, method: AttributionMethod, effects: Effects | None) -> Tensor:
        """Return a column's score of every pair. Random scores are drawn only once."""
        if not method.is_random:
            return score_pairs(method, self.subject, self.pairs, effects)
        if column not in self._random_scores:
            self._random_scores[column] = method.score_pairs(self.subject, self.pairs)
        return self._random_scores[column]


def _population(subject: Subject) -> int | None:
    """Return how many targets there are to draw from; None for graphs."""
    origin = subject.graph.origin
    if origin is not None:
        return origin.num_nodes
    return None if subject.level == "graph" else subject.targets().numel()


def _versions(model: nn.Module) -> list[tuple[int, int]] | None:
    """Return a value that changes with every parameter and buffer; None if torch does not count their changes."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return [(id(tensor), tensor._version) for tensor in tensors]


def _columns(name: str, method: AttributionMethod, count: int) -> dict[str, AttributionMethod]:
    """Return a method by the name of its column, or `count` draws of a random method by the names of theirs."""
    draws = method.draws(count)
    if len(draws) == 1:
        return {name: draws[0]}
    return {f"{name} {number}": draw for number, draw in enumerate(draws)}
