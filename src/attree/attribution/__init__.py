"""Edge attribution: methods that score the edges around a target, their results, and PyG explainers."""

from attree.attribution.baselines import AvgAtt, Random, Structure, Uniform
from attree.attribution.explainer import (
    AvgAttExplainer,
    GAttAvgExplainer,
    GAttExplainer,
    GAttSimExplainer,
    TreeExplainer,
)
from attree.attribution.gatt import EdgeBlock, FlowMethod, GAtt, GAttAvg, GAttSim
from attree.attribution.method import METHODS, AttributionMethod, Methods, make_methods, method_label
from attree.attribution.node_scores import GlobalPairs, NodeAttribution, attribute_nodes, global_pairs
from attree.attribution.pairs import Pairs
from attree.attribution.posthoc import (
    FastDnX,
    GNNExplainer,
    GraphMask,
    GuidedBackprop,
    IntegratedGradients,
    PGExplainer,
    Saliency,
)
from attree.attribution.result import Attribution
from attree.attribution.subgraphs import (
    attribute_subgraphs,
    graph_pairs,
    stream_subgraphs,
    subgraph_pairs,
    subject_pairs,
)
from attree.attribution.tree import AttentionPath, ComputationTree, strongest_paths
from attree.defaults import METHODS as DEFAULT_METHODS

__all__ = [
    "DEFAULT_METHODS",
    "METHODS",
    "AttentionPath",
    "Attribution",
    "AttributionMethod",
    "AvgAtt",
    "AvgAttExplainer",
    "ComputationTree",
    "EdgeBlock",
    "FastDnX",
    "FlowMethod",
    "GAtt",
    "GAttAvg",
    "GAttAvgExplainer",
    "GAttExplainer",
    "GAttSim",
    "GAttSimExplainer",
    "GNNExplainer",
    "GlobalPairs",
    "GraphMask",
    "GuidedBackprop",
    "IntegratedGradients",
    "Methods",
    "NodeAttribution",
    "PGExplainer",
    "Pairs",
    "Random",
    "Saliency",
    "Structure",
    "TreeExplainer",
    "Uniform",
    "attribute_nodes",
    "attribute_subgraphs",
    "global_pairs",
    "graph_pairs",
    "make_methods",
    "method_label",
    "stream_subgraphs",
    "strongest_paths",
    "subgraph_pairs",
    "subject_pairs",
]
