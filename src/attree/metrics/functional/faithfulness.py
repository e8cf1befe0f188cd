"""The seven faithfulness statistics of a method's scores and their mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from attree.metrics.functional.auroc import as_labels, auroc
from attree.metrics.functional.correlation import kendall, pearson, spearman
from attree.metrics.functional.ranking import Ranking, Values, as_ranking, check_columns

STATISTICS: Final[dict[str, tuple[Callable[[Values, Values], Tensor], str]]] = {
    "pc_pearson": (pearson, "delta_pc"),
    "pc_kendall": (kendall, "delta_pc"),
    "pc_spearman": (spearman, "delta_pc"),
    "ne_pearson": (pearson, "delta_ne"),
    "ne_kendall": (kendall, "delta_ne"),
    "ne_spearman": (spearman, "delta_ne"),
    "p_auroc": (auroc, "changed"),
}
"""Function of each statistic and the column that the scores are compared with."""


def faithfulness_statistics(scores: Values, delta_pc: Values, delta_ne: Values, changed: Values) -> dict[str, Tensor]:
    """Measure how well scores predict the effect of reducing an edge's attention, by the seven statistics of GAtt.

    Shin, Li, Cao and Shin, "Faithful and Accurate Self-Attention Attribution for Message Passing Neural Networks
    via the Computation Tree Viewpoint" (AAAI 2025), correlate a method's scores with the change of the prediction
    confidence (dPC) and of the negative entropy (dNE). They also measure whether the scores separate the edges whose
    reduction changes the predicted class (dP) from the others. Each argument has one entry per (target, edge) pair.

    Every column is sorted once. The deltas do not depend on the method: to score several methods, compute
    `Ranking(delta_pc)` and `Ranking(delta_ne)` once and pass them.

    Args:
        scores: The method's score of each pair.
        delta_pc: p[k] - p'[k], with k the predicted class and p' the output after the reduction.
        delta_ne: The change of the negative entropy.
        changed: 1 (or True) if the predicted class changed.

    Returns:
        0-d float64 tensors under the keys of `STATISTICS`, in that order, then `faithfulness`, their mean. An undefined
        statistic (constant column, one class, NaN among the values) is NaN. Then the mean is NaN too, because a mean of
        fewer than seven statistics would not be comparable.

    >>> scores = torch.tensor([0.9, 0.5, 0.0, 0.0])
    >>> deltas = torch.tensor([0.3, 0.1, 0.0, 0.0])
    >>> values = faithfulness_statistics(scores, deltas, deltas, deltas > 0.2)
    >>> {name: round(value.item(), 4) for name, value in values.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'pc_pearson': 0.9733, 'pc_kendall': 1.0, 'pc_spearman': 1.0,
     'ne_pearson': 0.9733, 'ne_kendall': 1.0, 'ne_spearman': 1.0, 'p_auroc': 1.0, 'faithfulness': 0.9924}
    """
    check_columns(scores=scores, delta_pc=delta_pc, delta_ne=delta_ne, changed=changed)
    ranking = as_ranking(scores)
    columns: dict[str, Tensor | Ranking] = {
        "delta_pc": as_ranking(delta_pc),
        "delta_ne": as_ranking(delta_ne),
        "changed": as_labels(changed, "changed"),
    }
    values = {name: function(ranking, columns[column]) for name, (function, column) in STATISTICS.items()}
    values["faithfulness"] = torch.stack(list(values.values())).mean()
    return values
