"""Influences and intervals from the definitions: statistics of weighted pairs by sums over all pairs of pairs.

The derivative by a target's weight is taken by a complex step: f(1 + ih) has the imaginary part h f'(1), exact to
rounding, because no difference of nearly equal numbers is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

STEP = 1e-30


def weighted_pearson(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> complex:
    a, b = (column - (w * column).sum() / w.sum() for column in (x, y))
    return (w * a * b).sum() / np.sqrt((w * a * a).sum() * (w * b * b).sum())


def weighted_kendall(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> complex:
    a, b = (np.sign(column[:, None] - column) for column in (x, y))
    return (w @ (a * b) @ w) / np.sqrt((w @ (a * a) @ w) * (w @ (b * b) @ w))


def weighted_spearman(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> complex:
    a, b = (np.sign(column[:, None] - column) @ w for column in (x, y))
    return (w * a * b).sum() / np.sqrt((w * a * a).sum() * (w * b * b).sum())


def weighted_auroc(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> complex:
    positive = y.astype(bool)
    wins = (1 + np.sign(x[positive][:, None] - x[~positive])) / 2
    return w[positive] @ wins @ w[~positive] / (w[positive].sum() * w[~positive].sum())


WEIGHTED: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], complex]] = {
    "pearson": weighted_pearson,
    "kendall": weighted_kendall,
    "spearman": weighted_spearman,
    "auroc": weighted_auroc,
}


def derivatives(statistic: str, x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """The derivative of a statistic by the weight of each target."""
    return np.array(
        [WEIGHTED[statistic](x, y, 1 + 1j * STEP * (owner == k)).imag / STEP for k in range(owner.max() + 1)]
    )


def corrected(statistic: str, x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, float]:
    """The derivatives, divided by one minus each target's share; and the effective number of targets."""
    if statistic != "auroc":
        shares = np.bincount(owner) / len(owner)
        return derivatives(statistic, x, y, owner) / (1 - shares), 1 / (shares**2).sum()
    # The part that a target has by its positives and the part that it has by its negatives.
    positive, total = y.astype(bool), np.zeros(owner.max() + 1)
    for group in (positive, ~positive):
        shares = np.bincount(owner[group], minlength=len(total)) / group.sum()
        for k in range(len(total)):
            slope = weighted_auroc(x, y, 1 + 1j * STEP * (group & (owner == k))).imag / STEP
            total[k] += slope / (1 - shares[k])
    shares = np.bincount(owner[positive], minlength=len(total)) / positive.sum()
    return total, 1 / (shares**2).sum()


def freedom(by_target: np.ndarray, effective: float) -> float:
    """Degrees of freedom that fit the variance of the variance of the influences, from 50 effective targets on."""
    if effective < 50:
        return effective - 1
    excess = effective * (by_target**4).sum() / (by_target**2).sum() ** 2 - 3
    return 2 / (max(excess, 0.0) / effective + 2 / (effective - 1))


def interval(
    statistic: str, x: np.ndarray, y: np.ndarray, owner: np.ndarray, drawn: float = 1.0
) -> tuple[float, float]:
    """The 95 % interval: Fisher's z, or the logit, with Student's t; `drawn` multiplies the error."""
    by_target, effective = corrected(statistic, x, y, owner)
    value = WEIGHTED[statistic](x, y, np.ones(len(x))).real
    half = stats.t.ppf(0.975, freedom(by_target, effective)) * np.sqrt((by_target**2).sum()) * drawn
    if statistic == "auroc":
        middle, half = np.log(value / (1 - value)), half / (value * (1 - value))
        return tuple(1 / (1 + np.exp(-(middle + side * half))) for side in (-1, 1))
    middle, half = np.arctanh(value), half / (1 - value**2)
    return tuple(np.tanh(middle + side * half) for side in (-1, 1))
