"""Random graphs with random attention, for tests that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from attree.attention import Attention, Graph
from reference import Edge, looped_edges


@dataclass(frozen=True)
class Case:
    """A graph and attention on it, for attree and for the reference."""

    edges: list[Edge]
    num_nodes: int
    attention: Attention

    @property
    def looped(self) -> list[Edge]:
        return looped_edges(self.edges, self.num_nodes)

    @property
    def alpha(self) -> list[list[float]]:
        return [weight.mean(dim=1).tolist() for weight in self.attention.weights]

    @property
    def used(self) -> list[list[bool]]:
        return [
            [True] * len(self.looped) if present is None else present.tolist() for present in self.attention.present
        ]


@st.composite
def cases(draw: st.DrawFn, partial: bool = False) -> Case:
    """Directed and undirected graphs with self-loops, duplicates and isolated nodes; 1-4 layers, 1-4 heads.

    Args:
        draw: Given by hypothesis.
        partial: Let layers leave out self-loops, as convolutions that add none do.
    """
    num_nodes = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=9))
    if draw(st.booleans()):
        edges = edges + [(j, i) for i, j in edges]
    num_layers, heads = draw(st.integers(1, 4 if len(edges) < 12 else 3)), draw(st.integers(1, 4))
    graph = Graph(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous(), num_nodes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    weights, present = [], []
    for _ in range(num_layers):
        weight = torch.rand(graph.num_edges, heads, generator=generator, dtype=torch.float64)
        used = torch.ones(graph.num_edges, dtype=torch.bool)
        if partial and draw(st.booleans()):
            loops = draw(st.lists(st.booleans(), min_size=num_nodes, max_size=num_nodes))
            used[graph.num_proper_edges :] = torch.tensor(loops)
            weight[~used] = 0.0
        weights.append(weight)
        present.append(None if bool(used.all()) else used)
    return Case(edges, num_nodes, Attention(graph, tuple(weights), tuple(present)))
