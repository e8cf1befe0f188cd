"""95 % intervals over targets, from the influence of each target on a statistic.

An interval is symmetric on the scale on which the statistic spreads evenly: Fisher's z for a correlation, the logit for
a probability, the number itself for a mean. Its width is the quantile of Student's t. The degrees of freedom are the
effective number of targets minus 1, because a few targets with most of the pairs decide a pooled statistic alone.
`benchmarks/coverage.py` measures how often these intervals hold the true value.
"""

from __future__ import annotations

import math

from scipy.special import stdtrit

from attree.metrics.functional.influence import Influence

Interval = tuple[float, float]
"""Lower and upper end."""

UNKNOWN: Interval = (math.nan, math.nan)
"""The interval of a statistic that has none."""

LEVEL = 0.95
"""How often an interval holds the true value, when targets are drawn anew."""


NEAR_ONE, MANY_TARGETS = 0.75, 50
"""A mean of correlations above the first has an interval only with as many targets as the second: most targets are near
1, so that few of them hardly show the rare ones that are not."""


def interval_of(influence: Influence, level: float = LEVEL) -> Interval:
    """Return the interval of a statistic; NaN if it is undefined, or if too few targets decide it.

    A statistic that no target moves, such as a correlation of exactly 1, has no interval either: the targets say
    nothing about its error.

    Args:
        influence: The statistic with the influence of each target.
        level: How often the interval holds the true value.

    >>> import numpy as np
    >>> from attree.metrics.functional.influence import influence_on_mean
    >>> low, high = interval_of(influence_on_mean(np.array([1.0, 2.0, 3.0, 6.0])))
    >>> round(low, 3), round(high, 3)
    (-0.437, 6.437)
    """
    value, error = influence.value, influence.error
    if not error > 0 or not math.isfinite(error) or influence.effective <= 1:
        return UNKNOWN
    half = quantile(influence.effective - 1, level) * error
    if influence.scale == "correlations" and abs(value) > NEAR_ONE and influence.effective < MANY_TARGETS:
        return UNKNOWN
    if influence.scale in ("correlation", "correlations") and abs(value) < 1:
        middle, half = math.atanh(value), half / (1 - value * value)
        return math.tanh(middle - half), math.tanh(middle + half)
    if influence.scale == "probability" and 0 < value < 1:
        middle, half = math.log(value / (1 - value)), half / (value * (1 - value))
        return _inverse_logit(middle - half), _inverse_logit(middle + half)
    return value - half, value + half


def quantile(freedom: float, level: float = LEVEL) -> float:
    """Return the two-sided quantile of Student's t.

    >>> round(quantile(19), 3)
    2.093
    """
    return float(stdtrit(freedom, (1 + level) / 2))


def _inverse_logit(logit: float) -> float:
    return (1 + math.tanh(logit / 2)) / 2
