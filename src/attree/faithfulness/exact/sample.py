"""The rows that a model is checked with before it is run on rows.

Rows stand in another order than the nodes of the graph. None is where its node was first, one node stands there twice,
and decoys filled with noise stand in front and behind: code that depends on a row's position, or on other rows, shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph, Types
from attree.faithfulness.exact.stages import Reads
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

MANY_OF_TYPE = 2**11
"""The same for each type of nodes: their features are read whole, and types may have many more of them than others."""


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
        own: Where the outputs are those of nodes of one type: which rows these nodes have; None if all.
        first: The graph's id of the first of these nodes.
    """

    node: Tensor
    decoy: Tensor
    graph: Tensor | None = None
    graph_of: Tensor | None = None
    whole: bool = False
    link: Tensor | None = None
    queries: Tensor | None = None
    own: Tensor | None = None
    first: int = 0

    @classmethod
    def of_types(cls, types: Types, node_type: str | None, count: int, device: torch.device, seed: int = 0) -> Sample:
        """Some nodes of each type, in a random order within it.

        Args:
            types: The types.
            node_type: The type whose outputs are compared; None if outputs are not those of nodes.
            count: How many nodes of each type there are at the most.
            device: Where they are.
            seed: The seed of the order.
        """
        nodes, decoys = [], []
        for kind in types.node_types:
            own = types.nodes(kind)
            if len(own):
                nodes.append(_shuffled(len(own), count, seed) + own.start)
                decoys.append(torch.zeros_like(nodes[-1], dtype=torch.bool))
                decoys[-1][0] = decoys[-1][-1] = True
        node, decoy = torch.cat(nodes).to(device), torch.cat(decoys).to(device)
        if node_type is None:
            return cls(node, decoy)
        explained = types.nodes(node_type)
        is_own = ((node >= explained.start) & (node < explained.stop)).nonzero().view(-1)
        return cls(node, decoy, own=is_own, first=explained.start)

    @classmethod
    def of_nodes(cls, graph: Graph, count: int, seed: int = 0) -> Sample:
        """Some nodes from all over the graph, in a random order."""
        node = _shuffled(graph.num_nodes, count, seed).to(graph.device)
        decoy = torch.zeros(node.numel(), dtype=torch.bool, device=graph.device)
        decoy[0] = decoy[-1] = True
        return cls(node, decoy)

    @classmethod
    def of_links(cls, ends: Tensor, count: int, seed: int = 0) -> Sample:
        """Some links in a random order; the two rows of each link stand at random places."""
        link = _shuffled(ends.shape[1], count, seed).to(ends.device)
        order = torch.randperm(2 * link.numel(), generator=torch.Generator().manual_seed(seed)).to(ends.device)
        decoy = torch.zeros(2, link.numel(), dtype=torch.bool, device=ends.device)
        decoy[:, 0] = decoy[:, -1] = True
        queries = order.argsort().view(2, -1)
        return cls(ends[:, link].reshape(-1)[order], decoy.view(-1)[order], link=link, queries=queries)

    def beside(self, others: Sample) -> Sample:
        """These rows, followed by others."""
        node, decoy = torch.cat([self.node, others.node]), torch.cat([self.decoy, others.decoy])
        return replace(self, node=node, decoy=decoy)

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
        """A few rows to check: of nodes, links or graphs, as the outputs are.

        Args:
            outputs: What they are.
            graph: The graph.
            told_apart: Whether an argument tells graphs apart.
        """
        if graph.types is not None:
            return cls._typed(outputs, graph, graph.types, LINKS, NODES, 0)
        if outputs.ends is not None:
            return cls.of_links(outputs.ends, LINKS)
        if outputs.batch is None:
            return cls.of_nodes(graph, NODES)
        return cls.of_graphs(outputs.batch) if told_apart else cls.of_one_graph(graph)

    @classmethod
    def many(cls, outputs: OutputLevel, graph: Graph) -> Sample:
        """Many rows where the outputs are those of nodes or links."""
        if graph.types is not None:
            return cls._typed(outputs, graph, graph.types, MANY, MANY_OF_TYPE, 1)
        return cls.of_nodes(graph, MANY, 1) if outputs.ends is None else cls.of_links(outputs.ends, MANY, 1)

    @classmethod
    def _typed(cls, outputs: OutputLevel, graph: Graph, types: Types, links: int, nodes: int, seed: int) -> Sample:
        """Rows of nodes of every type, behind those of links where the outputs are those of links."""
        own = cls.of_types(types, outputs.node_type, nodes, graph.device, seed)
        return own if outputs.ends is None else cls.of_links(outputs.ends, links, seed).beside(own)

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
        if self.own is not None:
            return self.node[self.own] - self.first
        return next(ids for ids in (self.link, self.graph_of, self.node) if ids is not None)

    @property
    def kept(self) -> Tensor:
        """Which outputs read no decoy."""
        if self.queries is not None:
            return ~self.decoy[self.queries].any(dim=0)
        if self.graph is None or self.graph_of is None:
            return ~self.decoy if self.own is None else ~self.decoy[self.own]
        return torch.ones_like(self.graph_of, dtype=torch.bool).index_fill(0, self.graph[self.decoy], False)

    def rows_of(self, nodes: range) -> Tensor:
        """Which of the rows are those of some nodes."""
        return ((self.node >= nodes.start) & (self.node < nodes.stop)).nonzero().view(-1)

    def part(self, graph: Graph) -> Part:
        """The rows as a part of the graph that a model is called on."""
        edge_index, types = graph.original_edge_index, graph.types
        if self.queries is not None and types is not None:
            number = torch.empty_like(self.node)
            for kind in types.node_types:
                rows = self.rows_of(types.nodes(kind))
                number[rows] = torch.arange(rows.numel(), device=rows.device)
            return Part(self.node, edge_index, queries=number[self.queries])
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
