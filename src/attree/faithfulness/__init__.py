"""Effects of attention reduction: protocols, three engines that reduce edges, and the measured change of the output.

The methods that score an edge by this effect are here too, because they use the engines: `Occlusion` (exact) and
`AttentionGradient` (first order).
"""

from attree.defaults import PROTOCOLS as DEFAULT_PROTOCOLS
from attree.faithfulness.copies_engine import CopiesReducer
from attree.faithfulness.cut_nodes import NodeEffects, key_effects, node_effects, pair_effects
from attree.faithfulness.effect_measures import Reduction
from attree.faithfulness.engine_choice import Effects, Reducer, reduce_attention
from attree.faithfulness.exact.convolution_algebra import LayerAlgebra, States, register_algebra
from attree.faithfulness.exact.exact_engine import ExactReducer
from attree.faithfulness.first_order import AttentionGradient, MessageGradient
from attree.faithfulness.occlusion import Occlusion, OcclusionExplainer, delete_edges, score_pairs
from attree.faithfulness.protocol import (
    PROTOCOLS,
    Protocols,
    ReductionProtocol,
    check_protocols,
    protocol_names,
    resolve_protocol,
    resolve_protocols,
)
from attree.faithfulness.whole_graph_engine import WholeReducer

__all__ = [
    "DEFAULT_PROTOCOLS",
    "PROTOCOLS",
    "AttentionGradient",
    "CopiesReducer",
    "Effects",
    "ExactReducer",
    "LayerAlgebra",
    "MessageGradient",
    "NodeEffects",
    "Occlusion",
    "OcclusionExplainer",
    "Protocols",
    "Reducer",
    "Reduction",
    "ReductionProtocol",
    "States",
    "WholeReducer",
    "check_protocols",
    "delete_edges",
    "key_effects",
    "node_effects",
    "pair_effects",
    "protocol_names",
    "reduce_attention",
    "register_algebra",
    "resolve_protocol",
    "resolve_protocols",
    "score_pairs",
]
