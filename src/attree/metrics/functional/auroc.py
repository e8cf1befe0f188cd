"""Area under the ROC curve, from ranks: over all pairs, or as a mean over targets."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attree.errors import expect
from attree.metrics.functional.ranking import Ranking, Values, as_ranking, as_tensor, check_columns, scalar, sort_keys


def auroc(scores: Values, labels: Values) -> Tensor:
    r"""Area under the ROC curve: the probability that a positive scores above a negative, with ties counting half.

    .. math:: \frac{\sum_{i \in P} m_i - |P|(|P|+1)/2}{|P| \, |N|}

    Here :math:`m_i` is the midrank of score i (Mann and Whitney, 1947). Only the order of the scores matters: they may
    have any range and are never clipped or rescaled. Runs on the host (see `Ranking`).

    Args:
        scores: A vector, or its ranking.
        labels: A vector of the same length, 1 (or True) for positives and 0 for negatives.

    Returns:
        A 0-d float64 tensor on the device of `scores`; NaN if only one class occurs or either argument contains NaN.

    >>> auroc(torch.tensor([-30.0, 2.0, 2.0, 900.0]), torch.tensor([0, 0, 1, 1]))
    tensor(0.8750, dtype=torch.float64)
    """
    check_columns(scores=scores, labels=labels)
    positive = positives(labels)
    if positive is None:
        return scalar(math.nan, scores)
    num_positive = int(np.count_nonzero(positive))
    num_negative = len(scores) - num_positive
    ranks = _positive_ranks(scores, positive)
    if num_positive == 0 or num_negative == 0 or math.isnan(ranks):
        return scalar(math.nan, scores)
    above = ranks - num_positive * (num_positive + 1) / 2
    return scalar(above / (num_positive * num_negative), scores)


def _positive_ranks(scores: Values, positive: NDArray[np.bool_]) -> float:
    """Return the sum of the positives' midranks; NaN if any score is NaN. The sum is exact: they are half-integers."""
    if isinstance(scores, Ranking):
        return math.nan if scores.has_nan else float(scores.midranks[np.compress(positive, scores.dense)].sum())
    # Sorting the values is several times faster than sorting their positions.
    keys = sort_keys(scores)
    ascending = np.sort(keys)
    if np.isnan(ascending[-1:]).any():
        return math.nan
    of_positives = np.sort(np.compress(positive, keys))
    below, upto = (np.searchsorted(ascending, of_positives, side).sum() for side in ("left", "right"))
    return float(below + upto + len(of_positives)) / 2


def auroc_by_target(scores: Values, labels: Values, target: Values) -> Tensor:
    """Mean of the targets' AUROCs; targets without positives or without negatives do not count.

    Unlike in the pooled `auroc`, every target has the same weight, and only scores of one target are compared. All
    targets are ranked by one sort of (target, score).

    Args:
        scores: A vector, or its ranking.
        labels: A vector of the same length, 1 (or True) for positives and 0 for negatives.
        target: A vector of the same length with the target of each score, or its ranking.

    Returns:
        A 0-d float64 tensor on the device of `scores`; NaN if no target has both classes or any argument contains NaN.

    >>> scores = torch.tensor([0.1, 0.9, 50.0, 40.0, 7.0])
    >>> auroc_by_target(scores, torch.tensor([0, 1, 0, 1, 1]), torch.tensor([4, 4, 8, 8, 9]))
    tensor(0.5000, dtype=torch.float64)
    """
    check_columns(scores=scores, labels=labels, target=target)
    ranking, targets, positive = as_ranking(scores), as_ranking(target), positives(labels)
    if positive is None or ranking.has_nan or targets.has_nan:
        return scalar(math.nan, scores)
    joint = Ranking(torch.from_numpy(targets.dense * len(ranking.counts) + ranking.dense))
    owner, num_targets = np.compress(positive, targets.dense), len(targets.counts)
    ranks = np.bincount(owner, joint.midranks[np.compress(positive, joint.dense)], num_targets)
    num_positive = np.bincount(owner, minlength=num_targets)
    num_negative = targets.counts - num_positive
    offset = np.cumsum(targets.counts) - targets.counts
    above = ranks - num_positive * (offset + (num_positive + 1) / 2)
    both = (num_positive > 0) & (num_negative > 0)
    if not both.any():
        return scalar(math.nan, scores)
    return scalar(float(np.mean(above[both] / (num_positive * num_negative)[both])), scores)


def as_labels(column: Values, name: str) -> Tensor:
    """Return labels as booleans on the host, so that they are checked once; return them unchanged if any is NaN.

    Args:
        column: Labels as `auroc` takes them.
        name: Name of the argument in errors.
    """
    positive = positives(column, name)
    return as_tensor(column) if positive is None else torch.from_numpy(positive)


def positives(labels: Values, name: str = "labels") -> NDArray[np.bool_] | None:
    """Return which labels are 1; None if any is NaN."""
    values = as_tensor(labels).detach()
    if values.dtype == torch.bool:
        return values.cpu().numpy()
    column = sort_keys(values)
    positive: NDArray[np.bool_] = column == 1
    neither = len(column) - np.count_nonzero(positive) - np.count_nonzero(column == 0)
    if neither and np.isnan(column).any():
        return None
    if neither:
        expect(False, name, "0 or 1 everywhere", column[~positive & (column != 0)][:1].tolist())
    return positive
