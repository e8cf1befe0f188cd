"""What an evaluation says, in plain words: which explanation to trust, and what is too uncertain to say.

The rules are data: each has a name and looks at one question. A rule that has nothing to say is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from attree.evaluation.certainty import Difference
from attree.evaluation.names import BYPASS, TRUTH, MetricName
from attree.metrics.functional.correlation import pearson

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation

STATISTIC = "pc_pearson"
"""What methods are judged by: Pearson's correlation of scores with the drop of the predicted class's probability."""

RANKS = "pc_kendall"
"""The same by ranks: a few strong edges cannot make it."""

PROTOCOL = "removal"
"""The protocol that a method is recommended for, where it was measured."""

SAME = 0.05
"""Differences of correlations within this are called none."""

LARGE = 0.1
"""Differences of correlations from here on are called large."""

ALIKE = 0.9
"""Effects under two protocols are called much the same from this correlation on."""

WEAK = 0.3
"""A correlation below this says little of any one edge."""

CONFIDENT = 0.999
"""A prediction above this probability is called saturated: single edges can hardly move it."""

FEW_TARGETS = 20
FEW_CHANGES = 10
WIDE = 0.3
"""An interval of a correlation that is wider than this leaves open what the correlation is."""

OWN_PROTOCOL = {"occlusion": "removal"}
"""Methods that score an edge by its effect under a protocol: they foretell that one by definition."""


@dataclass(frozen=True)
class Finding:
    """One thing that an evaluation says.

    Attributes:
        rule: Name of the rule that found it.
        sentence: It in words.
    """

    rule: str
    sentence: str


class Verdict(tuple[Finding, ...]):
    """What an evaluation says, finding by finding.

    Attributes:
        method: Name of the method that foretells the model best, under `removal` if that was measured, else under the
            last protocol; `occlusion` under `removal`, whose effect it is. None if no correlation is above `SAME`.
    """

    method: str | None

    def __new__(cls, findings: Iterable[Finding] = (), method: str | None = None) -> Self:
        verdict = super().__new__(cls, findings)
        verdict.method = method
        return verdict

    @property
    def sentences(self) -> list[str]:
        """The findings in words."""
        return [finding.sentence for finding in self]

    @property
    def rules(self) -> set[str]:
        """Names of the rules that had something to say."""
        return {finding.rule for finding in self}

    def __str__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.sentences)


@dataclass(frozen=True)
class Rule:
    """One question to an evaluation.

    Attributes:
        name: What findings are named by.
        question: The question.
        answer: Answers it in sentences; none where there is nothing to say.
    """

    name: str
    question: str
    answer: Callable[[Evaluation], Iterator[str]]


def judge(evaluation: Evaluation) -> Verdict:
    """Ask every rule of `RULES`."""
    findings = (Finding(rule.name, sentence) for rule in RULES for sentence in rule.answer(evaluation))
    return Verdict(findings, _recommended(evaluation))


def _recommended(evaluation: Evaluation) -> str | None:
    """The method to explain the model by."""
    if not evaluation.reductions:
        return None
    protocol = PROTOCOL if PROTOCOL in evaluation.reductions else list(evaluation.reductions)[-1]
    foretelling = [method for method, value in _defined(evaluation, protocol).items() if value > SAME]
    return next(iter([*_exact(evaluation, protocol), *foretelling]), None)


def _exact(evaluation: Evaluation, protocol: str) -> list[str]:
    """The methods that measure the effect under a protocol itself."""
    return [method for method, own in OWN_PROTOCOL.items() if own == protocol and method in evaluation.pair_scores]


def _value(evaluation: Evaluation, method: str, protocol: str | None, statistic: str = STATISTIC) -> float:
    return evaluation.metrics.get(str(MetricName(method, statistic, protocol)), math.nan)


def _defined(evaluation: Evaluation, protocol: str) -> dict[str, float]:
    """The methods whose statistic is defined under a protocol, best first, without those that measure it themselves."""
    values = {
        method: _value(evaluation, method, protocol)
        for method in evaluation.pair_scores
        if OWN_PROTOCOL.get(method) != protocol
    }
    known = {method: value for method, value in values.items() if not math.isnan(value)}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def _label(evaluation: Evaluation, method: str) -> str:
    return evaluation.labels.get(method, method)


def _number(evaluation: Evaluation, method: str, protocol: str, statistic: str = STATISTIC) -> str:
    low, high = evaluation.interval(method, protocol, statistic)
    value = _value(evaluation, method, protocol, statistic)
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _cost(evaluation: Evaluation, method: str) -> str:
    seconds = evaluation.seconds.get(method)
    if seconds is None:
        return ""
    # Coarse, so that the same evaluation says the same again.
    return ", in less than a second" if seconds < 1 else f", in about {seconds:.0f} s"


def _foretells(evaluation: Evaluation, method: str, protocol: str) -> bool:
    """Whether a method's correlation is neither weak nor perhaps none."""
    low, _ = evaluation.interval(method, protocol, STATISTIC)
    return _value(evaluation, method, protocol) >= WEAK and not low <= 0


def _best(evaluation: Evaluation) -> Iterator[str]:
    for protocol in evaluation.reductions:
        ranked = _defined(evaluation, protocol)
        exact = _exact(evaluation, protocol)
        measured = f" ({_label(evaluation, exact[0])} measures that effect itself.)" if exact else ""
        if not ranked:
            continue
        best = next(iter(ranked))
        if not _foretells(evaluation, best, protocol):
            yield (
                f"Under `{protocol}`, no score foretells well what reducing an edge does to a prediction: the best, "
                f"{_label(evaluation, best)}, has a correlation of {_number(evaluation, best, protocol)}.{measured}"
            )
            continue
        rivals = [
            other
            for other in list(ranked)[1:]
            if not evaluation.difference(best, other, protocol, STATISTIC).is_certain
        ]
        tied = f"; {_join(evaluation, rivals)} may be as good" if rivals else ""
        yield (
            f"Under `{protocol}`, {_label(evaluation, best)} foretells the model best (correlation "
            f"{_number(evaluation, best, protocol)}{_cost(evaluation, best)}){tied}.{measured}"
        )


def _ranks(evaluation: Evaluation) -> Iterator[str]:
    for protocol in evaluation.reductions:
        ranked = _defined(evaluation, protocol)
        best = next(iter(ranked), None)
        if best is None or ranked[best] <= SAME or math.isnan(_value(evaluation, best, protocol, RANKS)):
            continue
        is_opposite = evaluation.interval(best, protocol, RANKS)[1] < 0
        number = f"(Kendall {_number(evaluation, best, protocol, RANKS)})"
        if not _foretells(evaluation, best, protocol):
            if is_opposite:
                yield f"Under `{protocol}`, the ranks of {_label(evaluation, best)} even run the other way {number}."
        elif is_opposite:
            yield (
                f"Under `{protocol}`, that holds for the strongest edges only: over all edges the ranks run the other "
                f"way {number}."
            )
        elif _value(evaluation, best, protocol, RANKS) < WEAK:
            limit = "that holds for the strongest edges: over all edges the ranks agree less"
            yield f"Under `{protocol}`, {limit} {number}."


def _join(evaluation: Evaluation, methods: list[str]) -> str:
    return " and ".join(_label(evaluation, method) for method in methods)


def _learned(evaluation: Evaluation) -> Iterator[str]:
    if not {"gatt", "uniform"} <= set(evaluation.pair_scores):
        return
    for protocol in evaluation.reductions:
        if math.isnan(_value(evaluation, "gatt", protocol)) or math.isnan(_value(evaluation, "uniform", protocol)):
            continue
        found = evaluation.difference("gatt", "uniform", protocol, STATISTIC)
        weak = max(_value(evaluation, method, protocol) for method in ("gatt", "uniform")) < WEAK
        little = ", but neither foretells much" if weak and found.is_certain else ""
        yield f"Under `{protocol}`, learned attention {_says(found)} ({found}){little}."


def _says(found: Difference) -> str:
    if abs(found.low) <= SAME and abs(found.high) <= SAME:
        more = "hardly more" if found.low > SAME / 10 else "no more"
        return f"says {more} than uniform attention: the computation tree alone says as much"
    if found.low > 0:
        return "says more than uniform attention"
    if found.high < 0:
        return "says less than uniform attention"
    return "may or may not say more than uniform attention"


def _protocols(evaluation: Evaluation) -> Iterator[str]:
    names = list(evaluation.reductions)
    method = "gatt" if "gatt" in evaluation.pair_scores else next(iter(evaluation.pair_scores), "")
    for first, second in pairwise(names):
        one, other = MetricName(method, STATISTIC, first), MetricName(method, STATISTIC, second)
        found = evaluation.certainty.difference(evaluation.metrics, one, other)
        agreement = _agreement(evaluation, first, second)
        if math.isnan(found.value) or math.isnan(agreement):
            continue
        numbers = " and ".join(f"{_value(evaluation, method, name):.2f} under `{name}`" for name in (first, second))
        effects = f"an edge's effects under `{first}` and `{second}` have a correlation of {agreement:.2f}"
        differs = agreement < ALIKE or (found.is_certain and abs(found.value) >= LARGE)
        matters, ask = ("matters", " Say which of the two you ask for.") if differs else ("matters little", "")
        yield f"The protocol {matters}: {effects}, and {_label(evaluation, method)} has {numbers}.{ask}"


def _agreement(evaluation: Evaluation, first: str, second: str) -> float:
    """Pearson's correlation of the effects under two protocols, over the pairs of this process."""
    return float(pearson(evaluation.reductions[first].delta_pc, evaluation.reductions[second].delta_pc))


def _truth(evaluation: Evaluation) -> Iterator[str]:
    found = {method: _value(evaluation, method, None, TRUTH) for method in evaluation.pair_scores}
    known = {method: value for method, value in found.items() if not math.isnan(value)}
    if not known:
        return
    best = max(known, key=lambda method: known[method])
    low, high = evaluation.interval(best, "truth")
    interval = "" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    sentence = f"{_label(evaluation, best)} finds the true edges best (AUROC {known[best]:.3f}{interval})"
    if {"gatt", "uniform"} <= set(known):
        sentence += f"; GAtt less uniform attention is {evaluation.difference('gatt', 'uniform', 'truth')}"
    yield sentence + "."


def _unseen(evaluation: Evaluation) -> Iterator[str]:
    share = evaluation.metrics.get(BYPASS, 0.0)
    if share > 0:
        yield (
            f"Attention does not see all: {share:.0%} of the predictions stay the same without the attention of a "
            "layer, because something goes around it (a skip, jumping knowledge, a readout)."
        )


def _no_effect(evaluation: Evaluation) -> Iterator[str]:
    still = [name for name, one in evaluation.reductions.items() if len(evaluation.pairs) and not one.delta_pc.any()]
    if still:
        names = " and ".join(f"`{name}`" for name in still)
        yield f"Under {names}, reducing any one edge changes no prediction at all: attention explains nothing here."


def _saturated(evaluation: Evaluation) -> Iterator[str]:
    if evaluation.predictions is None or evaluation.predictions.numel() == 0:
        return
    share = float((evaluation.predictions.amax(dim=-1) > CONFIDENT).float().mean())
    if share >= 0.5:
        yield (
            f"The model is saturated: it gives {share:.0%} of the targets a probability above {CONFIDENT:.1%}, which "
            "single edges hardly move. Rank correlations, and sets of edges, say more here than Pearson's."
        )


def _uncertain(evaluation: Evaluation) -> Iterator[str]:
    targets = evaluation.num_targets
    if targets < FEW_TARGETS:
        few = "1 target is" if targets == 1 else f"{targets} targets are"
        yield f"{few} too few to say much: explain {FEW_TARGETS} or more."
    for protocol in evaluation.reductions:
        changed = evaluation.num_changed(protocol)
        is_whole = targets == evaluation.targets.numel()
        if changed < FEW_CHANGES and is_whole and evaluation.predictions is not None:
            times = "no prediction changes" if changed == 0 else f"only {changed} predictions change"
            yield f"Under `{protocol}` {times}, so `p_auroc` and `faithfulness` say little."
        wide = [
            method
            for method in _defined(evaluation, protocol)
            if (ends := evaluation.interval(method, protocol, STATISTIC))[1] - ends[0] > WIDE
        ]
        if wide:
            names = _join(evaluation, wide)
            yield f"Under `{protocol}`, the correlation of {names} is uncertain: explain more targets."


RULES: tuple[Rule, ...] = (
    Rule("no_effect", "Does attention have an effect at all?", _no_effect),
    Rule("best", "What foretells the model best, and at what cost?", _best),
    Rule("ranks", "Does that hold for all edges, or for the strongest only?", _ranks),
    Rule("learned", "Does learned attention say more than uniform attention?", _learned),
    Rule("protocol", "Does it matter what reducing an edge means?", _protocols),
    Rule("truth", "What finds the true edges?", _truth),
    Rule("unseen", "What does attention not see?", _unseen),
    Rule("saturated", "Is the model too sure of itself for single edges to matter?", _saturated),
    Rule("uncertain", "What is too uncertain to say?", _uncertain),
)
"""The questions, in the order of the answers."""
