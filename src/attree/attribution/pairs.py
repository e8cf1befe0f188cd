"""The (target, edge) pairs on which explanations are evaluated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.flows import BYTES_PER_ENTRY, Walk, frontier_bound
from attree.attribution.result import Attribution
from attree.errors import expect
from attree.subject.target_roots import Level, Roots
from attree.tensors.arrays import expand, pointers, row_of
from attree.tensors.memory import KEPT_WALK_MEMORY


@dataclass(frozen=True)
class PairWalk:
    """Walks from the targets of some pairs, and the edges that their flows start with.

    While a network trains, the graph and the pairs do not change. So walks are found before the first epoch, and each
    epoch only multiplies and adds.

    Attributes:
        walk: The walks.
        entry: For each listed edge, the entry of the walk whose node it enters.
        place: For each listed edge, its position in `graph.entering.items`.
        edges: For each listed edge, its id in `graph.edge_index`.
        pair: For each listed edge, the position of its pair.
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
        """Find the walks of pairs; None if they may take more than `memory` bytes, or if some pairs were left out.

        Args:
            graph: The graph.
            targets: The targets of the pairs.
            flow: Whether each pair's edge carries a flow.
            edges: The edge of each pair.
            num_layers: Number of layers of the network.
            memory: Bytes that walks may take.
        """
        if float(frontier_bound(graph, num_layers + 1)[targets].sum()) * BYTES_PER_ENTRY > memory:
            return None
        walk = Walk.of(graph, Roots.at_nodes(targets), num_layers)
        entry, place = expand(graph.entering.ptr, walk.node)
        flow_edges = graph.entering.items[place]
        # Pairs list the edges that carry a flow by target, in the order of these rows.
        pair = flow.nonzero().view(-1)
        return cls(walk, entry, place, flow_edges, pair) if torch.equal(edges[pair], flow_edges) else None


@dataclass(frozen=True)
class Pairs:
    """Pairs (target, edge), grouped by target; within a target, pairs that carry a flow come first.

    Pairs belong to one graph and one number of layers; methods and engines raise if these do not match.

    Attributes:
        targets: Ids of the targets, [T].
        ptr: The pairs of target k are `ptr[k]:ptr[k + 1]`, [T + 1].
        edges: Edge ids in `graph.edge_index`, [P].
        flow: Whether the edge carries a flow to the target, [P]; these pairs have the order of an `Attribution`.
        graph: The graph with self-loops.
        num_layers: Number of layers of the network; None if the targets are whole graphs.
        rows: Row of the model's output of each target, [T]; None if rows and ids are equal.
        level: What the targets are: nodes, pairs of nodes, or graphs.
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
        """Position in `targets` of each pair's target."""
        return row_of(self.ptr.diff())

    @property
    def target_rows(self) -> Tensor:
        """Row of the model's output of each pair's target."""
        return (self.targets if self.rows is None else self.rows)[self.owner]

    @cached_property
    def walk(self) -> PairWalk | None:
        """The walks of the pairs, computed once; None if they would take too much memory."""
        if self.num_layers is None or self.level != "node":
            return None
        return PairWalk.of(self.graph, self.targets, self.flow, self.edges, self.num_layers)

    def check(self, graph: Graph, num_layers: int | None = None) -> None:
        """Raise unless the pairs belong to this graph and, if given, to this number of layers."""
        same = self.graph is graph or self.graph.matches(graph.original_edge_index, graph.num_nodes)
        expect(same, "pairs", "pairs of the model's graph", "those of another graph")
        if num_layers is not None and self.num_layers is not None:
            expected = f"pairs of a network of {num_layers} layers"
            expect(self.num_layers == num_layers, "pairs", expected, f"those of {self.num_layers}")

    def of_targets(self, positions: Tensor) -> Pairs:
        """Return the pairs of some targets, given as positions in `targets`."""
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

    def only(self, mask: Tensor) -> Pairs:
        """Return some of the pairs, given as a mask; targets without pairs stay."""
        ptr = pointers(self.owner[mask].bincount(minlength=self.targets.numel()))
        return replace(self, ptr=ptr, edges=self.edges[mask], flow=self.flow[mask])

    def scores(self, attribution: Attribution) -> Tensor:
        """Return an attribution's score of every pair; 0 if it does not list the edge."""
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
