"""Post-hoc methods: they explain a model by gradients, by learned masks of its messages, or by a surrogate."""

from attree.attribution.posthoc.fastdnx import FastDnX
from attree.attribution.posthoc.gnn_explainer import GNNExplainer
from attree.attribution.posthoc.gradients import GuidedBackprop, IntegratedGradients, Saliency
from attree.attribution.posthoc.graph_mask import GraphMask
from attree.attribution.posthoc.pg_explainer import PGExplainer

__all__ = [
    "FastDnX",
    "GNNExplainer",
    "GraphMask",
    "GuidedBackprop",
    "IntegratedGradients",
    "PGExplainer",
    "Saliency",
]
