"""Edges around targets: the pairs on which explanations are evaluated, and the parts of the graph that models run on.

The pairs of a node are all edges, including self-loops, of the subgraph induced by the nodes within L hops of it. Some
of them carry no flow to the node: edges that enter nodes exactly L hops away. For a pair of nodes, the subgraph is that
of the nodes within L hops of either. The pairs of a graph are all its edges. Self-loops that no layer of the network
has are not pairs.
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
from attree.subject import Part, Subject
from attree.subject.roots import Roots, Targets, as_targets
from attree.tensors.limits import WALK_MEMORY, chunk_bounds, exact_dtype
from attree.tensors.ragged import expand, group, pointers


def subject_pairs(subject: Subject | Attention, targets: Targets = "all", *, only_flows: bool = False) -> Pairs:
    """Return the pairs of a subject's targets: nodes, pairs of nodes, or graphs.

    Args:
        subject: The subject to explain, or its attention alone.
        targets: Ids of the targets.
        only_flows: Leave out pairs whose edge carries no flow to the target.
    """
    subject = as_subject(subject)
    attention, batch, ids = subject.attention, subject.batch, subject.targets(targets)
    if batch is None:
        roots = subject.roots(ids, torch.float32)
        rows = None if subject.outputs.nodes is None else subject.rows(ids)
        pairs = root_pairs(subject.graph, roots, attention.num_layers, only_flows=only_flows)
        pairs = replace(pairs, rows=rows, level=subject.level)
    else:
        pairs = graph_pairs(subject.graph, batch)
        pairs = pairs.of_targets(torch.searchsorted(pairs.targets, ids))
    if any(present is None for present in attention.present):
        return pairs
    used = torch.stack([present for present in attention.present if present is not None]).any(dim=0)
    is_used = used[pairs.edges]
    return pairs if bool(is_used.all()) else pairs.only(is_used)


def subgraph_pairs(graph: Graph, targets: Targets, num_layers: int, memory: int = WALK_MEMORY) -> Pairs:
    """Return all pairs of the L-hop subgraphs of some nodes.

    Args:
        graph: The graph with self-loops.
        targets: The nodes: one, several, a mask, or 'all'.
        num_layers: Number L of layers of the network.
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
    """Return all pairs of the L-hop subgraphs around the roots of some targets, or only those that carry a flow."""
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
    """Return all edges, including self-loops, of every graph of a batch; targets are the ids of graphs with nodes.

    Every edge of a graph carries a flow to its readout.

    Args:
        graph: The graph of the whole batch, with self-loops.
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
        f"{graph.num_nodes} graph ids of dtype torch.int64, one per node",
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
    """Yield pairs of consecutive targets whose node masks and edge lists fit into `memory` bytes."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * (num_layers + 1)
    # A chunk needs one flag per target and node, and the edges that enter every node of the neighbourhoods.
    cost = roots.sums(frontier_bound(graph, num_layers + 1)) * 48.0 + graph.num_nodes
    for begin, end in chunk_bounds(cost, memory):
        yield _pairs_of(graph, roots.slice(begin, end), num_layers, ones)


def _stream_flow_pairs(graph: Graph, roots: Roots, num_layers: int, memory: int) -> Iterator[Pairs]:
    """Do the same as `_stream_pairs` for pairs that carry a flow only: their edges enter a node of the walk."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * num_layers
    for frontier in stream_frontiers(graph, roots, ones, memory=memory):
        entry, place = expand(graph.entering.ptr, frontier.node)
        owner, edges = frontier.owner[entry], graph.entering.items[place]
        ptr = pointers(owner.bincount(minlength=frontier.targets.numel()))
        yield Pairs(frontier.targets, ptr, edges, torch.ones_like(edges, dtype=torch.bool), graph, num_layers)


def _pairs_of(graph: Graph, roots: Roots, num_layers: int, ones: list[Tensor]) -> Pairs:
    """Return the pairs of some targets: all edges between nodes within L hops, and whether each carries a flow."""
    # One more layer than the model has: the frontier is then every node within L hops, and levels give the distance.
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


def neighbourhoods(
    subject: Subject, targets: Tensor, bytes_per_edge: float, memory: float, *, induced: bool = False, wider: int = 0
) -> Iterator[tuple[int, int, Part]]:
    """Yield the parts of the graph that targets `begin` to `end` depend on, each with one graph per target.

    The output of an L-layer network for a node depends on the edges that enter the nodes fewer than L hops away. The
    output for a graph depends on all its edges.

    Args:
        subject: The subject to explain.
        targets: Ids of nodes, pairs of nodes, or graphs.
        bytes_per_edge: Bytes that one edge takes in a pass of the model.
        memory: Bytes that a part may take in a pass; the nodes of one target always stay together.
        induced: Take all edges between the nodes within L hops instead.
        wider: Number of hops beyond those of the network's layers, for networks that also read edges elsewhere.
    """
    sizes, done = subject.graph.given_entering.sizes + 1, 0
    for ids, owner, node in _inner_nodes(subject, targets, memory, subject.num_layers + int(induced) + wider):
        edges = torch.zeros(ids.numel(), dtype=exact_dtype(ids.device), device=ids.device)
        edges.index_add_(0, owner, sizes[node].to(edges.dtype))
        for begin, end in chunk_bounds(edges * bytes_per_edge, memory):
            first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
            part = Part.entering(
                subject.graph, end - begin, owner[first:last] - begin, node[first:last], induced=induced
            )
            yield done + begin, done + end, part_of_targets(subject, part, ids[begin:end])
        done += ids.numel()


def _inner_nodes(
    subject: Subject, targets: Tensor, memory: float, steps: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, for consecutive targets, the nodes whose entering edges they depend on: targets, owners, nodes."""
    graph, batch = subject.graph, subject.batch
    if batch is not None:
        nodes = group(batch, subject.num_targets)
        owner, place = expand(nodes.ptr, targets)
        yield targets, owner, nodes.items[place]
        return
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * steps
    roots = subject.roots(targets, torch.float32)
    for frontier in stream_frontiers(graph, roots, ones, memory=max(int(memory), 1)):
        yield frontier.targets, frontier.owner, frontier.node


def part_of_targets(subject: Subject, part: Part, targets: Tensor) -> Part:
    """Return a part with the positions of its targets, the pairs to predict and the graph of each node."""
    numbers, ends = torch.arange(part.count, device=part.node.device), subject.outputs.ends
    batch = subject.call.batch
    return replace(
        part,
        graph_of=None if batch is None or not part.node.numel() else batch[part.node[part.bounds[0][:-1]]],
        queries=None if ends is None else torch.stack([part.find(numbers, end[targets]) for end in ends]),
        target=part.find(numbers, subject.nodes_of(targets)) if subject.level == "node" else None,
    )
