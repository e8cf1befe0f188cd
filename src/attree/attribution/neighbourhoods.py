"""Cut what targets depend on out of their graph, one part for many targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attree.attribution.flows import stream_frontiers
from attree.subject import Part, Subject
from attree.tensors.limits import chunk_bounds, exact_dtype
from attree.tensors.ragged import expand, group


def neighbourhoods(
    subject: Subject, targets: Tensor, bytes_per_edge: float, memory: float, *, induced: bool = False
) -> Iterator[tuple[int, int, Part]]:
    """What consecutive targets depend on: for targets `begin` to `end`, a part with a graph for each.

    The output of an L-layer network for a node depends on the edges that enter the nodes fewer than L hops away. That
    for a graph depends on its edges.

    Args:
        subject: What is explained.
        targets: Ids of nodes, of pairs of nodes, or of graphs.
        bytes_per_edge: Bytes that one edge takes in a pass of the model.
        memory: Bytes that a part can take in a pass; the nodes that one target depends on always stay together.
        induced: Take all edges between the nodes within L hops instead.
    """
    sizes, done = subject.graph.given_entering.sizes + 1, 0
    for chosen, owner, node in _inner_nodes(subject, targets, memory, subject.num_layers + int(induced)):
        edges = torch.zeros(chosen.numel(), dtype=exact_dtype(chosen.device), device=chosen.device)
        edges.index_add_(0, owner, sizes[node].to(edges.dtype))
        for begin, end in chunk_bounds(edges * bytes_per_edge, memory):
            first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
            part = Part.entering(
                subject.graph, end - begin, owner[first:last] - begin, node[first:last], induced=induced
            )
            yield done + begin, done + end, _for_targets(subject, part, chosen[begin:end])
        done += chosen.numel()


def _inner_nodes(
    subject: Subject, targets: Tensor, memory: float, steps: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For consecutive targets, the nodes whose entering edges they depend on: targets, owners, nodes."""
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


def _for_targets(subject: Subject, part: Part, targets: Tensor) -> Part:
    """Give a part the places of its targets, the pairs to ask for and the graph of each node."""
    own, ends = torch.arange(part.count, device=part.node.device), subject.outputs.ends
    batch = subject.call.batch
    return replace(
        part,
        graph_of=None if batch is None or not part.node.numel() else batch[part.node[part.bounds[0][:-1]]],
        queries=None if ends is None else torch.stack([part.find(own, end[targets]) for end in ends]),
        target=part.find(own, subject.nodes_of(targets)) if subject.level == "node" else None,
    )
