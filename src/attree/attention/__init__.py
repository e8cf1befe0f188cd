"""The attention of a network, captured from any PyG attention convolution and aligned with one edge list."""

from attree.attention.capture import Attention, capture_attention
from attree.attention.diagnostics import Bypass, measure_bypass
from attree.attention.graph import Graph
from attree.attention.instrument import hook_softmax
from attree.attention.locality import Locality, measure_locality
from attree.attention.stand_in import stand_in

__all__ = [
    "Attention",
    "Bypass",
    "Graph",
    "Locality",
    "capture_attention",
    "hook_softmax",
    "measure_bypass",
    "measure_locality",
    "stand_in",
]
