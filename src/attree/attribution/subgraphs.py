"""Explain targets of a graph that is too large for one forward pass: neighbourhood by neighbourhood, exactly.

What an L-layer network computes for a target depends only on the nodes within L hops and on the edges that enter the
nodes within L - 1 hops. The layers need even less of it: layer m is read only at nodes within L - m hops. So the
network runs on the union of such neighbourhoods of a batch of targets, where the attention on every flow is that of
the full graph, and the scores are handed back with the full graph's edge ids.

This holds for networks whose layers see neighbours alone; one that normalises over all nodes of its input in eval mode,
or pools them, computes something else on a part of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention.capture import capture_attention
from attree.attention.looped_graph import LoopedGraph
from attree.attention.softmax_tap import attention_convs
from attree.attribution.flow_method import FlowMethod
from attree.attribution.flows import frontier_bound
from attree.attribution.result import Attribution
from attree.attribution.start import Start
from attree.attribution.track import track
from attree.errors import expect
from attree.memory import WALK_MEMORY, chunk_bounds
from attree.ragged import Rows, expand, group
from attree.subject.subject import Targets, as_targets


def attribute_subgraphs(
    method: FlowMethod,
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    targets: Targets = "all",
    *,
    num_layers: int | None = None,
    memory: int = WALK_MEMORY,
    progress: bool = False,
    **kwargs: Any,
) -> Attribution:
    """Score targets batch by batch on the union of their neighbourhoods: equal to one pass over the full graph.

    Args:
        method: The attribution method; `random` is excluded, as it reads no attention.
        model: The model; it may be on another device than the graph.
        x: Node features of the full graph.
        edge_index: Edges of the full graph [2, E].
        targets: Nodes to explain.
        num_layers: Calls of attention convolutions in one forward pass; None takes the model to call each once.
        memory: Bytes that a batch may take in the forward pass, by a rough estimate, and again in the attribution.
        progress: Show a progress bar.
        **kwargs: Further arguments of the model; those that PyG's naming rules call node or edge attributes are cut
            to the neighbourhood.
    """
    parts = list(
        stream_subgraphs(
            method, model, x, edge_index, targets, num_layers=num_layers, memory=memory, progress=progress, **kwargs
        )
    )
    if not parts:
        graph, none = LoopedGraph(edge_index, x.shape[0]), edge_index.new_zeros(0)
        return Attribution(method.name, graph, none, edge_index.new_zeros(1), none, x.new_zeros(0))
    return Attribution.concat(parts)


def stream_subgraphs(
    method: FlowMethod,
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    targets: Targets = "all",
    *,
    num_layers: int | None = None,
    memory: int = WALK_MEMORY,
    progress: bool = False,
    **kwargs: Any,
) -> Iterator[Attribution]:
    """As `attribute_subgraphs`, but yields the result in parts of consecutive targets."""
    expect(not method.is_random, "method", "one that reads attention", method.name)
    expect(memory > 0, "memory", "a number of bytes > 0", memory)
    graph = LoopedGraph(edge_index, x.shape[0])
    nodes = as_targets(targets, graph.num_nodes, graph.device)
    layers = len(attention_convs(model)) if num_layers is None else num_layers
    expect(layers >= 1, "num_layers", "an integer >= 1", layers)
    data = Data(x=x, edge_index=edge_index, num_nodes=graph.num_nodes, **kwargs)
    parts = _stream(method, model, data, graph, nodes, layers, memory, kwargs)
    return track(parts, nodes.numel()) if progress else parts


def _stream(
    method: FlowMethod,
    model: nn.Module,
    data: Data,
    graph: LoopedGraph,
    targets: Tensor,
    num_layers: int,
    memory: int,
    kwargs: dict[str, Any],
) -> Iterator[Attribution]:
    hops = method.hops(num_layers)
    device = next((parameter.device for parameter in model.parameters()), graph.device)
    rows = group(graph.original_edge_index[1], graph.num_nodes)
    local = torch.empty(graph.num_nodes, dtype=torch.int64, device=graph.device)
    # Neighbourhoods overlap, so the sum of their sizes bounds that of the union from above.
    size = frontier_bound(graph, hops + 1)[targets].clamp(max=float(graph.num_edges))
    for begin, end in chunk_bounds(size * _bytes_per_edge(model, data.x), memory):
        part = targets[begin:end]
        ball = neighbourhood(graph.original_edge_index, rows, part, hops)
        local[ball.nodes] = torch.arange(ball.nodes.numel(), device=graph.device)
        arguments = {name: _cut(data, name, value, ball, device) for name, value in kwargs.items()}
        edges = local[graph.original_edge_index[:, ball.edges]].to(device)
        attention = capture_attention(model, data.x[ball.nodes].to(device), edges, **arguments)
        expect(
            attention.num_layers == num_layers,
            "num_layers",
            f"the number of attention convolutions called in a forward pass, {attention.num_layers}",
            num_layers,
        )
        # Where the edges of the part, self-looped, are among those of the full graph.
        proper = attention.graph.original_edge_index[0] != attention.graph.original_edge_index[1]
        kept = ball.edges[proper.to(graph.device)]
        place = torch.cat([graph.position[kept], graph.num_proper_edges + ball.nodes])
        for scored in method.stream_from(attention, Start.at_nodes(local[part].to(device)), memory):
            yield Attribution(
                method.name,
                graph,
                ball.nodes[scored.targets.to(graph.device)],
                scored.ptr.to(graph.device),
                place[scored.edges.to(graph.device)],
                scored.scores.to(graph.device),
            )


class Neighbourhood(NamedTuple):
    """A part of a graph: its nodes and the given edges it keeps, both ascending."""

    nodes: Tensor
    edges: Tensor


def neighbourhood(edge_index: Tensor, entering: Rows, targets: Tensor, hops: int) -> Neighbourhood:
    """All nodes within `hops` of some target, and all edges that enter the nodes within `hops` - 1.

    Args:
        edge_index: Edges of the full graph [2, E].
        entering: These edges grouped by destination.
        targets: Where the neighbourhoods are centred.
        hops: Their radius.
    """
    seen = torch.zeros(entering.ptr.numel() - 1, dtype=torch.bool, device=edge_index.device)
    seen[targets] = True
    outermost, edges = targets, []
    for _ in range(hops):
        _, place = expand(entering.ptr, outermost)
        edges.append(entering.items[place])
        reached = edge_index[0, edges[-1]]
        outermost = reached[~seen[reached]].unique()
        seen[outermost] = True
    return Neighbourhood(seen.nonzero().view(-1), torch.cat(edges).sort().values)


def _cut(data: Data, name: str, value: Any, ball: Neighbourhood, device: torch.device) -> Any:
    """The part of a model argument that belongs to a neighbourhood."""
    if not isinstance(value, Tensor):
        return value
    if data.is_edge_attr(name):
        value = value[ball.edges]
    elif data.is_node_attr(name):
        value = value[ball.nodes]
    return value.to(device)


def _bytes_per_edge(model: nn.Module, x: Tensor) -> float:
    """What a forward pass takes for each edge, roughly: a node's features and three messages of the widest layer."""
    widest = max((parameter.shape[0] for parameter in model.parameters() if parameter.dim() >= 2), default=0)
    return float(x.element_size() * (x.shape[-1] + 3 * widest))
