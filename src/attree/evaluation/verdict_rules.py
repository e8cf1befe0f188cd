"""The rules of the verdict: each answers one question about an evaluation, in any number of sentences.

Numbers in sentences have the same names as in tables (`names.METRIC_LABELS`). The thresholds are chosen by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from attree.evaluation.certainty import Difference
from attree.evaluation.names import BYPASS, FAITHFULNESS, METRIC_LABELS, TRUTH, MetricName
from attree.evaluation.verdict import (
    RANKS,
    STATISTIC,
    WEAK,
    Finding,
    Verdict,
    best_first,
    cost_of,
    exact_methods,
    join_labels,
    label_of,
    labelled_value,
    predicts_effects,
    value_of,
)
from attree.metrics.functional.correlation import pearson
from attree.metrics.functional.influence import FEWEST_TARGETS

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation

PROTOCOL = "removal"
"""The protocol under which a method is recommended, if it was measured."""

SAME = 0.05
"""Largest difference of correlations that counts as none."""

LARGE = 0.1
"""Smallest difference of correlations that counts as large."""

ALIKE = 0.9
"""Smallest correlation between the effects under two protocols at which the protocols count as similar."""

CONFIDENT = 0.999
"""Predictions with a higher probability count as saturated: single edges hardly change them."""

FEW_TARGETS = 20
"""With fewer targets, the verdict says that there are too few."""

WIDE = 0.3
"""A correlation whose interval is wider than this counts as uncertain."""


@dataclass(frozen=True)
class Rule:
    """One question about an evaluation.

    Attributes:
        name: Name of the rule in its findings.
        question: The question.
        answer: Function that yields the answer in sentences; none if there is nothing to say.
    """

    name: str
    question: str
    answer: Callable[[Evaluation], Iterator[str]]


def _no_effect(evaluation: Evaluation) -> Iterator[str]:
    still = [name for name, one in evaluation.reductions.items() if len(evaluation.pairs) and not one.delta_pc.any()]
    if still:
        names = " and ".join(f"`{name}`" for name in still)
        yield f"Under {names}, reducing any one edge changes no prediction at all: attention explains nothing here."


def _best(evaluation: Evaluation) -> Iterator[str]:
    """Say which method predicts the effects of edges best under each protocol, and which methods may be as good."""
    for protocol in evaluation.reductions:
        ranked = best_first(evaluation, protocol)
        if not ranked:
            if evaluation.pair_scores and evaluation.reductions[protocol].delta_pc.any():
                yield f"Under `{protocol}`, no correlation is defined: too few pairs, or all scores are equal."
            continue
        best = next(iter(ranked))
        label, number = label_of(evaluation, best), labelled_value(evaluation, best, protocol)
        exact = exact_methods(evaluation, protocol)
        left_out = (
            f" ({label_of(evaluation, exact[0])} is left out here: its scores are the measured effects.)"
            if exact
            else ""
        )
        if not predicts_effects(evaluation, best, protocol):
            yield (
                f"Under `{protocol}`, no method predicts well how reducing an edge changes the prediction: the best "
                f"is {label} ({number}).{left_out}"
            )
            continue
        rivals = [
            other
            for other in list(ranked)[1:]
            if not evaluation.difference(best, other, protocol, STATISTIC).is_certain
        ]
        tied = f"; {join_labels(evaluation, rivals)} may be as good" if rivals else ""
        yield (
            f"Under `{protocol}`, {label} predicts best how reducing an edge changes the prediction "
            f"({number}{cost_of(evaluation, best)}){tied}.{left_out}"
        )


def _ranks(evaluation: Evaluation) -> Iterator[str]:
    """Say where the best method finds the strongest edges, but ranks all edges badly."""
    for protocol in evaluation.reductions:
        ranked = best_first(evaluation, protocol)
        best = next(iter(ranked), None)
        if best is None or ranked[best] <= SAME or math.isnan(value_of(evaluation, best, protocol, RANKS)):
            continue
        is_opposite = evaluation.interval(best, protocol, RANKS)[1] < 0
        label, number = label_of(evaluation, best), f"({labelled_value(evaluation, best, protocol, RANKS)})"
        if not predicts_effects(evaluation, best, protocol):
            if is_opposite:
                yield f"Under `{protocol}`, {label} even ranks the edges the wrong way round {number}."
        elif is_opposite or value_of(evaluation, best, protocol, RANKS) < WEAK:
            ranks = "its ranks run the wrong way" if is_opposite else "its ranks agree less with the effects"
            yield f"Under `{protocol}`, {label} finds the strongest edges, but over all edges {ranks} {number}."


def _learned(evaluation: Evaluation) -> Iterator[str]:
    """Say under each protocol whether learned attention (GAtt) explains more than uniform attention."""
    if not {"gatt", "uniform"} <= set(evaluation.pair_scores):
        return
    for protocol in evaluation.reductions:
        values = [value_of(evaluation, method, protocol) for method in ("gatt", "uniform")]
        if any(map(math.isnan, values)):
            continue
        found = evaluation.difference("gatt", "uniform", protocol, STATISTIC)
        little = ", but neither predicts the effects well" if max(values) < WEAK and found.is_certain else ""
        yield (
            f"Under `{protocol}`, learned attention {_compared(found)}{little} "
            f"({evaluation.statistic_labels[STATISTIC]}: {_minus(evaluation, found)})."
        )


def _compared(found: Difference) -> str:
    """Return how much learned attention explains, compared with uniform attention."""
    if abs(found.low) <= SAME and abs(found.high) <= SAME:
        more = "hardly more" if found.low > SAME / 10 else "no more"
        return f"explains {more} than uniform attention, so the computation tree alone explains as much"
    if found.low > 0:
        return "explains more than uniform attention"
    if found.high < 0:
        return "explains less than uniform attention"
    return "may or may not explain more than uniform attention"


def _minus(evaluation: Evaluation, found: Difference) -> str:
    """Return the difference between learned and uniform attention, with the names of the methods."""
    return f"{label_of(evaluation, 'gatt')} minus {label_of(evaluation, 'uniform')} is {found}"


def _protocols(evaluation: Evaluation) -> Iterator[str]:
    """Say for each pair of successive protocols whether the choice between them changes effects and correlations."""
    names = list(evaluation.reductions)
    method = "gatt" if "gatt" in evaluation.pair_scores else next(iter(evaluation.pair_scores), "")
    for first, second in pairwise(names):
        one, other = MetricName(method, STATISTIC, first), MetricName(method, STATISTIC, second)
        found = evaluation.certainty.difference(evaluation.metrics, one, other)
        agreement = _agreement(evaluation, first, second)
        if math.isnan(found.value) or math.isnan(agreement):
            continue
        numbers = " and ".join(f"{value_of(evaluation, method, name):.2f} under `{name}`" for name in (first, second))
        effects = f"an edge's effects under `{first}` and `{second}` have a correlation of {agreement:.2f}"
        scores = f"{label_of(evaluation, method)} has {numbers} ({evaluation.statistic_labels[STATISTIC]})"
        differs = agreement < ALIKE or (found.is_certain and abs(found.value) >= LARGE)
        matters, ask = ("matters", " Decide which of the two you mean.") if differs else ("matters little", "")
        yield f"The protocol {matters}: {effects}, and {scores}.{ask}"


def _agreement(evaluation: Evaluation, first: str, second: str) -> float:
    """Return Pearson's correlation of the effects under two protocols, over the pairs of this process."""
    return float(pearson(evaluation.reductions[first].delta_pc, evaluation.reductions[second].delta_pc))


def _truth(evaluation: Evaluation) -> Iterator[str]:
    """Say which method finds the true edges best, if the evaluation has ground truth."""
    found = {method: value_of(evaluation, method, None, TRUTH) for method in evaluation.pair_scores}
    known = {method: value for method, value in found.items() if not math.isnan(value)}
    if not known:
        return
    best = max(known, key=lambda method: known[method])
    low, high = evaluation.interval(best, "truth")
    interval = "" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    number = f"{METRIC_LABELS[TRUTH]}: {known[best]:.3f}{interval}"
    sentence = f"{label_of(evaluation, best)} finds the true edges best ({number})"
    if {"gatt", "uniform"} <= set(known):
        sentence += f"; {_minus(evaluation, evaluation.difference('gatt', 'uniform', 'truth'))}"
    yield sentence + "."


def _unseen(evaluation: Evaluation) -> Iterator[str]:
    share = evaluation.metrics.get(BYPASS, 0.0)
    if share > 0:
        yield (
            f"Attention does not explain everything: {share:.0%} of the predictions stay the same without the "
            "attention of a layer, because information bypasses it (a skip connection, jumping knowledge, a readout)."
        )


def _saturated(evaluation: Evaluation) -> Iterator[str]:
    """Say that the model is saturated, if at least half of the targets have a predicted probability close to 1."""
    if evaluation.predictions is None or evaluation.predictions.numel() == 0:
        return
    share = float((evaluation.predictions.amax(dim=-1) > CONFIDENT).float().mean())
    if share >= 0.5:
        yield (
            f"The model is saturated: it gives {share:.0%} of the targets a probability above {CONFIDENT:.1%}, which "
            "single edges hardly move. Rank correlations, and sets of edges, say more here than Pearson's."
        )


def _uncertain(evaluation: Evaluation) -> Iterator[str]:
    """Say which results are uncertain: too few targets, too few changed predictions, or wide confidence intervals."""
    targets = evaluation.num_targets
    if targets < FEW_TARGETS:
        few = "1 target is" if targets == 1 else f"{targets} targets are"
        yield f"{few} too few to say much: explain {FEW_TARGETS} or more."
    for protocol in evaluation.reductions:
        changed = evaluation.num_changed_targets(protocol)
        is_whole = targets == evaluation.targets.numel()
        if (changed < FEWEST_TARGETS or 2 * changed < targets) and is_whole and evaluation.predictions is not None:
            where = "for no target" if changed == 0 else f"for {changed} of {targets} targets"
            weak = f"`{METRIC_LABELS['p_auroc']}` and `{METRIC_LABELS[FAITHFULNESS]}`"
            yield f"Under `{protocol}`, predictions change {where}: too few for an interval of {weak}."
        wide = [
            method
            for method in best_first(evaluation, protocol)
            if (ends := evaluation.interval(method, protocol, STATISTIC))[1] - ends[0] > WIDE
        ]
        if wide:
            number = f"`{evaluation.statistic_labels[STATISTIC]}` of {join_labels(evaluation, wide)}"
            yield f"Under `{protocol}`, {number} is uncertain (interval wider than {WIDE}): explain more targets."


RULES: tuple[Rule, ...] = (
    Rule("no_effect", "Does attention have an effect at all?", _no_effect),
    Rule("best", "Which method predicts the effects of edges best, and how long does it take?", _best),
    Rule("ranks", "Does that hold for all edges, or for the strongest only?", _ranks),
    Rule("learned", "Does learned attention explain more than uniform attention?", _learned),
    Rule("protocol", "Does it matter what reducing an edge means?", _protocols),
    Rule("truth", "What finds the true edges?", _truth),
    Rule("unseen", "What does attention not see?", _unseen),
    Rule("saturated", "Is the model too sure of itself for single edges to matter?", _saturated),
    Rule("uncertain", "What is too uncertain to say?", _uncertain),
)
"""All rules, in the order of their findings in the verdict."""


def judge(evaluation: Evaluation) -> Verdict:
    """Apply all rules to an evaluation, and recommend a method."""
    findings = (Finding(rule.name, sentence) for rule in RULES for sentence in rule.answer(evaluation))
    return Verdict(findings, _recommended(evaluation))


def _recommended(evaluation: Evaluation) -> str | None:
    """Return the method to explain the model with; None if no method predicts effects."""
    if not evaluation.reductions:
        return None
    protocol = PROTOCOL if PROTOCOL in evaluation.reductions else list(evaluation.reductions)[-1]
    predicting = [method for method, value in best_first(evaluation, protocol).items() if value > SAME]
    return next(iter([*exact_methods(evaluation, protocol), *predicting]), None)
