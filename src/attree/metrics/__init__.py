"""Statistics of scores against what they should foretell: pure functions, and `torchmetrics` classes over them."""

from attree.metrics import functional
from attree.metrics.auroc import AUROC, TruthAUROC
from attree.metrics.comparison import FaithfulnessComparison
from attree.metrics.correlation import Kendall, Pearson, Spearman
from attree.metrics.faithfulness import Faithfulness
from attree.metrics.functional import Ranking, faithfulness_statistics

__all__ = [
    "AUROC",
    "Faithfulness",
    "FaithfulnessComparison",
    "Kendall",
    "Pearson",
    "Ranking",
    "Spearman",
    "TruthAUROC",
    "faithfulness_statistics",
    "functional",
]
