"""Align the weights of recorded calls with the edges of a graph; raise if they do not belong to these edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import HANConv

from attree.attention.graph import Graph, edge_ids, find_type, owner_ids, plain
from attree.attention.layer_records import LayerRecord
from attree.attention.marked_tensors import tensors_in
from attree.attention.message_edges import MessageGraph
from attree.attention.message_factors import warn_unread
from attree.attention.wiring import Wiring, describe, has_two_node_sets
from attree.errors import UnsupportedModelError
from attree.tensors.precision import same


@dataclass(frozen=True)
class Aligned:
    """Weights of one call, or of several calls side by side, on the edges of a graph.

    Attributes:
        weights: The weights, [num_edges, heads]; 0 on edges that are not used.
        present: A mask of the used edges, [num_edges]; None if all are used.
        uniform_weights: The weights if every softmax gave all its edges the same weight, [num_edges]; None if this is
            1 / n for the n used edges that enter a node.
        softmax: The number of the softmax that weighs each edge, [num_edges]; None if one softmax weighs all edges
            that enter a node, or if several weigh the same edge.
        has_attention: Whether a softmax computes the weights; otherwise they are the fixed factors of the messages.
    """

    weights: Tensor
    present: Tensor | None
    uniform_weights: Tensor | None = None
    softmax: Tensor | None = None
    has_attention: bool = True


def align_call(records: Sequence[LayerRecord], call: int, graph: Graph, grad: bool = False) -> Aligned:
    """Return the weights of one call on the edges of the graph.

    Args:
        records: The records of one forward pass.
        call: Index of the call.
        graph: The graph of the pass.
        grad: Keep the gradients of the weights.
    """
    check_nodes(records, call, graph)
    layer, where = records[call], describe(records, call)
    if isinstance(layer.conv, HANConv) and graph.types is not None:
        return _align_relations(layer, where, graph, grad)
    edge_index, weights = _weights(layer, where, graph)
    weights = weights if grad else weights.detach()
    if graph.walked is graph and graph.types is None and torch.equal(edge_index, graph.edge_index):
        return Aligned(weights, None) if layer.softmaxes else _fixed(Aligned(weights, None))
    ids, graph = _ids(layer, where, graph, edge_index, call), graph.walked
    aligned = _placed(weights, ids, graph)
    if not layer.softmaxes and edge_index.numel():
        return _fixed(aligned)
    if layer.relation is None:
        return aligned
    softmax = graph.destination.clone()
    softmax[ids] += layer.relation * graph.num_nodes
    return replace(aligned, uniform_weights=_even_by_relation(layer.relation, ids, graph), softmax=softmax)


def _fixed(aligned: Aligned) -> Aligned:
    """Return the weights of a layer without attention: its fixed factors are not replaced by uniform weights."""
    return replace(aligned, uniform_weights=aligned.weights.mean(dim=1), has_attention=False)


class OtherEdgesError(UnsupportedModelError):
    """Raised if a layer runs on other nodes or edges than the data's in their order, and it is not known on which."""


def _ids(layer: LayerRecord, where: str, graph: Graph, edge_index: Any, call: int | None = None) -> Tensor:
    if call is None or graph.messages is None:
        ids = edge_ids(graph, layer.given_edges, edge_index)
    else:
        ids = owner_ids(graph, layer.given_edges, edge_index, call)
        if ids is not None and isinstance(graph.walked, MessageGraph):
            ids = graph.walked.ids(edge_index, ids)
    if ids is None:
        raise OtherEdgesError(
            f"Expected {where} to run on the edges of the data, in their order, but it ran on "
            f"{_other_edges(edge_index, graph)}"
        )
    return ids


def _other_edges(edge_index: Any, graph: Graph) -> str:
    """Say on which edges a layer ran, compared with the graph's, and how to make these the edges of the data."""
    way_out = "Compute them before the model is called, and pass them as `data.edge_index`."
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        return f"others. {way_out}"
    pairs = {(source, destination) for source, destination in edge_index.T.tolist() if source != destination}
    links = set(map(tuple, graph.original_edge_index.T.tolist()))
    if pairs <= links:
        size = sum(source != destination for source, destination in links)
        if len(pairs) < size:
            return (
                f"a part of them ({len(pairs):,} of {size:,}). A HeteroData with an edge type for each part has them "
                "apart; or give the layers all edges, and a feature that says which matter."
            )
        return f"them in another order. {way_out}"
    if {(destination, source) for source, destination in pairs} <= links:
        return f"them reversed. {way_out}"
    return f"{len(pairs - links):,} edges that the data does not have. {way_out}"


def _placed(weights: Tensor, ids: Tensor, graph: Graph) -> Aligned:
    """Place weights at the given edge ids; weights of the same edge are added."""
    on_graph = weights.new_zeros(graph.num_edges, weights.shape[1]).index_add_(0, ids, weights)
    used = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
    used[ids] = True
    return Aligned(on_graph, None if bool(used.all()) else used)


def _even_by_relation(relation: Tensor, ids: Tensor, graph: Graph) -> Tensor:
    """Return uniform weights for one softmax per relation; weights of the same edge are added."""
    row = graph.destination[ids] * (int(relation.max()) + 1 if relation.numel() else 1) + relation
    size = row.bincount()[row].to(torch.get_default_dtype())
    return torch.zeros(graph.num_edges, device=graph.device).index_add_(0, ids, 1 / size)


def _align_relations(layer: LayerRecord, where: str, graph: Graph, grad: bool) -> Aligned:
    """Return the weights of HAN: one softmax per relation, times the semantic attention of the relation."""
    assert isinstance(layer.conv, HANConv)
    if not len(layer.edges) == len(layer.weights) == len(layer.sums):
        raise UnsupportedModelError(f"Expected {where} to call softmax once for each relation, but it did not.")
    ids = [_ids(layer, where, graph, edges) for edges in layer.edges]
    entered = [kind[2] for edges in layer.edges if (kind := find_type(graph, edges)) is not None]
    factors = torch.ones(len(ids), dtype=torch.float64)
    for node_type in set(entered):
        relations = [number for number, kind in enumerate(entered) if kind == node_type]
        semantic_weights = _semantic_weights(layer.conv, [layer.sums[number] for number in relations])
        expected = sum(
            weight * layer.sums[number].relu() for weight, number in zip(semantic_weights, relations, strict=True)
        )
        returned = layer.output[node_type]
        if len(entered) != len(ids) or not same(torch.as_tensor(expected), returned.detach(), floor=0.0):
            raise UnsupportedModelError(
                f"Expected {where} to weight its relations by semantic attention, but it returned something else."
            )
        factors[relations] = semantic_weights.double().cpu()
    parts = []
    for number, weights in enumerate(layer.weights):
        part = _placed((weights if grad else weights.detach()).flatten(1), ids[number], graph)
        parts.append((part, float(factors[number])))
    return side_by_side(parts, graph)


def _semantic_weights(conv: HANConv, sums: list[Tensor]) -> Tensor:
    """Return the semantic attention of HAN for each relation that enters one node type."""
    stacked = torch.stack([rows.relu() for rows in sums])
    scores = (conv.q * torch.tanh(conv.k_lin(stacked)).mean(1)).sum(-1)
    return F.softmax(scores, dim=0).detach()


def side_by_side(parts: Sequence[tuple[Aligned, float]], graph: Graph) -> Aligned:
    """Return several calls as one layer: the sum of their weights, each times its factor."""
    heads = {part.weights.shape[1] for part, _ in parts}
    weights: Tensor | None = None
    even = torch.zeros(graph.num_edges, dtype=parts[0][0].weights.dtype, device=graph.device)
    present = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
    softmax, shared = graph.destination.clone(), False
    for part, factor in parts:
        weighted = part.weights if len(heads) == 1 else part.weights.mean(dim=1, keepdim=True)
        weighted = weighted * factor
        weights = weighted if weights is None else weights + weighted
        even = even + even_weights(part, graph) * factor
        used = torch.ones_like(present) if part.present is None else part.present
        shared |= bool((present & used).any())
        numbers = graph.destination if part.softmax is None else part.softmax
        softmax = torch.where(used, numbers + softmax.max() + 1, softmax) if softmax.numel() else softmax
        present |= used
    assert weights is not None
    has_attention = any(part.has_attention for part, _ in parts)
    numbers_of_softmaxes = None if shared or not has_attention else softmax
    return Aligned(weights, None if bool(present.all()) else present, even, numbers_of_softmaxes, has_attention)


def even_weights(part: Aligned, graph: Graph) -> Tensor:
    """Return the weights if every softmax gave all its edges the same weight, [num_edges]."""
    if part.uniform_weights is not None:
        return part.uniform_weights
    weight = part.weights[:, 0]
    used = torch.ones_like(weight) if part.present is None else part.present.to(weight.dtype)
    total = used.new_zeros(graph.num_nodes).index_add_(0, graph.destination, used)
    return used / total[graph.destination].clamp(min=1)


def as_layers(calls: Sequence[Aligned], wiring: Wiring, graph: Graph) -> list[Aligned]:
    """Return the layers of a wiring from the aligned calls of one pass."""
    of_call = dict(zip(wiring.calls, calls, strict=True))
    return [
        of_call[layer[0]]
        if len(layer) == 1
        else side_by_side([(of_call[call], factor) for call, factor in zip(layer, factors, strict=True)], graph)
        for layer, factors in zip(wiring.layers, wiring.factors, strict=True)
    ]


def ends_of(calls: Sequence[Aligned], graph: Graph) -> list[tuple[set[str], set[str]]] | None:
    """Return the node types at both ends of the edges of each convolution call; None if the graph has no types."""
    types = graph.types
    if types is None:
        return None
    ends = []
    for call in calls:
        used = slice(None) if call.present is None else call.present
        sides = [types.type_of_nodes(side[used]).unique().tolist() for side in (graph.source, graph.destination)]
        ends.append(tuple({types.node_types[number] for number in side} for side in sides))
    return [(leaves, enters) for leaves, enters in ends]


def check_nodes(records: Sequence[LayerRecord], call: int, graph: Graph) -> None:
    """Raise unless the input and output of a call have one row per node of the graph, or of one node type each."""
    layer, where = records[call], describe(records, call)
    if layer.conv.flow != "source_to_target":
        raise UnsupportedModelError(f"Expected flow 'source_to_target' in {where}, but got {layer.conv.flow!r}.")
    if graph.types is not None:
        _check_typed_nodes(layer, where, graph)
        return
    if layer.bipartite:
        raise has_two_node_sets(records, call)
    num_nodes = graph.num_nodes
    for what, value in (("take", layer.features), ("return", layer.output)):
        for tensor in tensors_in(value):
            nodes = tensor.shape[layer.conv.node_dim if tensor.dim() >= abs(layer.conv.node_dim) else 0]
            if not {num_nodes, graph.walked.num_nodes} & {nodes, tensor.shape[0]}:
                adds_nodes = min(nodes, tensor.shape[0]) > num_nodes
                raise (OtherEdgesError if adds_nodes else UnsupportedModelError)(
                    f"Expected {where} to {what} features of all {num_nodes} nodes of the graph, but got {nodes} rows."
                )


def _check_typed_nodes(layer: LayerRecord, where: str, graph: Graph) -> None:
    """Raise unless features and outputs have one row per node of their types."""
    types = graph.types
    assert types is not None
    if isinstance(layer.given_edges, dict):
        sides = [(kind, rows) for value in (layer.features, layer.output) for kind, rows in value.items()]
    else:
        kind = find_type(graph, layer.given_edges)
        if kind is None:
            raise UnsupportedModelError(
                f"Expected {where} to be called with the edges of one type, as they were given, but got others."
            )
        features = layer.features if isinstance(layer.features, tuple | list) else (layer.features,)
        sides = [*zip((kind[0], kind[2]), features, strict=False), (kind[2], layer.output)]
    for node_type, rows in sides:
        is_type = node_type in types.node_types
        if isinstance(rows, Tensor) and not (is_type and rows.shape[0] == len(types.nodes(node_type))):
            raise UnsupportedModelError(
                f"Expected {where} to work on all nodes of type {node_type!r}, but got {rows.shape[0]} rows."
            )


def _weights(layer: LayerRecord, where: str, graph: Graph) -> tuple[Tensor, Tensor]:
    """Return the edges along which a layer passed messages, and its weights, [edges, heads]."""
    edge_index: Any = plain(layer.edges[-1]) if layer.edges else None
    weights = layer.weights[-1] if layer.weights else None
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        raise UnsupportedModelError(
            f"Expected {where} to use edge_index as a [2, E] tensor, but got {type(edge_index).__name__}."
        )
    if len(layer.edges) > 1:
        raise UnsupportedModelError(
            f"Expected {where} to pass messages once a call, but it did so {len(layer.edges)} times."
        )
    if edge_index.numel() == 0 and weights is None:
        # Without edges, GATConv does not call softmax.
        weights = torch.zeros(0, getattr(layer.conv, "heads", 1), device=graph.device)
    if weights is None and layer.factors is not None and layer.factors.shape[0] == edge_index.shape[1]:
        return edge_index, layer.factors
    if weights is None:
        raise UnsupportedModelError(
            f"Expected {where} to send one message along each of its {edge_index.shape[1]} edges, by its method "
            "`message`, or to weight them by torch_geometric.utils.softmax, but it did neither."
        )
    if weights.shape[0] != edge_index.shape[1] or (layer.softmaxes > 1 and layer.factors is None):
        raise UnsupportedModelError(
            f"Expected {where} to call softmax once, with a score for each of its {edge_index.shape[1]} edges, but "
            f"the last of {layer.softmaxes} calls had {weights.shape[0]} scores."
        )
    if layer.unclear is not None:
        warn_unread(where, layer.unclear)

    if layer.factors is not None:
        return edge_index, layer.factors
    return edge_index, weights.unsqueeze(1) if weights.dim() == 1 else weights.flatten(1)
