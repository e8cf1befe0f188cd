"""Statistics as pure functions of tensors, and `Ranking`, which lets several of them share one sort."""

from attree.metrics.functional.auroc import auroc, auroc_by_target
from attree.metrics.functional.correlation import kendall, pearson, spearman
from attree.metrics.functional.faithfulness import (
    edges_of_effect,
    effect_sizes,
    faithfulness_statistics,
    median,
    pearson_by_target,
    pearsons_by_target,
    strongest_effects,
)
from attree.metrics.functional.influence import faithfulness_influences
from attree.metrics.functional.intervals import interval_of, joint_level
from attree.metrics.functional.ranking import Ranking
from attree.metrics.functional.sets import (
    characterization_score,
    curve_area,
    fidelity,
    jaccard,
    precision_at_k,
    sparsity,
    unfaithfulness,
)

__all__ = [
    "Ranking",
    "auroc",
    "auroc_by_target",
    "characterization_score",
    "curve_area",
    "edges_of_effect",
    "effect_sizes",
    "faithfulness_influences",
    "faithfulness_statistics",
    "fidelity",
    "interval_of",
    "jaccard",
    "joint_level",
    "kendall",
    "median",
    "pearson",
    "pearson_by_target",
    "pearsons_by_target",
    "precision_at_k",
    "sparsity",
    "spearman",
    "strongest_effects",
    "unfaithfulness",
]
