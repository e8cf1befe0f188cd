"""Statistics of scores against what they should foretell: pure functions, and `torchmetrics` classes over them."""

from attree.metrics import functional
from attree.metrics.auroc import AUROC, TruthAUROC
from attree.metrics.comparison import FaithfulnessComparison
from attree.metrics.correlation import Kendall, Pearson, Spearman
from attree.metrics.faithfulness import Faithfulness
from attree.metrics.functional import Ranking, faithfulness_statistics
from attree.metrics.sets import CharacterizationScore, Fidelity, Unfaithfulness

__all__ = [
    "AUROC",
    "CharacterizationScore",
    "Faithfulness",
    "FaithfulnessComparison",
    "Fidelity",
    "Kendall",
    "Pearson",
    "Ranking",
    "Spearman",
    "TruthAUROC",
    "Unfaithfulness",
    "faithfulness_statistics",
    "functional",
]
