"""The (target, edge) pairs that explanations are judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.flows import BYTES_PER_ENTRY, Walk, frontier_bound
from attree.attribution.result import Attribution
from attree.errors import expect
from attree.subject.roots import Level, Roots
from attree.tensors.limits import KEPT_WALK_MEMORY
from attree.tensors.ragged import expand, pointers, row_of


@dataclass(frozen=True)
class PairWalk:
    """The walks from the targets of some pairs, and the edges that their flows start with.

    While a network trains, the graph and the pairs stay as they are. So walks are found before the first epoch, and an
    epoch only multiplies and adds.

    Attributes:
        walk: The walks.
        entry: For each listed edge, the entry of the walk whose node it enters.
        place: For each listed edge, its position in `graph.entering.items`.
        edges: For each listed edge, its id in `graph.edge_index`.
        pair: For each listed edge, the number of its pair.
    """

    walk: Walk
    entry: Tensor
    place: Tensor
    edges: Tensor
    pair: Tensor

    @classmethod
    def of(
        cls,
        graph: Graph,
        targets: Tensor,
        flow: Tensor,
        edges: Tensor,
        num_layers: int,
        memory: int = KEPT_WALK_MEMORY,
    ) -> PairWalk | None:
        """Find the walks of pairs; None if keeping them may take more than `memory` bytes, or if pairs were left out.

        Args:
            graph: The graph.
            targets: The pairs' targets.
            flow: For each pair whether its edge carries a flow.
            edges: The edge of each pair.
            num_layers: Depth of the network.
            memory: Bytes that walks may take.
        """
        if float(frontier_bound(graph, num_layers + 1)[targets].sum()) * BYTES_PER_ENTRY > memory:
            return None
        walk = Walk.of(graph, Roots.at_nodes(targets), num_layers)
        entry, place = expand(graph.entering.ptr, walk.node)
        listed = graph.entering.items[place]
        # Pairs list the edges that carry a flow target by target, in the order of these rows.
        pair = flow.nonzero().view(-1)
        return cls(walk, entry, place, listed, pair) if torch.equal(edges[pair], listed) else None


@dataclass(frozen=True)
class Pairs:
    """Pairs (target, edge), target by target. Of each target, pairs that carry a flow come first.

    Pairs belong to the graph and the depth that they were made for, and are refused elsewhere.

    Attributes:
        targets: Ids of the targets, [T].
        ptr: Target k's pairs are `ptr[k]:ptr[k + 1]`, [T + 1].
        edges: Edge ids in the looped graph's `edge_index`, [P].
        flow: Whether the edge carries a flow to the target, [P]; the listed order of these is an `Attribution`'s own.
        graph: The looped graph.
        num_layers: Depth of the networks that the pairs are for; None where the targets are whole graphs.
        rows: For each target its row of the model's output, [T]; None if row and id are the same.
        level: What the targets are.
    """

    targets: Tensor
    ptr: Tensor
    edges: Tensor
    flow: Tensor
    graph: Graph
    num_layers: int | None
    rows: Tensor | None = None
    level: Level = "node"

    def __len__(self) -> int:
        return self.edges.numel()

    @property
    def owner(self) -> Tensor:
        """For each pair the position of its target in `targets`."""
        return row_of(self.ptr.diff())

    @property
    def target_rows(self) -> Tensor:
        """For each pair, the row of the model's output that belongs to its target."""
        return (self.targets if self.rows is None else self.rows)[self.owner]

    @cached_property
    def walk(self) -> PairWalk | None:
        """The walks behind the pairs, kept once found; None where they would take too much memory."""
        if self.num_layers is None or self.level != "node":
            return None
        return PairWalk.of(self.graph, self.targets, self.flow, self.edges, self.num_layers)

    def check(self, graph: Graph, num_layers: int | None = None) -> None:
        """Raise unless the pairs are of this graph and, if given, of this depth."""
        same = self.graph is graph or self.graph.matches(graph.original_edge_index, graph.num_nodes)
        expect(same, "pairs", "pairs of the model's graph", "those of another graph")
        if num_layers is not None and self.num_layers is not None:
            expected = f"pairs of a network of {num_layers} layers"
            expect(self.num_layers == num_layers, "pairs", expected, f"those of {self.num_layers}")

    def of_targets(self, positions: Tensor) -> Pairs:
        """The pairs of some of the targets, given as positions in `targets`."""
        _, place = expand(self.ptr, positions)
        ptr = pointers(self.ptr.diff()[positions])
        rows = None if self.rows is None else self.rows[positions]
        return replace(
            self,
            targets=self.targets[positions],
            ptr=ptr,
            edges=self.edges[place],
            flow=self.flow[place],
            rows=rows,
        )

    def only(self, kept: Tensor) -> Pairs:
        """Some of the pairs, given as a mask; targets stay, even those that are left without any."""
        ptr = pointers(self.owner[kept].bincount(minlength=self.targets.numel()))
        return replace(self, ptr=ptr, edges=self.edges[kept], flow=self.flow[kept])

    def scores(self, attribution: Attribution) -> Tensor:
        """An attribution's score of every pair: 0 where it does not list the edge."""
        expect(
            torch.equal(attribution.targets, self.targets),
            "attribution",
            "an attribution of the same targets in the same order",
            f"{len(attribution)} targets",
        )
        owner = self.owner
        if attribution.lists(owner[self.flow], self.edges[self.flow]):
            scores = attribution.scores.new_zeros(len(self))
            scores[self.flow] = attribution.scores
            return scores
        return attribution.at(owner, self.edges)
