"""One forward pass of an attention network with everything kept that single-row updates need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.faithfulness.exact.algebra import ALGEBRAS, LayerAlgebra, States
from attree.faithfulness.exact.sparse import weighted_sums
from attree.memory import REDUCTION_MEMORY, chunk_bounds
from attree.models.attention_net import AttentionNet
from attree.ragged import take_rows

CHUNK_BYTES = 64 * 2**20
"""Bytes of entries that a layer's rows are computed in at a time, at most: larger chunks are no faster."""


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
    """A whole forward pass: per-layer traces, the class scores, and the attention in the usual form."""

    graph: LoopedGraph
    layers: list[LayerTrace]
    logits: Tensor
    attention: Attention


def can_trace(net: object) -> bool:
    """Whether a network is a stack whose layers can all be taken apart."""
    return (
        isinstance(net, AttentionNet)
        and type(net).forward is AttentionNet.forward
        and all(
            type(conv) in ALGEBRAS
            and conv.add_self_loops
            and getattr(conv, "edge_dim", None) is None
            and getattr(conv, "res", None) is None
            and conv.flow == "source_to_target"
            for conv in net.convs
        )
    )


def exact_dtype(device: torch.device) -> torch.dtype:
    """The floating-point type of exact updates: float64 wherever the device has it.

    Reductions often change probabilities by less than float32 can tell; rank statistics would then rank noise.
    """
    return torch.float32 if device.type == "mps" else torch.float64


@torch.no_grad()
def trace_network(net: AttentionNet, x: Tensor, graph: LoopedGraph, memory: int = REDUCTION_MEMORY) -> Trace:
    """Run a network, without dropout, and keep every layer's intermediate results.

    Args:
        net: The network.
        x: Node features, dense or sparse.
        graph: The looped graph.
        memory: Bytes of working memory beyond what is kept.
    """
    dtype, h = exact_dtype(x.device), x
    layers: list[LayerTrace] = []
    for position, conv in enumerate(net.convs):
        algebra = ALGEBRAS[type(conv)](conv, dtype)
        layers.append(_trace_layer(algebra, algebra.project(h), graph, min(memory, CHUNK_BYTES)))
        h = algebra.finish(layers[-1].aggregated)
        if position < net.num_layers - 1:
            h = net.activation(h)
    attention = Attention(graph, tuple(layer.weights.to(x.dtype) for layer in layers), (None,) * len(layers), h)
    return Trace(graph, layers, h, attention)


def _trace_layer(algebra: LayerAlgebra, states: States, graph: LoopedGraph, memory: int) -> LayerTrace:
    """Compute a layer row by row, as many rows at a time as `memory` bytes hold."""
    ptr, edges = graph.entering
    weights = states.value.new_empty(graph.num_edges, algebra.heads)
    log_norm = states.value.new_empty(graph.num_nodes, algebra.heads)
    aggregated = torch.empty_like(states.value)
    width = algebra.heads * algebra.channels
    for begin, end in chunk_bounds(graph.entering.sizes * float(width * 8 * 3 + 64), memory):
        first, last = int(ptr[begin]), int(ptr[end])
        node, source = graph.entering_destination[first:last], graph.entering_source[first:last]
        row = node if begin == 0 else node - begin
        scores = algebra.score(take_rows(states.source, source), take_rows(states.target, node))
        part, norm = row_softmax(scores, row, end - begin)
        weights.index_copy_(0, edges[first:last], part)
        log_norm[begin:end] = norm
        aggregated[begin:end] = weighted_sums(ptr[begin : end + 1] - first, row, source, part, states.value)
    return LayerTrace(algebra, states, weights, log_norm, aggregated)


def row_softmax(score: Tensor, row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Softmax over each row's entries, and the logs of its denominators [num_rows, heads].

    A row whose every score is -inf gets zeros.
    """
    peak = score.new_full((num_rows, score.shape[1]), -torch.inf)
    peak.scatter_reduce_(0, row.unsqueeze(-1).expand_as(score), score, "amax")
    peak.masked_fill_(peak.isinf(), 0.0)
    raised = (score - take_rows(peak, row)).exp_()
    norm = torch.zeros_like(peak).index_add_(0, row, raised)
    return raised.div_(take_rows(norm.masked_fill(norm == 0, 1.0), row)), norm.log().add_(peak)
