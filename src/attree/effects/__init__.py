"""Methods that score an edge by its effect: what reducing its attention does to the prediction, or its first order.

They are attribution methods, but they stand on the protocols and engines of `attree.faithfulness`, which itself stands
on `attree.attribution` (pairs, walks). So they have a room of their own after both.
"""

from attree.effects.attention_gradient import AttentionGradient
from attree.effects.measured import Effects
from attree.effects.occlusion import Occlusion, OcclusionExplainer

__all__ = ["AttentionGradient", "Effects", "Occlusion", "OcclusionExplainer"]
