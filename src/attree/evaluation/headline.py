"""The headline of a verdict: which method to use, how good it is, and whether the network's attention matters.

It has at most two lines, and stands first wherever results are shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attree.evaluation.hidden_effects import SMALL
from attree.evaluation.names import TRUTH, size_name
from attree.evaluation.verdict import (
    ATTENTION_METHODS,
    SAME,
    WEAK,
    best_first,
    compared,
    exact_methods,
    is_saturated,
    label_of,
    leading_protocol,
    value_of,
)

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
