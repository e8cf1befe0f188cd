"""Edge attribution: one class a method, one verb."""

from attree.attribution.baselines import AvgAtt, Random
from attree.attribution.explainer import AvgAttExplainer, GAttAvgExplainer, GAttExplainer, GAttSimExplainer
from attree.attribution.gatt import GAtt, GAttAvg, GAttSim
from attree.attribution.method import AttributionMethod
from attree.attribution.pairs import Pairs, subgraph_pairs
from attree.attribution.registry import METHODS, make_methods
from attree.attribution.result import Attribution
from attree.attribution.subgraphs import attribute_subgraphs, stream_subgraphs
from attree.attribution.tree import ComputationTree

__all__ = [
    "METHODS",
    "Attribution",
    "AttributionMethod",
    "AvgAtt",
    "AvgAttExplainer",
    "ComputationTree",
    "GAtt",
    "GAttAvg",
    "GAttAvgExplainer",
    "GAttExplainer",
    "GAttSim",
    "GAttSimExplainer",
    "Pairs",
    "Random",
    "attribute_subgraphs",
    "make_methods",
    "stream_subgraphs",
    "subgraph_pairs",
]
