"""Which (target, edge) pairs an explanation is judged on.

The pairs of a target are all edges, self-loops included, of the subgraph induced by the nodes within L hops of it,
also those that carry no flow to the target (edges that enter nodes exactly L hops away).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph
from attree.attribution.flows import Start, frontier_bound, walk_back
from attree.attribution.result import Attribution
from attree.errors import expect
from attree.memory import WALK_MEMORY, chunk_bounds
from attree.ragged import expand, pointers, row_of


@dataclass(frozen=True)
class Pairs:
    """Pairs of several targets, target by target; within one, first those that carry a flow.

    Attributes:
        targets: Ids of the targets, [T].
        ptr: Target k's pairs are `ptr[k]:ptr[k + 1]`, [T + 1].
        edges: Edge ids in the looped graph's `edge_index`, [P].
        flow: Whether the edge carries a flow to the target, [P]; the listed order of these is an `Attribution`'s own.
    """

    targets: Tensor
    ptr: Tensor
    edges: Tensor
    flow: Tensor

    def __len__(self) -> int:
        return self.edges.numel()

    @property
    def owner(self) -> Tensor:
        """For each pair the position of its target in `targets`."""
        return row_of(self.ptr.diff())

    def scores(self, attribution: Attribution) -> Tensor:
        """An attribution's score of every pair: 0 where the edge carries no flow."""
        expect(
            torch.equal(attribution.targets, self.targets),
            "attribution",
            "an attribution of the same targets in the same order",
            f"{len(attribution)} targets",
        )
        scores = attribution.scores.new_zeros(len(self))
        scores[self.flow] = attribution.at(self.owner[self.flow], self.edges[self.flow])
        return scores


def subgraph_pairs(graph: LoopedGraph, targets: Tensor, num_layers: int, memory: int = WALK_MEMORY) -> Pairs:
    """All pairs of the targets' L-hop subgraphs."""
    expect(num_layers >= 1, "num_layers", "an integer >= 1", num_layers)
    parts = list(_stream_pairs(graph, targets, num_layers, memory))
    if not parts:
        none = targets.new_zeros(0)
        return Pairs(targets, targets.new_zeros(1), none, none.bool())
    sizes = torch.cat([part.ptr.diff() for part in parts])
    ptr = pointers(sizes)
    return Pairs(targets, ptr, torch.cat([part.edges for part in parts]), torch.cat([part.flow for part in parts]))


def _stream_pairs(graph: LoopedGraph, targets: Tensor, num_layers: int, memory: int) -> Iterator[Pairs]:
    """Pairs of consecutive targets whose node maps and edge lists fit into `memory` bytes."""
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * (num_layers + 1)
    # A chunk needs one mark per target and node, and the edges that enter every node of the balls.
    cost = frontier_bound(graph, num_layers + 1)[targets] * 48.0 + graph.num_nodes
    for begin, end in chunk_bounds(cost, memory):
        yield _pairs_of(graph, targets[begin:end], num_layers, ones)


def _pairs_of(graph: LoopedGraph, targets: Tensor, num_layers: int, ones: list[Tensor]) -> Pairs:
    # One more layer than the model has: its frontier is every node within L hops, and the levels tell the distance.
    ball = walk_back(graph, Start.at_nodes(targets, torch.float32), ones)
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
    return Pairs(targets, ptr, edges, flow)
