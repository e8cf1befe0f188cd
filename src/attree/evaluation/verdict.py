"""The verdict on an evaluation, and what single effects and mean attention hide from it.

The rules that make the findings are in `attree.evaluation.verdict_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from attree.attention import Attention
from attree.attribution import METHODS, Pairs
from attree.evaluation.certainty import Difference
from attree.evaluation.metric_names import TRUTH, WITHIN, MetricName, size_name
from attree.faithfulness import ReductionProtocol, delete_edges
from attree.metrics.functional import median
from attree.metrics.functional.intervals import joint_level
from attree.subject import Subject

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation


SMALL = 0.01
"""Effects are small if a target's strongest edge changes the probability by less than this, as a median."""

HIDDEN = 10.0
"""Edges may stand in for each other if effects under another protocol are this many times as large."""

HIDDEN_TARGETS = 20
"""Number of targets whose two strongest edges are reduced together."""


def may_be_hidden(metrics: Mapping[str, float], protocols: Sequence[str]) -> bool:
    """Whether effects under the leading protocol are so small that edges may stand in for each other.

    They are 0, or those under another protocol are not small and many times as large.

    Args:
        metrics: The metrics by logged name, with the sizes of effects.
        protocols: Names of the protocols, the leading one pairs.
    """
    leading, *others = (metrics[size_name(name, "strongest")] for name in protocols)
    if not leading < SMALL:
        return False
    return leading == 0 or any(other >= SMALL and other > HIDDEN * leading for other in others)


def effects_together(
    subject: Subject, pairs: Pairs, effects: Tensor, order: Sequence[Tensor], protocol: ReductionProtocol
) -> dict[str, float]:
    """Return the effect of each target's two strongest edges reduced at once, and the sum of their single effects.

    Both are medians over the targets with two edges, by logged name: sizes `two_together` and `two_apart`.

    Args:
        subject: The model call, which predicts classes.
        pairs: The pairs of some targets.
        effects: The single effect of each pair's edge.
        order: Values of the pairs: the strongest edges have the largest of the last ones, among equal ones of those
            before.
        protocol: The protocol under which two edges are reduced.
    """
    ascending = torch.arange(len(pairs), device=effects.device)
    for values in order:
        ascending = ascending[values.to(effects.device)[ascending].argsort(stable=True)]
    rank = torch.empty_like(ascending)
    rank[ascending] = torch.arange(len(pairs), device=effects.device)
    usable = pairs.flow & (pairs.edges < pairs.graph.num_proper_edges)
    rank = rank.masked_fill(~usable, -1)
    probabilities = delete_edges(subject, pairs, {"": rank.float()}, (0, 2), protocol)[""]
    targets = pairs.targets.numel()
    has_two = pairs.owner[usable].bincount(minlength=targets) >= 2
    by_rank = rank.argsort(descending=True)
    by_target = by_rank[pairs.owner[by_rank].argsort(stable=True)]
    begin = pairs.ptr[:-1][has_two]
    apart = effects[by_target[begin]] + effects[by_target[begin + 1]]
    together = (probabilities[:, 0] - probabilities[:, 1])[has_two]
    return {
        size_name(protocol.name, size): float(median(values.cpu().double()))
        for size, values in (("two_together", together), ("two_apart", apart))
    }


def heads_apart(attention: Attention) -> float:
    """Return the share of a node's attention that a head puts on other edges than the mean of the heads does.

    It is the total variation, as a mean over heads and nodes with several edges, in the layer where it is largest; 0
    without a layer of several heads.
    """
    attention = attention.walked
    destination, largest = attention.graph.edge_index[1], 0.0
    has_choice = destination.bincount(minlength=attention.graph.num_nodes) > 1
    for weights in attention.weights:
        if weights.shape[1] > 1 and bool(has_choice.any()):
            apart = (weights - weights.mean(dim=1, keepdim=True)).abs().cpu().double() / 2
            by_node = apart.new_zeros(attention.graph.num_nodes, weights.shape[1])
            by_node.index_add_(0, destination.cpu(), apart)
            largest = max(largest, float(by_node[has_choice.cpu()].mean()))
    return largest


STATISTIC = WITHIN
"""The statistic that ranks methods: the mean over targets of the correlation of scores with effects."""

WEAK = 0.3
"""Correlations below this are called weak: they say little about a single edge."""

SAME = 0.05
"""Largest difference of correlations that counts as none."""

SIGNIFICANCE = 0.05
"""How often a verdict may say that a method is better or worse than another where both are equal, in all its sentences
together."""

PROTOCOL = "removal"
"""The protocol under which a method is recommended, if it was measured."""

ATTENTION_METHODS = ("gatt", "gatt_sim", "gatt_avg", "avgatt")
"""Methods whose scores are the network's attention."""

CONFIDENT = 0.999
"""Predictions with a higher probability count as saturated: single edges hardly change them."""

OWN_PROTOCOL = {"occlusion": "removal"}
"""Methods whose score of an edge is its measured effect, each with the protocol of that effect."""


@dataclass(frozen=True)
class Finding:
    """One statement about an evaluation.

    Attributes:
        rule: Name of the rule that made it.
        sentence: The statement in words.
        is_caution: Whether it limits what the headline says.
    """

    rule: str
    sentence: str
    is_caution: bool = False


class Verdict(tuple[Finding, ...]):
    """All findings of an evaluation.

    Attributes:
        method: Name of the recommended method: the one that predicts effects best under `removal`, or under the last
            protocol if `removal` was not measured. Under `removal` it is `occlusion`, which measures this effect. None
            if no correlation is above `SAME`.
        headline: Which method to use, how good it is, and whether attention matters, in at most two lines.
    """

    method: str | None
    headline: str

    def __new__(cls, findings: Iterable[Finding] = (), method: str | None = None, headline: str = "") -> Self:
        verdict = super().__new__(cls, findings)
        verdict.method = method
        verdict.headline = headline
        return verdict

    @property
    def sentences(self) -> list[str]:
        """The findings in words."""
        return [finding.sentence for finding in self]

    @property
    def cautions(self) -> list[str]:
        """The findings that limit what the headline says, in words."""
        return [finding.sentence for finding in self if finding.is_caution]

    @property
    def rules(self) -> set[str]:
        """Names of the rules that made findings."""
        return {finding.rule for finding in self}

    def __str__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.sentences)


def value_of(evaluation: Evaluation, method: str, protocol: str | None, statistic: str = STATISTIC) -> float:
    """Return a statistic of a method; NaN if it is undefined or was not measured."""
    return evaluation.metrics.get(str(MetricName(method, statistic, protocol)), math.nan)


def label_of(evaluation: Evaluation, method: str) -> str:
    """Return the name of a method in tables."""
    return evaluation.method_labels.get(method, method)


def join_labels(evaluation: Evaluation, methods: list[str]) -> str:
    """Return the names of several methods in tables, joined by "and"."""
    return " and ".join(label_of(evaluation, method) for method in methods)


def labelled_value(evaluation: Evaluation, method: str, protocol: str, statistic: str = STATISTIC) -> str:
    """Return a statistic with its name in tables and its interval: "confidence, Pearson: 0.82 [0.78, 0.85]"."""
    low, high = evaluation.interval(method, protocol, statistic)
    value = value_of(evaluation, method, protocol, statistic)
    interval = "" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    return f"{evaluation.statistic_labels[statistic]}: {value:.2f}{interval}"


def cost_of(evaluation: Evaluation, method: str) -> str:
    """Return the time that a method took, in words. It is rounded, so that equal evaluations give equal sentences."""
    seconds = evaluation.seconds.get(method)
    if seconds is None:
        return ""
    return "; computed in less than a second" if seconds < 1 else f"; computed in about {seconds:.0f} s"


def exact_methods(evaluation: Evaluation, protocol: str) -> list[str]:
    """Return the methods whose scores are the measured effects under a protocol."""
    return [method for method, exact in OWN_PROTOCOL.items() if exact == protocol and method in evaluation.pair_scores]


def best_first(evaluation: Evaluation, protocol: str) -> dict[str, float]:
    """Return the defined correlations under a protocol, best first, without `exact_methods` and random methods."""
    values = {
        method: value_of(evaluation, method, protocol)
        for method in evaluation.pair_scores
        if OWN_PROTOCOL.get(method) != protocol and not (method in METHODS and METHODS[method].is_random)
    }
    defined = {method: value for method, value in values.items() if not math.isnan(value)}
    return dict(sorted(defined.items(), key=lambda item: -item[1]))


def predicts_effects(evaluation: Evaluation, method: str, protocol: str) -> bool:
    """Whether a method predicts effects: its correlation is not weak, and its interval is above 0."""
    low, _ = evaluation.interval(method, protocol, STATISTIC)
    return value_of(evaluation, method, protocol) >= WEAK and not low <= 0


def confident_share(evaluation: Evaluation) -> float:
    """Return the share of the targets whose predicted probability is close to 1; 0 if there are no probabilities."""
    predictions = evaluation.predictions
    if predictions is None or predictions.numel() == 0:
        return 0.0
    return float((predictions.amax(dim=-1) > CONFIDENT).float().mean())


def is_saturated(evaluation: Evaluation) -> bool:
    """Whether at least half of the targets have a predicted probability close to 1."""
    return confident_share(evaluation) >= 0.5


def leading_protocol(evaluation: Evaluation) -> str | None:
    """Return the protocol that the headline is about; None if no edges were reduced."""
    return PROTOCOL if PROTOCOL in evaluation.reductions else next(iter(evaluation.reductions), None)


def comparisons_of(evaluation: Evaluation) -> list[tuple[MetricName, MetricName]]:
    """Return all pairs of metrics that a verdict may compare.

    These are every two methods under every protocol, a method under two protocols, and GAtt and uniform attention by
    the true edges.
    """
    protocols = list(evaluation.reductions)
    names = {
        protocol: [MetricName(method, STATISTIC, protocol) for method in best_first(evaluation, protocol)]
        for protocol in protocols
    }
    pairs = [pair for protocol in protocols for pair in combinations(names[protocol], 2)]
    method = compared_under_protocols(evaluation)
    pairs += [(MetricName(method, STATISTIC, a), MetricName(method, STATISTIC, b)) for a, b in pairwise(protocols)]
    return [*pairs, (MetricName("gatt", TRUTH), MetricName("uniform", TRUTH))]


def compared_under_protocols(evaluation: Evaluation) -> str:
    """Return the method that shows whether the protocol matters: GAtt, or the first method."""
    return "gatt" if "gatt" in evaluation.pair_scores else next(iter(evaluation.pair_scores), "")


def verdict_level(evaluation: Evaluation) -> float:
    """Return the level of each comparison at which all comparisons of a verdict hold together."""
    contrasts = (evaluation.certainty.contrast(*names) for names in comparisons_of(evaluation))
    return joint_level(contrasts, 1 - SIGNIFICANCE)


def compared(
    evaluation: Evaluation, first: str, second: str, protocol: str, statistic: str = STATISTIC
) -> Difference | None:
    """Return the difference between two methods at the level of the verdict; None if it is undefined.

    Args:
        evaluation: The evaluation.
        first: Name of a method.
        second: Name of the method to subtract.
        protocol: A protocol, or `truth`.
        statistic: The statistic, under a protocol.
    """
    of_truth = protocol == "truth"
    values = [
        value_of(evaluation, name, None, TRUTH) if of_truth else value_of(evaluation, name, protocol, statistic)
        for name in (first, second)
    ]
    if any(map(math.isnan, values)):
        return None
    return evaluation.difference(first, second, protocol, statistic, level=evaluation.verdict_level)
