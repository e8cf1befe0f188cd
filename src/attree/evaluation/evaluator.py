"""Explanation quality of a model for fixed targets, over and over as it trains."""

from __future__ import annotations

import warnings
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor, nn

from attree.attention.diagnostics import Bypass
from attree.attribution import AttributionMethod, make_methods, subject_pairs
from attree.data import GroundTruth
from attree.effects import Effects
from attree.errors import expect, expect_bool, expect_instance
from attree.evaluation.certainty import gathered, mean_over_targets, resample
from attree.evaluation.config import EvaluationConfig, default_methods
from attree.evaluation.names import BYPASS, SPARSITY, TRUTH, MetricName
from attree.evaluation.result import Evaluation
from attree.evaluation.set_evaluator import SetEvaluator
from attree.evaluation.target_labels import TargetLabels
from attree.evaluation.targets import Shard
from attree.evaluation.truth_evaluator import TruthEvaluator
from attree.faithfulness import Reducer, Reduction, resolve_protocols
from attree.faithfulness.reduction import Progress
from attree.metrics import FaithfulnessComparison
from attree.subject import Subject
from attree.subject.diagnose import bypass_of, what_attention_misses
from attree.subject.target_ids import Targets
from attree.tensors.limits import exact_dtype


class Evaluator:
    """Evaluates explanations of chosen targets; what stays the same while the model trains is made once.

    Args:
        subject: What is explained.
        targets: Nodes or graphs whose predictions are measured under attention reduction; the same in every process.
        config: What is measured: methods, protocols, draws, seed.
        truth: True edges of the nodes that have some, or None.
        labels: True classes and names, which results pass on to tables, figures and the page.
        shard: This process's share of the targets.
        warn: Look for what attention does not see of the model, and warn of it.
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
        expect(alone, "config.sets", "False where several processes evaluate together", True)
        shard = Shard() if shard is None else shard
        config = EvaluationConfig() if config is None else config
        truth = truth if config.ground_truth else None
        self.config = config
        self.subject = subject
        self.truth = truth
        self.labels = TargetLabels() if labels is None else labels
        self.protocols = resolve_protocols(config.protocols, subject.model)
        self._reducer = Reducer(subject) if self.protocols else None
        chosen = default_methods(self._reducer) if config.methods is None else config.methods
        self.methods = make_methods(chosen, seed=config.seed)
        self.targets = subject.targets(targets)
        self._shard = shard
        self._positions = shard.of(torch.arange(self.targets.numel()))
        self.pairs = subject_pairs(subject, shard.of(self.targets))
        self._truth = None if truth is None else TruthEvaluator(subject, truth, shard)
        # Each method by the names of its columns: itself, or several seeded draws of a random one.
        self._columns = {name: _columns(name, method, config.random_draws) for name, method in self.methods.items()}
        columns = {column: method for group in self._columns.values() for column, method in group.items()}
        fixed = [column for column, method in columns.items() if method.is_random]
        # One process must not wait for pairs of others: those of a script may be elsewhere, or gone.
        together = shard.world_size > 1
        self._comparison = FaithfulnessComparison(columns, fixed, sync_on_compute=together).to(subject.device)
        self._fixed: dict[str, Tensor] = {}
        if self._reducer is None and any(method.reads_effects for method in self.methods.values()):
            self._reducer = Reducer(subject)
        bypass = bypass_of(subject, self.targets)
        self._measured = bypass, _versions(subject.model)
        if warn and shard.rank == 0:
            for sentence in what_attention_misses(subject, bypass):
                warnings.warn(sentence, stacklevel=2)

    @property
    def explained(self) -> Tensor:
        """The targets whose explanations are saved: those with ground truth, or else the chosen ones."""
        return self.targets if self.truth is None else self.truth.targets.to(self.subject.device)

    def evaluate(self, progress: Progress | None = None, *, final: bool = True) -> Evaluation:
        """Measure with the model's current weights; metrics are the same in every process.

        Until the next call, `self.subject` is what was measured here, so that figures and files show the same.

        Args:
            progress: Called as `progress(done, total)` with numbers of pairs each time some have been reduced.
            final: Also compare methods that read effects (occlusion) with ground truth. That reduces every edge around
                every target with ground truth, which takes several times as long as the rest.
        """
        recorded = None if self._reducer is None else self._reducer.record()
        self.subject = self.subject.fresh() if recorded is None else self.subject.seen(recorded.attention)
        effects = None if recorded is None else Effects.of(self.subject, recorded)
        return self._evaluate(effects, progress, final)

    def _evaluate(self, effects: Effects | None, progress: Progress | None, final: bool) -> Evaluation:
        metrics: dict[str, Tensor] = {}
        reductions: dict[str, Reduction] = {}
        for protocol in self.protocols:  # before methods are asked, some of which read them
            assert effects is not None
            reductions[protocol.name] = effects.reduce(self.pairs, protocol, progress)
        compared = self._shown(final)
        if self._truth is not None:
            for name in compared:
                columns = self._columns[name]
                aurocs = [self._truth.auroc(self.subject, method) for method in columns.values()]
                metrics[str(MetricName(name, TRUTH))] = _mean(aurocs)
        scores: dict[str, Tensor] = {}
        seconds: dict[str, float] = {}
        for name, columns in self._columns.items():
            for column, method in columns.items():
                began = perf_counter()
                scores[column] = self._scores(column, method)
                seconds.setdefault(name, perf_counter() - began)
        for protocol in self.protocols:
            reduction = reductions[protocol.name]
            self._comparison.update(scores, reduction.delta_pc, reduction.delta_ne, reduction.changed)
            values = self._comparison.compute()
            self._comparison.reset()  # or its columns would take up memory until the next evaluation
            for name, columns in self._columns.items():
                for statistic in values[next(iter(columns))]:
                    value = _mean([values[column][statistic] for column in columns])
                    metrics[str(MetricName(name, statistic, protocol.name))] = value
        by_target = self._of_sets(scores) if self.config.sets and final else {}
        metrics |= mean_over_targets(by_target)
        numbers = {name: float(value) for name, value in metrics.items()}
        bypass = self._bypass()
        if bypass.exists:
            numbers[BYPASS] = bypass.share
        return Evaluation(
            numbers,
            self.pairs,
            {name: scores[next(iter(columns))] for name, columns in self._columns.items()},
            reductions,
            {name: method.label for name, method in self.methods.items()},
            {name: method.settings() for name, method in self.methods.items()},
            {protocol.name: protocol.meaning for protocol in self.protocols},
            predicted_classes(self.subject, self.pairs.targets),
            self.labels.at(self.pairs.targets),
            describe_network(self.subject),
            self.subject.attention,
            self.truth,
            self.subject.roots(self.pairs.targets),
            owner=None if self._shard.world_size == 1 else self._positions[self.pairs.owner.cpu()],
            truth_columns=None if self._truth is None else self._truth.columns(compared),
            averaged=frozenset(name for name, columns in self._columns.items() if len(columns) > 1),
            resamples=self.config.resamples,
            seed=self.config.seed,
            seconds=seconds,
            by_target=by_target,
            all_targets=self.targets.numel(),
            subject=self.subject,
            named=self.labels,
        )

    def _shown(self, final: bool) -> dict[str, AttributionMethod]:
        """The methods that are compared with ground truth; of a random one, the first draw."""
        first = {name: next(iter(columns.values())) for name, columns in self._columns.items()}
        return {name: method for name, method in first.items() if final or not method.reads_effects}

    def _of_sets(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of sets of edges by name, one value per target; of a random method, of its first draw."""
        sets = SetEvaluator(self.subject, self.pairs)
        found: dict[str, Tensor] = {}
        for name, columns in self._columns.items():
            column, method = next(iter(columns.items()))
            found[str(MetricName(name, SPARSITY))] = sets.sparsity(scores[column])
            for protocol in self.protocols:
                for statistic, values in sets.measure(scores[column], protocol).items():
                    found[str(MetricName(name, statistic, protocol.name))] = values
            if self._truth is not None:
                for statistic, values in self._truth.by_target(method).items():
                    found[str(MetricName(name, statistic))] = values
        return found

    def with_certainty(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation, with intervals over the targets of all processes.

        All processes must call it. In a single process, an evaluation computes its intervals when they are asked for.
        """
        if self._shard.world_size == 1:
            return evaluation
        columns = gathered(evaluation.columns())
        truth = gathered(evaluation.truth_columns)
        assert columns is not None
        known = resample(evaluation.metrics, columns, truth, evaluation.averaged, evaluation.resamples, evaluation.seed)
        return replace(evaluation, known=known)

    def _bypass(self) -> Bypass:
        """What goes around attention with the current weights; measured again only if they changed."""
        known, versions = self._measured
        now = _versions(self.subject.model)
        if now is None or now != versions:
            around = known.around
            known = bypass_of(self.subject, self.targets, known=around)
            self._measured = replace(known, around=around | known.around), now
        return known

    def _scores(self, column: str, method: AttributionMethod) -> Tensor:
        """A column's score of every pair; random scores are drawn once."""
        if not method.is_random:
            return method.score_pairs(self.subject, self.pairs)
        if column not in self._fixed:
            self._fixed[column] = method.score_pairs(self.subject, self.pairs)
        return self._fixed[column]


def _versions(model: nn.Module) -> list[tuple[int, int]] | None:
    """Changes whenever a parameter or buffer does; None if torch does not count their changes."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return [(id(tensor), tensor._version) for tensor in tensors]


def predicted_classes(subject: Subject, targets: Tensor) -> Tensor | None:
    """Class probabilities of some targets, [T, classes]; None where labels or numbers are predicted."""
    output, head = subject.output[subject.rows(targets)], subject.head
    if head.mode == "regression" or head.measured(output) is not None:
        return None
    return head.logits(output.detach().to(exact_dtype(output.device))).softmax(dim=-1)


def describe_network(subject: Subject) -> str:
    """The network in a few words: its class, inside a LightningModule's `net`, and its depth."""
    inner = getattr(subject.model, "net", None)
    name = type(inner if isinstance(inner, nn.Module) else subject.model).__name__
    return f"{name}, {subject.num_layers} layer{'' if subject.num_layers == 1 else 's'}"


def _columns(name: str, method: AttributionMethod, count: int) -> dict[str, AttributionMethod]:
    draws = method.draws(count)
    if len(draws) == 1:
        return {name: draws[0]}
    return {f"{name} {number}": draw for number, draw in enumerate(draws)}


def _mean(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).mean()
