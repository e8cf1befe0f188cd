"""The statistics as pure functions of tensors, and `Ranking`, through which several share one sort."""

from attree.metrics.auroc import auroc, auroc_by_target
from attree.metrics.correlation import pearson, spearman
from attree.metrics.kendall import kendall
from attree.metrics.ranking import Ranking
from attree.metrics.statistics import faithfulness_statistics

__all__ = [
    "Ranking",
    "auroc",
    "auroc_by_target",
    "faithfulness_statistics",
    "kendall",
    "pearson",
    "spearman",
]
