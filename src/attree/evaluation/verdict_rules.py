"""The rules and the headline of the verdict: each rule answers one question about an evaluation.

Numbers in sentences have the same names as in tables (`names.METRIC_LABELS`). The thresholds are chosen by hand.

It has at most two lines, and stands first wherever results are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from attree.evaluation.certainty import Difference
from attree.evaluation.metric_names import BYPASS, METRIC_LABELS, TRUTH, MetricName, size_name
from attree.evaluation.verdict import (
    ATTENTION_METHODS,
    CONFIDENT,
    SAME,
    SMALL,
    STATISTIC,
    WEAK,
    Finding,
    Verdict,
    best_first,
    compared,
    compared_under_protocols,
    confident_share,
    cost_of,
    exact_methods,
    heads_apart,
    is_saturated,
    join_labels,
    label_of,
    labelled_value,
    leading_protocol,
    predicts_effects,
    value_of,
)
from attree.metrics.functional.correlation import pearson
from attree.metrics.functional.influence import FEWEST_TARGETS, MANY_TARGETS, NEAR_ONE

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation


GOOD = 0.7
"""Numbers from this on are called good: correlations with effects, and AUROCs of true edges."""


FINDS = 0.9
"""From this AUROC on, scores find the true edges; from `GOOD` on, they find them in part."""


def headline(evaluation: Evaluation, method: str | None) -> str:
    """Return the headline of an evaluation.

    Args:
        evaluation: The evaluation.
        method: The recommended method; None if there is none.
    """
    protocol = leading_protocol(evaluation)
    first = "" if protocol is None else _which(evaluation, protocol, method)
    second = [] if protocol is None else [_matters(evaluation, protocol)]
    second.append(_true_edges(evaluation))
    return "\n".join(filter(None, [first, " ".join(filter(None, second))]))


def _which(evaluation: Evaluation, protocol: str, method: str | None) -> str:
    """Return which method to use, and how good attention is."""
    if not _has_effect(evaluation, protocol):
        return _without_effects(evaluation, protocol)
    if method is None:
        use = "No method predicts which edges matter."
    elif method in exact_methods(evaluation, protocol):
        use = f"Use {label_of(evaluation, method).lower()} (exact)."
    elif value_of(evaluation, method, protocol) < WEAK:
        number = f"{label_of(evaluation, method)} {value_of(evaluation, method, protocol):.2f}"
        use = f"No method predicts well which edges matter (best: {number} of 1)."
    elif method in ATTENTION_METHODS:  # its number follows
        use = f"Use {label_of(evaluation, method)}."
    else:
        use = f"Use {label_of(evaluation, method)}: {value_of(evaluation, method, protocol):.2f} of 1."
    use = f"{use}{_small(evaluation, protocol)}"
    ranked = {name: value for name, value in best_first(evaluation, protocol).items() if name in ATTENTION_METHODS}
    if not ranked:
        return use
    best = next(iter(ranked.values()))
    guide = "a good guide" if best >= GOOD else "a rough guide" if best >= WEAK else "no guide"
    numbers = ", ".join(f"{label_of(evaluation, name)} {value:.2f}" for name, value in ranked.items())
    return f"{use} Attention is {guide} to single predictions: {numbers} of 1."


def _has_effect(evaluation: Evaluation, protocol: str) -> bool:
    return len(evaluation.pairs) > 0 and bool(evaluation.reductions[protocol].delta_pc.any())


def _without_effects(evaluation: Evaluation, protocol: str) -> str:
    """Return what to do if no single edge has an effect: edges may stand in for each other, or matter together."""
    nothing = f"No single edge changes a prediction under `{protocol}`"
    for other in evaluation.reductions:
        if _has_effect(evaluation, other):
            strongest = _strongest(evaluation, other)
            return f"{nothing}, but under `{other}` a target's strongest edge changes it by {strongest:.2g} (median)."
    if is_saturated(evaluation):
        return f"{nothing}, but the network is saturated: sets of edges say more (`sets=True`)."
    return f"{nothing}, so there is nothing to explain in single edges."


def _small(evaluation: Evaluation, protocol: str) -> str:
    """Return how small the effects are, if they are small, and whether they are larger under another protocol."""
    strongest = _strongest(evaluation, protocol)
    if evaluation.predicts_numbers or not strongest < SMALL:
        return ""
    if strongest == 0:
        return " But for most targets no edge has an effect."
    sizes = {name: _strongest(evaluation, name) for name in evaluation.reductions}
    larger = "".join(f", {size:.2g} under `{name}`" for name, size in sizes.items() if size >= SMALL)
    return f" But effects are small: a target's strongest edge has {strongest:.2g} (median{larger})."


def _strongest(evaluation: Evaluation, protocol: str) -> float:
    """Return the effect of a target's strongest edge, as a median over targets."""
    return evaluation.metrics.get(size_name(protocol, "strongest"), math.nan)


def _matters(evaluation: Evaluation, protocol: str) -> str:
    """Return whether the network's attention explains more than uniform attention."""
    difference = compared(evaluation, "gatt", "uniform", protocol)
    if difference is None:
        return ""
    ends = f"{difference.value:+.2f}"
    if not math.isnan(difference.low) and difference.low < difference.high:
        ends = f"{ends} [{difference.low:.2f}, {difference.high:.2f}]"
    if difference.is_within(SAME):
        return f"The network's attention matters little: {ends}, no more than uniform by more than {SAME:.2f}."
    if difference.is_certain and difference.value > 0:
        return f"The network's attention matters: {ends} over uniform."
    if difference.is_certain:
        return f"The network's attention explains less than uniform attention: {ends}."
    return f"It is uncertain whether the network's attention matters: {ends} over uniform."


def _true_edges(evaluation: Evaluation) -> str:
    """Return how well attention finds the true edges, if they are known."""
    values = {name: value_of(evaluation, name, None, TRUTH) for name in evaluation.pair_scores}
    values = {name: value for name, value in values.items() if name in ATTENTION_METHODS and not math.isnan(value)}
    if not values:
        return ""
    best = max(values, key=lambda name: values[name])
    finds = "Attention does not find the true edges"
    if values[best] >= GOOD:
        finds = f"Attention finds the true edges{'' if values[best] >= FINDS else ' in part'}"
    return f"{finds}: {label_of(evaluation, best)} {values[best]:.2f}."


LARGE = 0.1
"""Smallest difference of correlations that counts as large."""

ALIKE = 0.9
"""Smallest correlation between the effects under two protocols at which the protocols count as similar."""

TIMES = 3.0
"""Effects under two protocols count as different if those under one are this many times as large."""

FEW_TARGETS = 20
"""With fewer targets, the verdict says that there are too few."""

HEADS_DIFFER = 0.4
"""Heads differ if they move this share of a node's attention away from their mean."""

WIDE = 0.3
"""A correlation whose interval is wider than this counts as uncertain."""


@dataclass(frozen=True)
class Rule:
    """One question about an evaluation.

    Attributes:
        name: Name of the rule in its findings.
        question: The question.
        answer: Function that yields the answer in sentences; none if there is nothing to say.
        is_caution: Whether its sentences limit what the headline says.
    """

    name: str
    question: str
    answer: Callable[[Evaluation], Iterator[str]]
    is_caution: bool = False


def _no_effect(evaluation: Evaluation) -> Iterator[str]:
    still = [name for name in evaluation.reductions if len(evaluation.pairs) and not _has_effect(evaluation, name)]
    if still:
        names = " and ".join(f"`{name}`" for name in still)
        yield f"Under {names}, reducing any one edge changes no prediction at all: single edges explain nothing here."


def _sizes(evaluation: Evaluation) -> Iterator[str]:
    """Say how large the effects are, and how many edges make most of a prediction."""
    for protocol in evaluation.reductions:
        strongest, edges, without = (
            _size(evaluation, protocol, size) for size in ("strongest", "edges_90", "targets_without")
        )
        if math.isnan(strongest) or not _has_effect(evaluation, protocol):
            continue
        what = "number" if evaluation.predicts_numbers else "probability"
        nothing = f"; for {without:.0f} of {evaluation.num_targets} targets no edge has an effect" if without else ""
        yield (
            f"Under `{protocol}`, a target's strongest edge changes the predicted {what} by {strongest:.2g}, and "
            f"{edges:.3g} {'edge makes' if edges == 1 else 'edges make'} 90 % of its effect (medians){nothing}."
        )


def _size(evaluation: Evaluation, protocol: str, size: str) -> float:
    return evaluation.metrics.get(size_name(protocol, size), math.nan)


def _redundant(evaluation: Evaluation) -> Iterator[str]:
    """Say that edges stand in for each other, if two have an effect together that the single ones do not add up to."""
    for protocol in evaluation.reductions:
        together, apart = (_size(evaluation, protocol, size) for size in ("two_together", "two_apart"))
        if together > SMALL + 2 * abs(apart):
            yield (
                f"Edges stand in for each other: under `{protocol}`, a target's two strongest edges change the "
                f"probability by {together:.2g} together, and by {apart:.2g} if their single effects are added "
                "(medians). Explain sets of edges (`sets=True`)."
            )


def _heads(evaluation: Evaluation) -> Iterator[str]:
    """Say that the heads of a layer attend to different edges: methods on attention read the mean of the heads."""
    apart = 0.0 if evaluation.attention is None else heads_apart(evaluation.attention)
    if apart >= HEADS_DIFFER and any(method in ATTENTION_METHODS for method in evaluation.pair_scores):
        yield (
            f"Heads differ: a head puts {apart:.0%} of a node's attention on other edges than the mean of the heads, "
            "which attention scores read. `GAtt(heads=[...])` reads one head of each layer."
        )


def _best(evaluation: Evaluation) -> Iterator[str]:
    """Say which method predicts the effects of edges best under each protocol, and which methods may be as good."""
    for protocol in evaluation.reductions:
        ranked = best_first(evaluation, protocol)
        if not ranked:
            if evaluation.pair_scores and _has_effect(evaluation, protocol):
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
        differences = {other: compared(evaluation, best, other, protocol) for other in list(ranked)[1:]}
        rivals = [other for other, difference in differences.items() if not (difference and difference.is_certain)]
        tied = f"; {join_labels(evaluation, rivals)} may be as good" if rivals else ""
        yield (
            f"Under `{protocol}`, {label} predicts best how reducing an edge changes the prediction "
            f"({number}{cost_of(evaluation, best)}){tied}.{left_out}"
        )


def _attention(evaluation: Evaluation) -> Iterator[str]:
    """Say under each protocol whether the network's attention (GAtt) explains more than uniform attention."""
    if not {"gatt", "uniform"} <= set(evaluation.pair_scores):
        return
    for protocol in evaluation.reductions:
        difference = compared(evaluation, "gatt", "uniform", protocol)
        if difference is None:
            continue
        best = max(value_of(evaluation, method, protocol) for method in ("gatt", "uniform"))
        yield (
            f"Under `{protocol}`, the network's attention {_than_uniform(difference, best)} "
            f"({evaluation.statistic_labels[STATISTIC]}: {_minus(evaluation, difference)})."
        )


def _than_uniform(difference: Difference, best: float) -> str:
    """Return how much the network's attention explains, compared with uniform attention."""
    if difference.is_within(SAME):
        equal = f"explains no more than uniform attention by more than {SAME}"
        tree = (
            ", so the computation tree alone explains as much" if best >= WEAK else ", and neither explains the effects"
        )
        return equal + tree
    if not difference.is_certain:
        return "may or may not explain more than uniform attention"
    little = ", but neither predicts the effects well" if best < WEAK else ""
    return f"explains {'more' if difference.value > 0 else 'less'} than uniform attention{little}"


def _minus(evaluation: Evaluation, difference: Difference) -> str:
    """Return the difference between GAtt and uniform attention, with the names of the methods."""
    return f"{label_of(evaluation, 'gatt')} minus {label_of(evaluation, 'uniform')} is {difference}"


def _protocols(evaluation: Evaluation) -> Iterator[str]:
    """Say for each pair of successive protocols whether the choice between them changes effects and correlations."""
    method = compared_under_protocols(evaluation)
    for first, second in pairwise(evaluation.reductions):
        names = MetricName(method, STATISTIC, first), MetricName(method, STATISTIC, second)
        difference = evaluation.certainty.difference(evaluation.metrics, *names, evaluation.verdict_level)
        agreement = _agreement(evaluation, first, second)
        if math.isnan(difference.value) or math.isnan(agreement):
            continue
        values = " and ".join(f"{value_of(evaluation, method, name):.2f} under `{name}`" for name in (first, second))
        effects = f"an edge's effects under `{first}` and `{second}` have a correlation of {agreement:.2f}"
        scores = f"{label_of(evaluation, method)} has {values} ({evaluation.statistic_labels[STATISTIC]})"
        sizes = [_size(evaluation, name, "strongest") for name in (first, second)]
        differ_in_size = max(sizes) > TIMES * min(sizes)
        strongest = (
            f", a target's strongest effect is {sizes[0]:.2g} and {sizes[1]:.2g} (median)" if differ_in_size else ""
        )
        differ = agreement < ALIKE or differ_in_size or (difference.is_certain and abs(difference.value) >= LARGE)
        matters, ask = ("matters", " Decide which of the two you mean.") if differ else ("matters little", "")
        yield f"The protocol {matters}: {effects}{strongest}, and {scores}.{ask}"


def _agreement(evaluation: Evaluation, first: str, second: str) -> float:
    """Return Pearson's correlation of the effects under two protocols, over the pairs of this process."""
    return float(pearson(evaluation.reductions[first].delta_pc, evaluation.reductions[second].delta_pc))


def _truth(evaluation: Evaluation) -> Iterator[str]:
    """Say which method finds the true edges best, if the evaluation has ground truth."""
    values = {method: value_of(evaluation, method, None, TRUTH) for method in evaluation.pair_scores}
    defined = {method: value for method, value in values.items() if not math.isnan(value)}
    if not defined:
        return
    best = max(defined, key=lambda method: defined[method])
    low, high = evaluation.interval(best, "truth")
    interval = "" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    number = f"{METRIC_LABELS[TRUTH]}: {defined[best]:.3f}{interval}"
    sentence = f"{label_of(evaluation, best)} finds the true edges best ({number})"
    difference = compared(evaluation, "gatt", "uniform", "truth") if {"gatt", "uniform"} <= set(defined) else None
    yield sentence + (f"; {_minus(evaluation, difference)}." if difference else ".")


def _unseen(evaluation: Evaluation) -> Iterator[str]:
    """Say how many predictions stay without attention, unless as many have the most frequent class anyway."""
    share = evaluation.metrics.get(BYPASS, 0.0)
    if not share > 0:
        return
    predictions = evaluation.predictions
    if predictions is not None and predictions.numel():
        most = float(predictions.argmax(dim=-1).bincount().max()) / len(predictions)
        if most == 1 and len(predictions) > 1:
            yield (
                "The network predicts the same class for all targets. That they keep it without attention does not say "
                "whether information bypasses attention."
            )
            return
        if share <= most < 1:
            return
    yield (
        f"Attention does not explain everything: {share:.0%} of the predictions stay the same without the attention of "
        "a layer, because information bypasses it (a skip connection, jumping knowledge, a readout)."
    )


def _saturated(evaluation: Evaluation) -> Iterator[str]:
    """Say that the model is saturated, if at least half of the targets have a predicted probability close to 1."""
    if is_saturated(evaluation):
        yield (
            f"The model is saturated: it gives {confident_share(evaluation):.0%} of the targets a probability above "
            f"{CONFIDENT:.1%}, which single edges hardly move. Sets of edges say more here than single ones."
        )


def _stability(evaluation: Evaluation) -> Iterator[str]:
    """Say how much explanations agree with those of other models, if other models were given."""
    if evaluation.stability is not None:
        yield evaluation.stability.sentence


def _few(evaluation: Evaluation) -> Iterator[str]:
    targets = evaluation.num_targets
    if targets < FEW_TARGETS and not evaluation.is_exact:
        few = "1 target is" if targets == 1 else f"{targets} targets are"
        yield f"{few} too few to say much: explain {FEW_TARGETS} or more."


def _uncertain(evaluation: Evaluation) -> Iterator[str]:
    """Say what is uncertain: of which targets intervals speak, which statistics have none, or wide intervals."""
    targets = evaluation.num_targets
    if not evaluation.has_intervals or not evaluation.reductions or not targets:
        return
    if evaluation.is_exact:
        yield f"All {targets:,} targets that there are were measured: these numbers are exact, and have no intervals."
        return
    yield (
        "Intervals speak of other targets of the same kind."
        if evaluation.population is None
        else f"Intervals speak of all {evaluation.population:,} targets, if these {targets:,} were drawn at random."
    )
    yield (
        "Pearson's correlations over the pairs of all targets, and `faithfulness (mean)`, have no interval: a few "
        "targets with many edges decide them."
        if targets >= MANY_TARGETS
        else f"Statistics over the pairs of all targets have no interval with fewer than {MANY_TARGETS} targets."
    )
    near = [
        label_of(evaluation, method)
        for method in evaluation.pair_scores
        if any(abs(value_of(evaluation, method, name)) > NEAR_ONE for name in evaluation.reductions)
    ]
    if near and targets < MANY_TARGETS:
        yield (
            f"`{evaluation.statistic_labels[STATISTIC]}` of {', '.join(near)} is near 1: its interval needs "
            f"{MANY_TARGETS} targets, because targets that differ are rare."
        )
    for protocol in evaluation.reductions:
        changed = evaluation.num_changed_targets(protocol)
        is_whole = targets == evaluation.targets.numel() and targets >= MANY_TARGETS
        if (changed < FEWEST_TARGETS or 2 * changed < targets) and is_whole and evaluation.predictions is not None:
            where = "for no target" if changed == 0 else f"for {changed} of {targets} targets"
            weak = f"`{METRIC_LABELS['p_auroc']}`"
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
    Rule("no_effect", "Does attention have an effect at all?", _no_effect, is_caution=True),
    Rule("redundant", "Do edges stand in for each other?", _redundant, is_caution=True),
    Rule("heads", "Do the heads of a layer attend to different edges?", _heads, is_caution=True),
    Rule("best", "Which method predicts the effects of edges best, and how long does it take?", _best),
    Rule("attention", "Does the network's attention explain more than uniform attention?", _attention),
    Rule("sizes", "How large are the effects?", _sizes),
    Rule("protocol", "Does it matter what reducing an edge means?", _protocols),
    Rule("truth", "What finds the true edges?", _truth),
    Rule("unseen", "What does attention not see?", _unseen, is_caution=True),
    Rule("saturated", "Is the model too sure of itself for single edges to matter?", _saturated, is_caution=True),
    Rule("stability", "Does the same network, trained again, have the same explanations?", _stability, is_caution=True),
    Rule("few", "Are there enough targets?", _few, is_caution=True),
    Rule("uncertain", "What is too uncertain to say?", _uncertain),
)
"""All rules, in the order of their findings in the verdict."""


def judge(evaluation: Evaluation) -> Verdict:
    """Apply all rules to an evaluation, and recommend a method."""
    findings = (Finding(rule.name, sentence, rule.is_caution) for rule in RULES for sentence in rule.answer(evaluation))
    method = _recommended(evaluation)
    return Verdict(findings, method, headline(evaluation, method))


def _recommended(evaluation: Evaluation) -> str | None:
    """Return the method to explain the model with; None if no method predicts effects."""
    protocol = leading_protocol(evaluation)
    if protocol is None:
        return None
    predicting = [method for method, value in best_first(evaluation, protocol).items() if value > SAME]
    return next(iter([*exact_methods(evaluation, protocol), *predicting]), None)
