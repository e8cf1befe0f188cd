"""Methods that score an edge by its effect on the prediction when its attention is reduced, exactly or to first order.

These attribution methods use the protocols and engines of `attree.faithfulness`, which itself imports
`attree.attribution`. They have their own package so that imports go one way.
"""

from attree.effects.attention_gradient import AttentionGradient
from attree.effects.occlusion import Effects, Occlusion, OcclusionExplainer

__all__ = ["AttentionGradient", "Effects", "Occlusion", "OcclusionExplainer"]
