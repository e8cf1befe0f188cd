"""The headline of a verdict: which method to use, how good it is, and whether the network's attention matters.

It has at most two lines, and stands first wherever results are shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attree.evaluation.names import TRUTH
from attree.evaluation.verdict import (
    ATTENTION_METHODS,
    SAME,
    WEAK,
    best_first,
    compared,
    exact_methods,
    label_of,
    leading_protocol,
    value_of,
)

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation

GOOD = 0.7
"""Numbers from this on are called good: correlations with effects, and AUROCs of true edges."""


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
    if not len(evaluation.pairs) or not evaluation.reductions[protocol].delta_pc.any():
        return f"No single edge changes a prediction (under `{protocol}`), so there is nothing to explain."
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
    ranked = {name: value for name, value in best_first(evaluation, protocol).items() if name in ATTENTION_METHODS}
    if not ranked:
        return use
    best = next(iter(ranked.values()))
    guide = "a good guide" if best >= GOOD else "a rough guide" if best >= WEAK else "no guide"
    numbers = ", ".join(f"{label_of(evaluation, name)} {value:.2f}" for name, value in ranked.items())
    return f"{use} Attention is {guide} to single predictions: {numbers} of 1."


def _matters(evaluation: Evaluation, protocol: str) -> str:
    """Return whether the network's attention explains more than uniform attention."""
    difference = compared(evaluation, "gatt", "uniform", protocol)
    if difference is None:
        return ""
    ends = f"{difference.value:+.2f} [{difference.low:.2f}, {difference.high:.2f}]"
    if difference.is_within(SAME):
        return f"The network's attention matters little: {ends}, no more than uniform by more than {SAME:.2f}."
    if difference.low > 0:
        return f"The network's attention matters: {ends} over uniform."
    if difference.high < 0:
        return f"The network's attention explains less than uniform attention: {ends}."
    if math.isnan(difference.low):
        return f"The network's attention: {difference.value:+.2f} over uniform."
    return f"It is uncertain whether the network's attention matters: {ends} over uniform."


def _true_edges(evaluation: Evaluation) -> str:
    """Return how well attention finds the true edges, if they are known."""
    values = {name: value_of(evaluation, name, None, TRUTH) for name in evaluation.pair_scores}
    values = {name: value for name, value in values.items() if name in ATTENTION_METHODS and not math.isnan(value)}
    if not values:
        return ""
    best = max(values, key=lambda name: values[name])
    finds = "Attention finds the true edges" if values[best] >= GOOD else "Attention does not find the true edges"
    return f"{finds}: {label_of(evaluation, best)} {values[best]:.2f}."
