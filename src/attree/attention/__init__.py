"""What a network attended to: captured from any PyG attention convolution, aligned with one edge list."""

from attree.attention.capture import Attention, capture_attention
from attree.attention.looped_graph import LoopedGraph

__all__ = ["Attention", "LoopedGraph", "capture_attention"]
