"""The rows that a model is looked at with before it is run on rows.

Rows stand in another order than the nodes of the graph, none is where its node was first, one node stands there twice,
and decoys filled with noise stand in front and behind: code that depends on a row's position, or on other rows, shows.
The noise is louder than all rows, so that a maximum over rows shows too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.subject import Part
from attree.subject.level import OutputLevel
from attree.tensors.ragged import expand, group

NODES = 24
"""Nodes that rows are compared at with every recording, if the outputs are those of nodes."""

GRAPHS = 3
"""Graphs that rows are compared at otherwise, the smallest ones."""

LOUDNESS = 8.0
"""How much larger than the largest number of all rows the noise of decoys is."""

MANY_NODES = 2**15
"""Nodes that rows are compared at when a model is first seen, at the most."""


@dataclass(frozen=True)
class Sample:
    """Rows to compare.

    Attributes:
        node: The node of each row.
        decoy: Which rows are filled with noise, and not compared.
        graph: The graph of each row, numbered from 0; None if the outputs are not those of graphs.
        graph_of: The graph id behind each of them.
        whole: Whether these are all nodes in their order, because the model sees them as one graph.
    """

    node: Tensor
    decoy: Tensor
    graph: Tensor | None = None
    graph_of: Tensor | None = None
    whole: bool = False

    @classmethod
    def of_nodes(cls, graph: Graph, count: int, seed: int = 0) -> Sample:
        """Some nodes from all over the graph, in a random order."""
        count = min(count, graph.num_nodes)
        spread = torch.linspace(0, graph.num_nodes - 1, count).round().long()
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        node = spread[order].to(graph.device)
        if count > 1 and int(node[0]) == 0:
            node = node.roll(1)
        node = torch.cat([node[-1:], node, node[:1], node[:1]])
        decoy = torch.zeros(node.numel(), dtype=torch.bool, device=graph.device)
        decoy[0] = decoy[-1] = True
        return cls(node, decoy)

    @classmethod
    def of_graphs(cls, batch: Tensor) -> Sample:
        """All nodes of a few graphs, the last graph first."""
        rows = group(batch, int(batch.max()) + 1)
        filled = rows.sizes.nonzero().view(-1)
        graphs = filled[rows.sizes[filled].argsort(stable=True)[:GRAPHS]].flip(0)
        graphs = torch.cat([graphs[-1:], graphs, graphs[:1], graphs[:1]])
        copy, place = expand(rows.ptr, graphs)
        return cls(rows.items[place], (copy == 0) | (copy == graphs.numel() - 1), copy, graphs)

    @classmethod
    def of_one_graph(cls, graph: Graph) -> Sample:
        """All nodes in their order."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        return cls(node, torch.zeros_like(node, dtype=torch.bool), torch.zeros_like(node), node[:1], whole=True)

    @classmethod
    def of(cls, outputs: OutputLevel, graph: Graph, told_apart: bool, count: int = NODES) -> Sample:
        """Rows that fit what the outputs are those of.

        Args:
            outputs: What they are.
            graph: The graph.
            told_apart: Whether an argument tells graphs apart.
            count: How many nodes, where the outputs are those of nodes.
        """
        if outputs.batch is None:
            return cls.of_nodes(graph, count)
        return cls.of_graphs(outputs.batch) if told_apart else cls.of_one_graph(graph)

    def with_noise(self) -> list[Sample]:
        """All nodes with noise in one half of the rows, then in the other."""
        draw = torch.rand(self.node.numel(), generator=torch.Generator().manual_seed(0)).to(self.node.device) < 0.5
        return [replace(self, decoy=draw), replace(self, decoy=~draw)]

    @property
    def decoy_graphs(self) -> Tensor | None:
        """Which graphs have a decoy in them; None if the outputs are not those of graphs."""
        if self.graph is None or self.graph_of is None:
            return None
        return torch.zeros_like(self.graph_of, dtype=torch.bool).index_put((self.graph[self.decoy],), self.decoy.any())

    def part(self, edge_index: Tensor) -> Part:
        """The rows as a part of the graph that a model is called on."""
        if self.graph is None or self.graph_of is None or self.whole:
            return Part(self.node, edge_index)
        return Part(self.node, edge_index, None, self.graph, self.graph_of, self.graph_of.numel())


def spread_nodes(graph: Graph) -> Tensor:
    """A few nodes from all over the graph."""
    count = min(NODES, graph.num_nodes)
    return torch.linspace(0, graph.num_nodes - 1, count, device=graph.device).round().long()


def loud_noise(like: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Noise for decoys among rows.

    Args:
        like: Rows of the shape that is asked for.
        rows: All rows; the noise is louder than they are.
        seed: The seed of the noise.
    """
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)
    largest = rows.nan_to_num(0.0, 0.0, 0.0).abs().max() if rows.numel() else rows.new_ones(())
    return noise * LOUDNESS * largest.clamp(min=1.0)
