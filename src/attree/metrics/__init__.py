"""Statistics of scores against what they should foretell: pure functions, and `torchmetrics` classes over them."""

from attree.metrics import functional
from attree.metrics.collection import Faithfulness
from attree.metrics.comparison import FaithfulnessComparison
from attree.metrics.functional import Ranking, faithfulness_statistics
from attree.metrics.pairs import AUROC, Kendall, Pearson, Spearman
from attree.metrics.truth import TruthAUROC

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
