"""Which (target, edge) pairs an explanation is judged on.

The pairs of a node are all edges, self-loops included, of the subgraph induced by the nodes within L hops of it, also
those that carry no flow to it (edges that enter nodes exactly L hops away). The pairs of a pair of nodes are those of
the subgraph induced by the nodes within L hops of either. The pairs of a graph are all its edges.
Self-loops that no layer of the network has are no pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.graph import Graph
from attree.attribution.flows import frontier_bound, stream_frontiers, walk_back
from attree.attribution.method import as_subject
from attree.attribution.pairs import Pairs
from attree.errors import expect, expect_instance, expect_int, expect_memory
from attree.subject import Subject
from attree.subject.roots import Roots, Targets, as_targets
from attree.tensors.limits import WALK_MEMORY, chunk_bounds
from attree.tensors.ragged import expand, group, pointers


def subject_pairs(subject: Subject | Attention, targets: Targets = "all", *, only_flows: bool = False) -> Pairs:
    """The pairs of a subject's targets: nodes, pairs of nodes or graphs.

    Args:
        subject: What is explained.
        targets: Their ids.
        only_flows: Leave out pairs whose edge carries no flow to the target.
    """
    subject = as_subject(subject)
    attention, batch, chosen = subject.attention, subject.batch, subject.targets(targets)
    if batch is None:
        roots = subject.roots(chosen, torch.float32)
        rows = None if subject.outputs.nodes is None else subject.rows(chosen)
        pairs = root_pairs(subject.graph, roots, attention.num_layers, only_flows=only_flows)
        pairs = replace(pairs, rows=rows, level=subject.level)
    else:
        pairs = graph_pairs(subject.graph, batch)
        pairs = pairs.of_targets(torch.searchsorted(pairs.targets, chosen))
    if any(present is None for present in attention.present):
        return pairs
    used = torch.stack([present for present in attention.present if present is not None]).any(dim=0)
    kept = used[pairs.edges]
    return pairs if bool(kept.all()) else pairs.only(kept)


def subgraph_pairs(graph: Graph, targets: Targets, num_layers: int, memory: int = WALK_MEMORY) -> Pairs:
    """All pairs of the L-hop subgraphs of some nodes.

    Args:
        graph: The looped graph.
        targets: The nodes: one, several, a mask, or 'all'.
        num_layers: Depth L of the network.
        memory: Bytes of working memory.
    """
    expect_instance(graph, "graph", Graph)
    expect_int(num_layers, "num_layers", 1)
    expect_memory(memory)
    nodes = as_targets(targets, graph.num_nodes, graph.device)
    return root_pairs(graph, Roots.at_nodes(nodes, torch.float32), num_layers, memory)


def root_pairs(
    graph: Graph, roots: Roots, num_layers: int, memory: int = WALK_MEMORY, *, only_flows: bool = False
) -> Pairs:
    """All pairs of the L-hop subgraphs around the roots of some targets, or those that carry a flow."""
    parts = list(
        _stream_flow_pairs(graph, roots, num_layers, memory)
        if only_flows
        else _stream_pairs(graph, roots, num_layers, memory)
    )
    none = roots.targets[:0]
    sizes = torch.cat([none, *(part.ptr.diff() for part in parts)])
    edges = torch.cat([none, *(part.edges for part in parts)])
    flow = torch.cat([none.bool(), *(part.flow for part in parts)])
    return Pairs(roots.targets, pointers(sizes), edges, flow, graph, num_layers)


def graph_pairs(graph: Graph, batch: Tensor) -> Pairs:
    """All edges, self-loops included, of every graph of a batch; the targets are the ids of graphs that have nodes.

    Every edge of a graph carries a flow to its readout.

    Args:
        graph: The looped graph of the whole batch.
        batch: The graph of each node, [num_nodes].

    >>> pairs = graph_pairs(Graph(torch.tensor([[2, 0], [1, 0]]), num_nodes=3), torch.tensor([0, 1, 1]))
    >>> pairs.targets.tolist(), pairs.ptr.tolist(), pairs.edges.tolist()
    ([0, 1], [0, 1, 4], [1, 0, 2, 3])
    """
    expect_instance(graph, "graph", Graph)
    expect_instance(batch, "batch", Tensor)
    expect(
        batch.shape == (graph.num_nodes,) and batch.dtype == torch.int64,
        "batch",
        f"{graph.num_nodes} graph ids of dtype torch.int64, one a node",
        f"{tuple(batch.shape)} of {batch.dtype}",
    )
    source, destination = batch[graph.edge_index]
    expect(torch.equal(source, destination), "batch", "one graph for both ends of every edge", "edges between graphs")
    rows = group(destination, int(batch.max()) + 1 if batch.numel() else 0)
    targets = batch.unique()
    _, place = expand(rows.ptr, targets)
    ptr = torch.cat([rows.ptr[:1], rows.ptr[targets + 1]])
    flow = torch.ones_like(place, dtype=torch.bool)
    return Pairs(targets, ptr, rows.items[place], flow, graph, None, level="graph")


def _stream_pairs(graph: Graph, roots: Roots, num_layers: int, memory: int) -> Iterator[Pairs]:
    """Pairs of consecutive targets whose node maps and edge lists fit into `memory` bytes."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * (num_layers + 1)
    # A chunk needs one mark per target and node, and the edges that enter every node of the balls.
    cost = roots.sums(frontier_bound(graph, num_layers + 1)) * 48.0 + graph.num_nodes
    for begin, end in chunk_bounds(cost, memory):
        yield _pairs_of(graph, roots.slice(begin, end), num_layers, ones)


def _stream_flow_pairs(graph: Graph, roots: Roots, num_layers: int, memory: int) -> Iterator[Pairs]:
    """As `_stream_pairs`, but only the pairs whose edge carries a flow: those that enter a node of the walk."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * num_layers
    for frontier in stream_frontiers(graph, roots, ones, memory=memory):
        entry, place = expand(graph.entering.ptr, frontier.node)
        owner, edges = frontier.owner[entry], graph.entering.items[place]
        ptr = pointers(owner.bincount(minlength=frontier.targets.numel()))
        yield Pairs(frontier.targets, ptr, edges, torch.ones_like(edges, dtype=torch.bool), graph, num_layers)


def _pairs_of(graph: Graph, roots: Roots, num_layers: int, ones: list[Tensor]) -> Pairs:
    # One more layer than the model has: its frontier is every node within L hops, and the levels tell the distance.
    targets, ball = roots.targets, walk_back(graph, roots, ones)
    inner = ball.weight[1:].sum(dim=0) > 0
    inside = torch.zeros(targets.numel() * graph.num_nodes, dtype=torch.bool, device=graph.device)
    inside[ball.owner * graph.num_nodes + ball.node] = True

    order = torch.argsort(ball.owner * 2 + (~inner).long(), stable=True)
    entry_owner, entry_inner = ball.owner[order], inner[order]
    owner, place = expand(graph.entering.ptr, ball.node[order])
    target, flow = entry_owner[owner], entry_inner[owner]
    keep = flow | inside[target * graph.num_nodes + graph.entering_source[place]]
    target, flow, edges = target[keep], flow[keep], graph.entering.items[place[keep]]
    ptr = pointers(target.bincount(minlength=targets.numel()))
    return Pairs(targets, ptr, edges, flow, graph, num_layers)
