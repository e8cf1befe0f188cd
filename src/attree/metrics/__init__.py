"""Statistics that compare scores with effects or ground truth: pure functions, and `torchmetrics` classes."""

from attree.metrics import functional
from attree.metrics.faithfulness import (
    CharacterizationScore,
    EffectSizes,
    Faithfulness,
    FaithfulnessComparison,
    Fidelity,
    Unfaithfulness,
    WithinPearson,
)
from attree.metrics.functional import Ranking, faithfulness_statistics
from attree.metrics.statistics import AUROC, Kendall, Pearson, Spearman, TruthAUROC

__all__ = [
    "AUROC",
    "CharacterizationScore",
    "EffectSizes",
    "Faithfulness",
    "FaithfulnessComparison",
    "Fidelity",
    "Kendall",
    "Pearson",
    "Ranking",
    "Spearman",
    "TruthAUROC",
    "Unfaithfulness",
    "WithinPearson",
    "faithfulness_statistics",
    "functional",
]
