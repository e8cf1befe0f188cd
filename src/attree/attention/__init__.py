"""The attention of a network, captured from any PyG attention convolution and aligned with one edge list."""

from attree.attention.bypass_and_locality import Bypass, Locality, measure_bypass, measure_locality
from attree.attention.capture import Attention, capture_attention
from attree.attention.global_attention_calls import GlobalCall
from attree.attention.global_attention_readers import Mixing, register_global_attention
from attree.attention.global_weight_matrices import DenseWeights, KernelWeights, ListedWeights
from attree.attention.graph import Graph
from attree.attention.instruments import LayerCall, Watcher, hook_softmax, instrument
from attree.attention.stand_ins import stand_in

__all__ = [
    "Attention",
    "Bypass",
    "DenseWeights",
    "GlobalCall",
    "Graph",
    "KernelWeights",
    "LayerCall",
    "ListedWeights",
    "Locality",
    "Mixing",
    "Watcher",
    "capture_attention",
    "hook_softmax",
    "instrument",
    "measure_bypass",
    "measure_locality",
    "register_global_attention",
    "stand_in",
]
