"""Penalties on attention: terms of a training loss that make attention a better explanation.

Each penalty takes the attention of a training step, with gradients, and returns one number.
"""

from attree.penalties.distribution import GSAT, Entropy, HeadAgreement, Sparsity, UniformDistance
from attree.penalties.gatt_scores import EffectConsistency, TrueEdges
from attree.penalties.penalty import AttentionPenalty, PenalizedStep
from attree.penalties.regularizer import (
    PENALTIES,
    AttentionPenalties,
    AttentionPenaltyCallback,
    WatchedPass,
    make_penalties,
)

__all__ = [
    "GSAT",
    "PENALTIES",
    "AttentionPenalties",
    "AttentionPenalty",
    "AttentionPenaltyCallback",
    "EffectConsistency",
    "Entropy",
    "HeadAgreement",
    "PenalizedStep",
    "Sparsity",
    "TrueEdges",
    "UniformDistance",
    "WatchedPass",
    "make_penalties",
]
