"""The part of a graph around one target, small enough to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order

from attree.attention import Graph
from attree.report.style import count
from attree.tensors.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class DrawnPart:
    """A target's subgraph with its own numbering of nodes.

    Attributes:
        edges: Ids of its edges in the whole graph, [m].
        nodes: Ids of its nodes in the whole graph, ascending, [n].
        source: Where each edge starts, as a position in `nodes`, [m].
        destination: Where each edge ends, as a position in `nodes`, [m].
        is_true: Whether each edge truly explains the target, [m].
        target: The target, as a position in `nodes`; None if that is the whole graph.
    """

    edges: Ints
    nodes: Ints
    source: Ints
    destination: Ints
    is_true: Bools
    target: int | None

    @classmethod
    def of(cls, graph: Graph, edges: Ints, is_true: Bools, target: int | None) -> DrawnPart:
        """The subgraph of some edges, given by their ids, and of the target."""
        ends = graph.edge_index[:, torch.as_tensor(edges, device=graph.device)].cpu().numpy()
        named = ends.ravel() if target is None else np.append(ends.ravel(), target)
        nodes, local = np.unique(named, return_inverse=True)
        source, destination = local[: ends.size].reshape(2, -1)
        return cls(edges, nodes, source, destination, is_true, None if target is None else int(local[-1]))

    def only(self, kept: Ints) -> DrawnPart:
        """The part that has only some of the edges, and the nodes at their ends."""
        source, destination = self.source[kept], self.destination[kept]
        own = [] if self.target is None else [self.target]
        places = np.unique(np.concatenate([source, destination, np.array(own, dtype=np.int64)]))
        return DrawnPart(
            self.edges[kept],
            self.nodes[places],
            np.searchsorted(places, source),
            np.searchsorted(places, destination),
            self.is_true[kept],
            None if self.target is None else int(np.searchsorted(places, self.target)),
        )

    def choose(self, strength: Floats, most: int) -> Ints:
        """Positions of at most `most` edges: the true first, then the highest scored, each with a way to the target.

        Args:
            strength: Scores between 0 and 1, a row each method, [methods, m].
            most: How many edges to keep.
        """
        if len(self.edges) <= most:
            return np.arange(len(self.edges))
        ranked = np.lexsort((self.edges, -strength.max(axis=0), ~self.is_true))
        if self.target is None:
            return np.sort(ranked[:most])
        onward = self._edges_onward(self.target)
        kept: set[int] = set()
        for edge in ranked.tolist():
            if len(kept) == most:
                break
            way = {edge}
            node = int(self.destination[edge])
            while node != self.target and node in onward:
                way.add(onward[node])
                node = int(self.destination[onward[node]])
            way -= kept
            if len(kept) + len(way) <= most:
                kept |= way
        return np.array(sorted(kept), dtype=np.int64)

    def _edges_onward(self, target: int) -> dict[int, int]:
        """For each node but the target the first edge of a shortest way to it."""
        size = len(self.nodes)
        backward = csr_matrix((np.ones(len(self.edges)), (self.destination, self.source)), shape=(size, size))
        _, towards = breadth_first_order(backward, target, directed=True, return_predecessors=True)
        steps = np.flatnonzero(towards[self.source] == self.destination)
        return dict(zip(self.source[steps].tolist(), steps.tolist(), strict=True))


def strength_of(scores: Floats) -> Floats:
    """Scores between 0 and 1: 0 stays 0 and the highest becomes 1; what is negative or undefined counts as 0."""
    known = np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0).clip(min=0.0)
    return known / known.max() if known.size and known.max() > 0 else known


def left_out(whole: DrawnPart, shown: DrawnPart) -> str:
    """What a picture does not show, in words; empty if it shows all.

    >>> edges = np.arange(3)
    >>> graph = Graph(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    >>> whole = DrawnPart.of(graph, edges, edges < 0, target=2)
    >>> left_out(whole, whole.only(edges[1:])), left_out(whole, whole)
    ('1 lower-scored edge not shown', '')
    """
    hidden = len(whole.edges) - len(shown.edges)
    return f"{count(hidden, 'lower-scored edge')} not shown" if hidden else ""
