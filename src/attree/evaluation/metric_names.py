"""Names of logged explanation metrics. Only this module builds and parses them.

explain/<method>/<protocol>/<statistic>    how well scores predict the effect of reducing an edge's attention
explain/effects/<protocol>/<size>          how large these effects are
explain/<method>/<protocol>/fidelity_plus  and others: how predictions change without, or with only, a set of edges
explain/<method>/truth_auroc               how well scores find the true edges
explain/bypass, explain/seconds            of the whole evaluation

`charted_accuracies` finds the accuracies among the other metrics of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "explain"
TRUTH = "truth_auroc"
FAITHFULNESS = "faithfulness"
WITHIN = "within_pearson"
"""The leading statistic: it stands behind the headline, the short table, bold print, the progress bar and the page."""

EFFECTS = "effects"
"""Stands in the place of a method in the names of the sizes of effects."""

SECONDS = f"{PREFIX}/seconds"
BYPASS = f"{PREFIX}/bypass"
FIDELITY_PLUS, FIDELITY_MINUS, CHARACTERIZATION = "fidelity_plus", "fidelity_minus", "characterization"
UNFAITHFULNESS, SPARSITY, PRECISION, JACCARD = "unfaithfulness", "sparsity", "precision_at_k", "jaccard"
OF_TRUTH = (TRUTH, PRECISION, JACCARD)
"""Statistics that compare scores with ground truth."""

METRIC_LABELS = {
    "truth_auroc": "ground truth, AUROC",
    "within_pearson": "within targets, Pearson",
    "pc_pearson": "confidence, Pearson",
    "pc_kendall": "confidence, Kendall",
    "pc_spearman": "confidence, Spearman",
    "ne_pearson": "entropy, Pearson",
    "ne_kendall": "entropy, Kendall",
    "ne_spearman": "entropy, Spearman",
    "p_auroc": "prediction, AUROC",
    "faithfulness": "faithfulness (mean)",
    "fidelity_plus": "fidelity+, without the top fifth",
    "fidelity_minus": "fidelity-, the top fifth alone",
    "characterization": "characterization score",
    "unfaithfulness": "unfaithfulness",
    "deletion_area": "area under deletion",
    "insertion_area": "area under insertion",
    "sparsity": "sparsity",
    "precision_at_k": "ground truth, precision at k",
    "jaccard": "ground truth, Jaccard",
}
"""Names of the statistics in tables, figures, verdicts, the page and the tab."""

NUMBER_LABELS = METRIC_LABELS | {
    "pc_pearson": "predicted number, Pearson",
    "pc_kendall": "predicted number, Kendall",
    "pc_spearman": "predicted number, Spearman",
}
"""Names of the statistics for models that predict numbers, which have no confidence."""

OF_CLASSES = ("ne_pearson", "ne_kendall", "ne_spearman", "p_auroc", FAITHFULNESS)
"""Statistics that are undefined for predicted numbers, and are left out of their tables."""


@dataclass(frozen=True)
class MetricName:
    """The parts of an explanation metric's name.

    Attributes:
        method: The attribution method.
        statistic: The statistic.
        protocol: The reduction protocol; None for metrics against ground truth.
    """

    method: str
    statistic: str
    protocol: str | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (PREFIX, self.method, self.protocol, self.statistic) if part is not None)

    @property
    def group(self) -> str:
        """The group of the metric's row in tables: the protocol, `truth`, or `scores` (sparsity)."""
        return self.protocol or ("truth" if self.statistic in OF_TRUTH else "scores")

    def under(self, prefix: str) -> str:
        """Return the name with another prefix, for runs with several callbacks."""
        return prefix + str(self).removeprefix(PREFIX)

    @classmethod
    def parse(cls, name: str) -> MetricName | None:
        """Parse a logged name; return None if it is not the name of a method's metric.

        >>> MetricName.parse("explain/gatt/weight/pc_pearson")
        MetricName(method='gatt', statistic='pc_pearson', protocol='weight')
        >>> MetricName.parse("explain/gatt/truth_auroc")
        MetricName(method='gatt', statistic='truth_auroc', protocol=None)
        >>> MetricName.parse("val/acc") is None and MetricName.parse("explain/seconds") is None
        True
        """
        group, *parts = name.split("/")
        if group != PREFIX or len(parts) not in (2, 3) or parts[0] == EFFECTS:
            return None
        return cls(parts[0], parts[-1], parts[1] if len(parts) == 3 else None)


def truth_note(number: int) -> str:
    """Return which targets ground truth was measured on. A fit takes all that have some, `attree explain` its own.

    >>> truth_note(974)
    'ground truth: measured on 974 targets that have true edges'
    """
    return f"ground truth: measured on {number:,} target{'' if number == 1 else 's'} that have true edges"


def size_name(protocol: str, size: str) -> str:
    """Return the logged name of a size of effects: `strongest`, `edges_90` or `targets_without`.

    >>> size_name("removal", "strongest")
    'explain/effects/removal/strongest'
    """
    return f"{PREFIX}/{EFFECTS}/{protocol}/{size}"


def number_and_interval(value: float, interval: tuple[float, float] = (math.nan, math.nan), digits: int = 4) -> str:
    """Return a metric as text for tables: its value and half the width of its interval.

    >>> number_and_interval(0.8514, (0.82, 0.88)), number_and_interval(0.5), number_and_interval(math.nan)
    ('0.8514 \N{PLUS-MINUS SIGN}0.03', '0.5000', 'undefined')
    """
    if math.isnan(value):
        return "undefined"
    half = (interval[1] - interval[0]) / 2
    return f"{value:.{digits}f}" + ("" if math.isnan(half) else f" \N{PLUS-MINUS SIGN}{half:.2f}")


def charted_accuracies(metrics: Iterable[str]) -> list[str]:
    """Return the names of the accuracies that charts in TensorBoard and of sweeps put beside measures of explanations.

    These are validation accuracies, whatever a module calls them; without any, all accuracies. Where there are
    none, areas under the curve are taken: those of a network that predicts links.

    >>> charted_accuracies(["train/loss", "val_acc", "train_acc"]), charted_accuracies(["val/loss", "Accuracy"])
    (['val_acc'], ['Accuracy'])
    >>> charted_accuracies(["val/loss", "val/auc", "explain/gatt/truth_auroc"])
    ['val/auc']
    """
    candidates = [name for name in metrics if not name.startswith(PREFIX)]
    accuracies = [name for name in candidates if "acc" in name.lower()]
    accuracies = accuracies or [name for name in candidates if "auc" in name.lower()]
    validated = [name for name in accuracies if "val" in name.lower()]
    return validated or accuracies
