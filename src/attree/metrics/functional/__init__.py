"""The statistics as pure functions of tensors, and `Ranking`, through which several share one sort."""

from attree.metrics.functional.auroc import auroc, auroc_by_target
from attree.metrics.functional.bootstrap import percentile_interval, resample_targets, resampled_faithfulness
from attree.metrics.functional.correlation import kendall, pearson, spearman
from attree.metrics.functional.faithfulness import faithfulness_statistics
from attree.metrics.functional.ranking import Ranking

__all__ = [
    "Ranking",
    "auroc",
    "auroc_by_target",
    "faithfulness_statistics",
    "kendall",
    "pearson",
    "percentile_interval",
    "resample_targets",
    "resampled_faithfulness",
    "spearman",
]
