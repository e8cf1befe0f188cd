"""Post-hoc methods: they explain a model by gradients, by learned masks of its messages, or by a surrogate."""

from attree.attribution.posthoc.fastdnx import FastDnX
from attree.attribution.posthoc.frozen_model import TrainedMethod, frozen_subject
from attree.attribution.posthoc.gnn_explainer import GNNExplainer
from attree.attribution.posthoc.gradients import GuidedBackprop, IntegratedGradients, Saliency, guided
from attree.attribution.posthoc.graph_mask import GraphMask
from attree.attribution.posthoc.masks import MaskedRun, masked_run
from attree.attribution.posthoc.pg_explainer import PGExplainer
from attree.attribution.posthoc.target_copies import TargetCopies

__all__ = [
    "FastDnX",
    "GNNExplainer",
    "GraphMask",
    "GuidedBackprop",
    "IntegratedGradients",
    "MaskedRun",
    "PGExplainer",
    "Saliency",
    "TargetCopies",
    "TrainedMethod",
    "frozen_subject",
    "guided",
    "masked_run",
]
