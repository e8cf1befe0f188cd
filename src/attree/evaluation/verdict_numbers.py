"""What the rules of a verdict read from an evaluation: its numbers, named as in tables, and its methods, best first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attree.attribution import METHODS
from attree.evaluation.names import METRIC_LABELS, MetricName

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation

STATISTIC = "pc_pearson"
"""What methods are judged by: Pearson's correlation of scores with the drop of the predicted class's probability."""

RANKS = "pc_kendall"
"""The same by ranks: a few strong edges cannot make it."""

WEAK = 0.3
"""A correlation below this says little of any one edge."""

OWN_PROTOCOL = {"occlusion": "removal"}
"""Methods that score an edge by its effect under a protocol: they foretell that one by definition."""


def value_of(evaluation: Evaluation, method: str, protocol: str | None, statistic: str = STATISTIC) -> float:
    """A statistic of a method; NaN where it is undefined or was not measured."""
    return evaluation.metrics.get(str(MetricName(method, statistic, protocol)), math.nan)


def label_of(evaluation: Evaluation, method: str) -> str:
    """What tables call a method."""
    return evaluation.labels.get(method, method)


def joined(evaluation: Evaluation, methods: list[str]) -> str:
    """What tables call several methods, as words of a sentence."""
    return " and ".join(label_of(evaluation, method) for method in methods)


def named(evaluation: Evaluation, method: str, protocol: str, statistic: str = STATISTIC) -> str:
    """A number with the name that it has in tables, and its interval: "confidence, Pearson: 0.82 [0.78, 0.85]"."""
    low, high = evaluation.interval(method, protocol, statistic)
    value = value_of(evaluation, method, protocol, statistic)
    interval = "" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    return f"{METRIC_LABELS[statistic]}: {value:.2f}{interval}"


def cost_of(evaluation: Evaluation, method: str) -> str:
    """How long a method took, as the end of a bracket; coarse, so that the same evaluation says the same again."""
    seconds = evaluation.seconds.get(method)
    if seconds is None:
        return ""
    return "; computed in less than a second" if seconds < 1 else f"; computed in about {seconds:.0f} s"


def exact_methods(evaluation: Evaluation, protocol: str) -> list[str]:
    """The methods whose scores are the effects under a protocol."""
    return [method for method, own in OWN_PROTOCOL.items() if own == protocol and method in evaluation.pair_scores]


def best_first(evaluation: Evaluation, protocol: str) -> dict[str, float]:
    """The correlations that are defined under a protocol, best first; not of `exact_methods`, nor of random scores."""
    values = {
        method: value_of(evaluation, method, protocol)
        for method in evaluation.pair_scores
        if OWN_PROTOCOL.get(method) != protocol and not (method in METHODS and METHODS[method].is_random)
    }
    known = {method: value for method, value in values.items() if not math.isnan(value)}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def foretells(evaluation: Evaluation, method: str, protocol: str) -> bool:
    """Whether a method's correlation is neither weak nor perhaps none."""
    low, _ = evaluation.interval(method, protocol, STATISTIC)
    return value_of(evaluation, method, protocol) >= WEAK and not low <= 0
