"""One forward pass of an attention network with everything kept that single-row updates need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.faithfulness.layer_algebra import ALGEBRAS, LayerAlgebra, States
from attree.models.attention_net import AttentionNet


@dataclass(frozen=True)
class LayerTrace:
    """What one layer computed.

    Attributes:
        algebra: The layer's arithmetic.
        states: Its projections of every node.
        weights: Its attention, [num_edges, heads].
        log_norm: Log of each softmax's denominator, [num_nodes, heads]: weight = exp(score - log_norm).
        aggregated: Weighted sums, [num_nodes, heads, channels].
    """

    algebra: LayerAlgebra
    states: States
    weights: Tensor
    log_norm: Tensor
    aggregated: Tensor


@dataclass(frozen=True)
class Trace:
    """A whole forward pass: per-layer traces, the class probabilities, and the attention in the usual form."""

    graph: LoopedGraph
    layers: list[LayerTrace]
    logits: Tensor
    attention: Attention


def can_trace(net: object) -> bool:
    """Whether a network is a stack whose layers can all be taken apart."""
    return isinstance(net, AttentionNet) and all(
        type(conv) in ALGEBRAS
        and conv.add_self_loops
        and getattr(conv, "edge_dim", None) is None
        and getattr(conv, "res", None) is None
        and conv.flow == "source_to_target"
        for conv in net.convs
    )


def exact_dtype(device: torch.device) -> torch.dtype:
    """The floating-point type of exact updates: float64 wherever the device has it.

    Reductions often change probabilities by less than float32 can tell; rank statistics would then rank noise.
    """
    return torch.float32 if device.type == "mps" else torch.float64


@torch.no_grad()
def trace_network(net: AttentionNet, x: Tensor, graph: LoopedGraph) -> Trace:
    """Run a network, without dropout, and keep every layer's intermediate results."""
    dtype, h = exact_dtype(x.device), x
    layers: list[LayerTrace] = []
    for position, conv in enumerate(net.convs):
        algebra = ALGEBRAS[type(conv)](conv, dtype)
        layers.append(_trace_layer(algebra, algebra.project(h), graph))
        h = algebra.finish(layers[-1].aggregated)
        if position < net.num_layers - 1:
            h = net.activation(h)
    attention = Attention(graph, tuple(layer.weights.to(x.dtype) for layer in layers), (None,) * len(layers), h)
    return Trace(graph, layers, h, attention)


def _trace_layer(algebra: LayerAlgebra, states: States, graph: LoopedGraph) -> LayerTrace:
    source, destination = graph.source, graph.destination
    scores = algebra.score(states.source[source], states.target[destination])
    peak = scores.new_full((graph.num_nodes, algebra.heads), -torch.inf)
    peak.scatter_reduce_(0, destination.unsqueeze(-1).expand_as(scores), scores, "amax")
    raised = (scores - peak[destination]).exp()
    norm = torch.zeros_like(peak).index_add_(0, destination, raised)
    weights = raised / norm[destination]
    aggregated = torch.zeros_like(states.value).index_add_(0, destination, weights.unsqueeze(-1) * states.value[source])
    return LayerTrace(algebra, states, weights, peak + norm.log(), aggregated)
