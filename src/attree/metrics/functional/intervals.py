"""95 % intervals over targets, single ones and those of several comparisons that hold together.

An interval is symmetric on the scale on which the statistic spreads evenly: Fisher's z for a correlation, the logit for
a probability, the number itself for a mean. Its width is the quantile of Student's t. The degrees of freedom are the
effective number of targets minus 1, because a few targets with most of the pairs decide a pooled statistic alone; and
fewer if the influences have heavy tails.

Pearson's correlation over pooled pairs has no interval. A few targets with large neighbourhoods decide it, and a sample
without them cannot know it: neither jackknife, nor bootstrap, nor any test of the sample told such samples apart.
`benchmarks/coverage.py` measures how often these intervals hold the true value.

The largest of several standardised differences exceeds a bound more often than a single one does. If the differences
are about the same targets, they move together, and the bound is lower than for unrelated ones (Bonferroni). The
influences of the targets say how much they move together. This is the single-step procedure of Hothorn, Bretz and
Westfall ("Simultaneous inference in general parametric models", 2008). With all pairs of methods as the family, it is
Tukey's comparison for correlated methods.

Hsu's comparison of the best with all others is not enough for a verdict. It protects the sentence "this one is not
better than the best", which is true of equal methods too, so that it calls some of five equal methods worse in about
half of the samples (`benchmarks/coverage.py`). "The best, and those that may be as good" must name all five.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import ndtr, stdtrit

from attree.metrics.functional.influence import MANY_TARGETS, Influence

Interval = tuple[float, float]
"""Lower and upper end."""

UNKNOWN: Interval = (math.nan, math.nan)
"""The interval of a statistic that has none."""

LEVEL = 0.95
"""How often an interval holds the true value, when targets are drawn anew."""


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
    if not influence.is_enough or not _has_error(influence):
        return UNKNOWN
    half = quantile(_freedom(influence), level) * error
    if influence.scale in ("correlation", "correlations") and abs(value) < 1:
        middle, half = math.atanh(value), half / (1 - value * value)
        return math.tanh(middle - half), math.tanh(middle + half)
    if influence.scale == "probability" and 0 < value < 1:
        middle, half = math.log(value / (1 - value)), half / (value * (1 - value))
        return _inverse_logit(middle - half), _inverse_logit(middle + half)
    return value - half, value + half


def is_beyond_chance(influence: Influence, level: float = LEVEL) -> bool:
    """Whether a difference of two means of correlations differs from 0 although it has too few targets for an interval.

    Targets that differ from the measured ones may be rare. A share of targets that all of n targets miss with
    probability 1 - level is taken to have the opposite difference, at its largest, 2. The rest have the nearest end of
    Student's interval.

    Args:
        influence: The difference.
        level: How often it holds.
    """
    if influence.is_enough or not _has_error(influence):
        return False
    unseen = 1 - (1 - level) ** (1 / influence.effective)
    nearest = abs(influence.value) - quantile(_freedom(influence), level) * influence.error
    return (1 - unseen) * nearest > 2 * unseen


def _has_error(influence: Influence) -> bool:
    return influence.error > 0 and math.isfinite(influence.error) and influence.effective > 1


def quantile(freedom: float, level: float = LEVEL) -> float:
    """Return the two-sided quantile of Student's t.

    >>> round(quantile(19), 3)
    2.093
    """
    return float(stdtrit(freedom, (1 + level) / 2))


def _freedom(influence: Influence) -> float:
    """Return the degrees of freedom of the variance: fewer for heavy tails, if there are enough targets to see them.

    The variance of n values with excess kurtosis k has the relative variance k / n + 2 / (n - 1), where that of a
    chi-squared variable has 2 / freedom.
    """
    number, squares = influence.effective, influence.by_target**2
    if number < MANY_TARGETS:
        return number - 1
    excess = number * float((squares**2).sum()) / float(squares.sum()) ** 2 - 3
    return 2 / (max(excess, 0.0) / number + 2 / (number - 1))


def _inverse_logit(logit: float) -> float:
    return (1 + math.tanh(logit / 2)) / 2


DRAWS = 20_000
"""Number of seeded draws of the largest difference. The bound varies by less than 0.02 with the seed."""

RIDGE = 1e-9
"""Added to the variances, because differences of the same methods depend on each other."""


def joint_level(comparisons: Iterable[Influence], level: float = LEVEL) -> float:
    """Return the level of each interval at which all intervals of a family hold together.

    Statistics of different targets count as independent, which is never too small.

    Args:
        comparisons: The compared statistics, such as differences of methods. Those without an error do not count.
        level: How often all intervals hold together.

    >>> rng = np.random.default_rng(0)
    >>> values = [Influence(0.1, rng.normal(size=50), 50.0) for _ in range(10)]
    >>> joint_level(values[:1]), joint_level(values[:1] * 10) < 0.96, joint_level(values) < 1 - 0.05 / 10
    (0.95, True, True)
    """
    columns: dict[int, list[np.ndarray]] = {}
    for comparison in comparisons:
        if comparison.error > 0:
            columns.setdefault(len(comparison.by_target), []).append(comparison.by_target / comparison.error)
    if sum(map(len, columns.values())) <= 1:
        return level
    generator = np.random.default_rng(0)
    largest = np.zeros(DRAWS)
    for same_targets in columns.values():
        correlations = np.stack(same_targets) @ np.stack(same_targets).T
        factor = np.linalg.cholesky(correlations + RIDGE * np.eye(len(correlations)))
        draws = generator.standard_normal((DRAWS, len(correlations))) @ factor.T
        largest = np.maximum(largest, np.abs(draws).max(axis=1))
    bound = float(np.quantile(largest, level))
    return max(level, float(2 * ndtr(bound) - 1))
