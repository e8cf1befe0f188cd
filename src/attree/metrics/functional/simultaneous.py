"""Several comparisons that hold together: one error rate for all intervals of a family.

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

from collections.abc import Iterable

import numpy as np
from scipy.special import ndtr

from attree.metrics.functional.influence import Influence
from attree.metrics.functional.intervals import LEVEL

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
