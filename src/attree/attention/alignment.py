"""Bring the weights of one recorded layer onto the edges of a looped graph, or say why they do not belong there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attree.attention.chain import describe
from attree.attention.graph import Graph, plain
from attree.attention.message_weights import say_once
from attree.attention.provenance import tensors_in
from attree.attention.recording import LayerRecord
from attree.errors import UnsupportedModelError


def align_layer(
    records: Sequence[LayerRecord], call: int, graph: Graph, grad: bool = False
) -> tuple[Tensor, Tensor | None]:
    """One layer's weights on the graph's edges [num_edges, heads], and which of those it used (None: all).

    Args:
        records: What one forward pass recorded.
        call: The index of the layer's record.
        graph: The looped graph.
        grad: Keep the gradients of the weights; they are detached otherwise.
    """
    layer, where = records[call], describe(records, call)
    _check_nodes(layer, where, graph.num_nodes)
    edge_index, weights = _weights(layer, where, graph)
    weights = weights if grad else weights.detach()
    if torch.equal(edge_index, graph.edge_index):
        return weights, None

    proper = edge_index[0] != edge_index[1]
    if not torch.equal(edge_index[:, proper], graph.edge_index[:, : graph.num_proper_edges]):
        raise UnsupportedModelError(
            f"Expected {where} to run on the edges it was called with, in their order, but it ran on others."
        )
    on_graph = weights.new_zeros(graph.num_edges, weights.shape[1])
    on_graph[: graph.num_proper_edges] = weights[proper]
    loops = graph.num_proper_edges + edge_index[0, ~proper]
    on_graph.index_add_(0, loops, weights[~proper])
    used = torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)
    used[graph.num_proper_edges :] = False
    used[loops] = True
    return on_graph, None if bool(used.all()) else used


def _check_nodes(layer: LayerRecord, where: str, num_nodes: int) -> None:
    """Raise unless a layer maps all nodes of the graph to the same nodes."""
    if layer.conv.flow != "source_to_target":
        raise UnsupportedModelError(f"Expected flow 'source_to_target' in {where}, but got {layer.conv.flow!r}.")
    if layer.bipartite:
        raise UnsupportedModelError(f"Expected {where} to map nodes to the same nodes, but it has two node sets.")
    for what, value in (("take", layer.features), ("return", layer.output)):
        for tensor in tensors_in(value):
            nodes = tensor.shape[layer.conv.node_dim if tensor.dim() >= abs(layer.conv.node_dim) else 0]
            if num_nodes not in (nodes, tensor.shape[0]):
                raise UnsupportedModelError(
                    f"Expected {where} to {what} features of all {num_nodes} nodes of the graph, but got {nodes} rows."
                )


def _weights(layer: LayerRecord, where: str, graph: Graph) -> tuple[Tensor, Tensor]:
    """The edges that a layer passed messages along, and its weights for them [edges, heads]."""
    edge_index: Any = plain(layer.edge_index)
    weights = layer.weights
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        raise UnsupportedModelError(
            f"Expected {where} to use edge_index as a [2, E] tensor, but got {type(edge_index).__name__}."
        )
    if layer.propagations > 1:
        raise UnsupportedModelError(
            f"Expected {where} to pass messages once a call, but it did so {layer.propagations} times."
        )
    if edge_index.numel() == 0 and weights is None:
        # Without a single edge, GATConv does not even call softmax.
        weights = torch.zeros(0, getattr(layer.conv, "heads", 1), device=graph.device)
    if weights is None:
        raise UnsupportedModelError(
            f"Expected {where} to weigh its messages by torch_geometric.utils.softmax, but it did not call it."
        )
    if weights.shape[0] != edge_index.shape[1] or (layer.softmaxes > 1 and layer.factors is None):
        # RGATConv "within-relation" does this: one softmax for each relation, over its edges alone.
        raise UnsupportedModelError(
            f"Expected {where} to call softmax once, with a score for each of its {edge_index.shape[1]} edges, but "
            f"the last of {layer.softmaxes} calls had {weights.shape[0]} scores."
        )
    if layer.unclear is not None:
        say_once(layer.conv, where, layer.unclear)
    if layer.factors is not None:
        return edge_index, layer.factors
    return edge_index, weights.unsqueeze(1) if weights.dim() == 1 else weights.flatten(1)
