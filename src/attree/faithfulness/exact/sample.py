"""The rows that a model is checked with before it is run on rows.

Rows stand in another order than the nodes of the graph. None is where its node was first, one node stands there twice,
and decoys filled with noise stand in front and behind: code that depends on a row's position, or on other rows, shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.wiring import Reads
from attree.subject import Part
from attree.subject.level import OutputLevel
from attree.tensors.ragged import expand, group

NODES = 24
"""Nodes that rows are compared at with every recording, if the outputs are those of nodes."""

LINKS = 16
"""Links that rows are compared at, if the outputs are those of links."""

GRAPHS = 3
"""Graphs that rows are compared at, the smallest ones, if the outputs are those of graphs."""

MANY = 2**15
"""Nodes or links that rows are compared at when a model is first seen, at the most."""


@dataclass(frozen=True)
class Sample:
    """Rows to compare, in another order than that of the graph.

    Attributes:
        node: The node of each row.
        decoy: Which rows are filled with noise, and not compared.
        graph: The graph of each row, numbered from 0; None if the outputs are not those of graphs.
        graph_of: The graph id behind each of them.
        whole: Whether these are all nodes in their order, because the model sees them as one graph.
        link: The links to compare; None if the outputs are not those of links.
        queries: The two ends of each of them as rows, [2, links].
    """

    node: Tensor
    decoy: Tensor
    graph: Tensor | None = None
    graph_of: Tensor | None = None
    whole: bool = False
    link: Tensor | None = None
    queries: Tensor | None = None

    @classmethod
    def of_nodes(cls, graph: Graph, count: int, seed: int = 0) -> Sample:
        """Some nodes from all over the graph, in a random order."""
        node = _shuffled(graph.num_nodes, count, seed).to(graph.device)
        decoy = torch.zeros(node.numel(), dtype=torch.bool, device=graph.device)
        decoy[0] = decoy[-1] = True
        return cls(node, decoy)

    @classmethod
    def of_links(cls, ends: Tensor, count: int, seed: int = 0) -> Sample:
        """Some links in a random order; each has two rows of its own, which stand anywhere."""
        link = _shuffled(ends.shape[1], count, seed).to(ends.device)
        order = torch.randperm(2 * link.numel(), generator=torch.Generator().manual_seed(seed)).to(ends.device)
        decoy = torch.zeros(2, link.numel(), dtype=torch.bool, device=ends.device)
        decoy[:, 0] = decoy[:, -1] = True
        queries = order.argsort().view(2, -1)
        return cls(ends[:, link].reshape(-1)[order], decoy.view(-1)[order], link=link, queries=queries)

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
    def of(cls, outputs: OutputLevel, graph: Graph, told_apart: bool) -> Sample:
        """A few rows that fit what the outputs are those of.

        Args:
            outputs: What they are.
            graph: The graph.
            told_apart: Whether an argument tells graphs apart.
        """
        if outputs.ends is not None:
            return cls.of_links(outputs.ends, LINKS)
        if outputs.batch is None:
            return cls.of_nodes(graph, NODES)
        return cls.of_graphs(outputs.batch) if told_apart else cls.of_one_graph(graph)

    @classmethod
    def many(cls, outputs: OutputLevel, graph: Graph) -> Sample:
        """Many rows where the outputs are those of nodes or links."""
        return cls.of_nodes(graph, MANY, 1) if outputs.ends is None else cls.of_links(outputs.ends, MANY, 1)

    def with_noise(self) -> list[Sample]:
        """All nodes with noise in one half of the rows, then in the other."""
        draw = torch.rand(self.node.numel(), generator=torch.Generator().manual_seed(0)).to(self.node.device) < 0.5
        return [replace(self, decoy=draw), replace(self, decoy=~draw)]

    @property
    def reads(self) -> Reads | None:
        """What outputs read; None if single nodes."""
        if self.graph is None:
            return None if self.link is None else "links"
        return "one graph" if self.whole else "graphs"

    @property
    def outputs(self) -> Tensor:
        """The row of the recorded output that each output of the sample must equal."""
        return next(ids for ids in (self.link, self.graph_of, self.node) if ids is not None)

    @property
    def kept(self) -> Tensor:
        """Which outputs read no decoy."""
        if self.queries is not None:
            return ~self.decoy[self.queries].any(dim=0)
        if self.graph is None or self.graph_of is None:
            return ~self.decoy
        return torch.ones_like(self.graph_of, dtype=torch.bool).index_fill(0, self.graph[self.decoy], False)

    def part(self, edge_index: Tensor) -> Part:
        """The rows as a part of the graph that a model is called on."""
        if self.queries is not None:
            return Part(self.node, edge_index, queries=self.queries)
        if self.graph is None or self.graph_of is None or self.whole:
            return Part(self.node, edge_index)
        return Part(self.node, edge_index, None, self.graph, self.graph_of, self.graph_of.numel())


def _shuffled(total: int, count: int, seed: int) -> Tensor:
    """Some of `total` ids in a random order, 0 not in front; the last is in front again and the first at the end."""
    count = min(count, total)
    spread = torch.linspace(0, total - 1, count).round().long()
    ids = spread[torch.randperm(count, generator=torch.Generator().manual_seed(seed))]
    if count > 1 and int(ids[0]) == 0:
        ids = ids.roll(1)
    return torch.cat([ids[-1:], ids, ids[:1], ids[:1]])


def spread_nodes(graph: Graph) -> Tensor:
    """A few nodes from all over the graph."""
    count = min(NODES, graph.num_nodes)
    return torch.linspace(0, graph.num_nodes - 1, count, device=graph.device).round().long()
