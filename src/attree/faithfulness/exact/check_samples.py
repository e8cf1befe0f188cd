"""Rows and pairs on which a model is checked before the exact engine uses it.

The rows are not in the graph's order, the first row is not the first node, and one node occurs twice. The first
and last rows are decoys, filled with noise. So the check detects code that depends on a row's position or on other
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph, Types
from attree.attribution.pairs import Pairs
from attree.attribution.subgraphs import subject_pairs
from attree.faithfulness.exact.stages import Reads
from attree.subject import Part, Subject
from attree.subject.target_roots import OutputLevel
from attree.tensors.arrays import expand, group, pointers

NODES = 24
"""Number of nodes to compare in every recording, for node outputs."""

LINKS = 16
"""Number of links to compare, for link outputs."""

GRAPHS = 3
"""Number of graphs to compare, the smallest ones, for graph outputs."""

MANY = 2**15
"""Maximum number of nodes or links to compare when a model is first seen."""

MANY_OF_TYPE = 2**11
"""The same for each node type, smaller because all features of these nodes are read."""


@dataclass(frozen=True)
class Sample:
    """Rows to compare, in another order than the graph's.

    Attributes:
        node: The node of each row.
        decoy: Mask of the rows that are filled with noise and not compared.
        graph: The graph of each row, numbered from 0; None unless outputs belong to graphs.
        graph_of: The graph id of each of these numbers.
        whole: Whether the rows are all nodes in order, because the model treats them as one graph.
        link: The links to compare; None unless outputs belong to links.
        queries: The two ends of each link as rows, [2, links].
        explained: Rows of the explained node type, if outputs belong to nodes of one type; None if all rows.
        first: The graph's id of the first node of that type.
    """

    node: Tensor
    decoy: Tensor
    graph: Tensor | None = None
    graph_of: Tensor | None = None
    whole: bool = False
    link: Tensor | None = None
    queries: Tensor | None = None
    explained: Tensor | None = None
    first: int = 0

    @classmethod
    def of_types(cls, types: Types, node_type: str | None, count: int, device: torch.device, seed: int = 0) -> Sample:
        """Return some nodes of each type, in random order within the type.

        Args:
            types: The types.
            node_type: The type whose outputs are compared; None if outputs do not belong to nodes.
            count: Maximum number of nodes of each type.
            device: The device.
            seed: Seed of the order.
        """
        nodes, decoys = [], []
        for kind in types.node_types:
            nodes_of_type = types.nodes(kind)
            if len(nodes_of_type):
                nodes.append(_shuffled(len(nodes_of_type), count, seed) + nodes_of_type.start)
                decoys.append(torch.zeros_like(nodes[-1], dtype=torch.bool))
                decoys[-1][0] = decoys[-1][-1] = True
        node, decoy = torch.cat(nodes).to(device), torch.cat(decoys).to(device)
        if node_type is None:
            return cls(node, decoy)
        nodes_of_type = types.nodes(node_type)
        explained = ((node >= nodes_of_type.start) & (node < nodes_of_type.stop)).nonzero().view(-1)
        return cls(node, decoy, explained=explained, first=nodes_of_type.start)

    @classmethod
    def of_nodes(cls, graph: Graph, count: int, seed: int = 0) -> Sample:
        """Return some nodes from all over the graph, in random order."""
        node = _shuffled(graph.num_nodes, count, seed).to(graph.device)
        decoy = torch.zeros(node.numel(), dtype=torch.bool, device=graph.device)
        decoy[0] = decoy[-1] = True
        return cls(node, decoy)

    @classmethod
    def of_links(cls, ends: Tensor, count: int, seed: int = 0) -> Sample:
        """Return some links in random order, with the two rows of each link at random positions."""
        link = _shuffled(ends.shape[1], count, seed).to(ends.device)
        order = torch.randperm(2 * link.numel(), generator=torch.Generator().manual_seed(seed)).to(ends.device)
        decoy = torch.zeros(2, link.numel(), dtype=torch.bool, device=ends.device)
        decoy[:, 0] = decoy[:, -1] = True
        queries = order.argsort().view(2, -1)
        return cls(ends[:, link].reshape(-1)[order], decoy.view(-1)[order], link=link, queries=queries)

    def beside(self, others: Sample) -> Sample:
        """Return these rows followed by others."""
        node, decoy = torch.cat([self.node, others.node]), torch.cat([self.decoy, others.decoy])
        return replace(self, node=node, decoy=decoy)

    @classmethod
    def of_graphs(cls, batch: Tensor) -> Sample:
        """Return all nodes of a few graphs, the last graph first."""
        rows = group(batch, int(batch.max()) + 1)
        filled = rows.sizes.nonzero().view(-1)
        graphs = filled[rows.sizes[filled].argsort(stable=True)[:GRAPHS]].flip(0)
        graphs = torch.cat([graphs[-1:], graphs, graphs[:1], graphs[:1]])
        copy, place = expand(rows.ptr, graphs)
        return cls(rows.items[place], (copy == 0) | (copy == graphs.numel() - 1), copy, graphs)

    @classmethod
    def of_one_graph(cls, graph: Graph) -> Sample:
        """Return all nodes in order."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        return cls(node, torch.zeros_like(node, dtype=torch.bool), torch.zeros_like(node), node[:1], whole=True)

    @classmethod
    def of(cls, outputs: OutputLevel, graph: Graph, separated: bool) -> Sample:
        """Return a few rows to compare, of nodes, links or graphs.

        Args:
            outputs: What the rows of the output belong to.
            graph: The graph.
            separated: Whether an argument holds the graph of each node.
        """
        if graph.types is not None:
            return cls._typed(outputs, graph, graph.types, LINKS, NODES, 0)
        if outputs.ends is not None:
            return cls.of_links(outputs.ends, LINKS)
        if outputs.batch is None:
            return cls.of_nodes(graph, NODES)
        return cls.of_graphs(outputs.batch) if separated else cls.of_one_graph(graph)

    @classmethod
    def many(cls, outputs: OutputLevel, graph: Graph) -> Sample:
        """Return many rows to compare, of nodes or links."""
        if graph.types is not None:
            return cls._typed(outputs, graph, graph.types, MANY, MANY_OF_TYPE, 1)
        return cls.of_nodes(graph, MANY, 1) if outputs.ends is None else cls.of_links(outputs.ends, MANY, 1)

    @classmethod
    def _typed(cls, outputs: OutputLevel, graph: Graph, types: Types, links: int, nodes: int, seed: int) -> Sample:
        """Return rows of all node types, after the rows of links if outputs belong to links."""
        of_types = cls.of_types(types, outputs.node_type, nodes, graph.device, seed)
        return of_types if outputs.ends is None else cls.of_links(outputs.ends, links, seed).beside(of_types)

    def with_noise(self) -> list[Sample]:
        """Return two samples: one with noise in a random half of the rows, one with noise in the other half."""
        draw = torch.rand(self.node.numel(), generator=torch.Generator().manual_seed(0)).to(self.node.device) < 0.5
        return [replace(self, decoy=draw), replace(self, decoy=~draw)]

    @property
    def reads(self) -> Reads | None:
        """Rows that one output depends on; None for a single node."""
        if self.graph is None:
            return None if self.link is None else "links"
        return "one graph" if self.whole else "graphs"

    @property
    def outputs(self) -> Tensor:
        """The row of the recorded output that each output of the sample must equal."""
        if self.explained is not None:
            return self.node[self.explained] - self.first
        return next(ids for ids in (self.link, self.graph_of, self.node) if ids is not None)

    @property
    def reads_no_decoy(self) -> Tensor:
        """Mask of the outputs that read no decoy."""
        if self.queries is not None:
            return ~self.decoy[self.queries].any(dim=0)
        if self.graph is None or self.graph_of is None:
            return ~self.decoy if self.explained is None else ~self.decoy[self.explained]
        return torch.ones_like(self.graph_of, dtype=torch.bool).index_fill(0, self.graph[self.decoy], False)

    def rows_of(self, nodes: range) -> Tensor:
        """Return the positions of the rows of some nodes."""
        return ((self.node >= nodes.start) & (self.node < nodes.stop)).nonzero().view(-1)

    def part(self, graph: Graph) -> Part:
        """Return the rows as a part of the graph, on which a model can be called."""
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
    """Return at most `count` evenly spaced ids below `total`, shuffled so that 0 is not first, with repeats.

    The last of them is repeated at the front, and the first one twice at the end. Callers use both ends as decoys.
    """
    count = min(count, total)
    spread = torch.linspace(0, total - 1, count).round().long()
    ids = spread[torch.randperm(count, generator=torch.Generator().manual_seed(seed))]
    if count > 1 and int(ids[0]) == 0:
        ids = ids.roll(1)
    return torch.cat([ids[-1:], ids, ids[:1], ids[:1]])


TARGETS = 3
"""Number of targets around which edges are deleted."""

LEAVING = 2
"""Number of edges that leave the nodes around a target, of which deletion is tried."""

CANDIDATES = 16
"""Number of targets among which those with edges around them are found."""


def tried_pairs(subject: Subject, targets: int = TARGETS) -> Pairs:
    """Return pairs with one edge of the data, of each relation, at each distance from a few targets.

    A layer reads an edge at its distance from the target, so a wrong deletion in any layer changes the output of one of
    these targets. Edges that leave the nodes around a target, but carry no flow to it, must not change its output; a
    layer that reads out-degrees (ChebConv) shows so.

    Args:
        subject: The subject.
        targets: Number of targets; around a single one, edges that leave are not tried.
    """
    targets_of_model = subject.targets("all")
    places = torch.arange(CANDIDATES, device=subject.device) * (targets_of_model.numel() - 1) // (CANDIDATES - 1)
    ids = targets_of_model[places.unique()].sort().values
    pairs = subject_pairs(subject, ids)
    roots = subject.roots(ids)
    graph, is_tried = subject.graph, torch.zeros(len(pairs), dtype=torch.bool, device=subject.device)
    is_given = torch.zeros(graph.num_edges, dtype=torch.bool, device=subject.device)
    is_given[graph.position] = True
    left = targets
    outside: dict[int, Tensor] = {}
    for position in range(ids.numel()):
        begin, end = int(pairs.ptr[position]), int(pairs.ptr[position + 1])
        edges = pairs.edges[begin:end]
        picked = _by_distance(subject, edges, is_given[edges], roots.node[roots.owner == position])
        is_tried[picked + begin] = True
        if picked.numel() and targets > 1:
            outside[position] = _leaving(graph, edges, is_given)
        left -= int(picked.numel() > 0)
        if not left:
            break
    tried = pairs.only(is_tried)
    owner = torch.cat([tried.owner, *(torch.full_like(edges, position) for position, edges in outside.items())])
    edges = torch.cat([tried.edges, *outside.values()])
    order = owner.argsort(stable=True)
    flow = torch.cat([tried.flow, tried.flow.new_zeros(edges.numel() - len(tried))])
    ptr = pointers(owner.bincount(minlength=ids.numel()))
    return replace(tried, ptr=ptr, edges=edges[order], flow=flow[order])


def _leaving(graph: Graph, tried_edges: Tensor, is_given: Tensor) -> Tensor:
    """Return a few edges of the data that start where tried edges end, and are not tried themselves."""
    starts = torch.isin(graph.source, graph.destination[tried_edges]) & is_given & (graph.source != graph.destination)
    starts[tried_edges] = False
    edges = starts.nonzero().view(-1)
    return edges[:: edges.numel() // LEAVING + 1]


def _by_distance(subject: Subject, edges: Tensor, is_given: Tensor, frontier: Tensor) -> Tensor:
    """Return the positions of one edge per distance from some nodes, and per relation."""
    graph, picked = subject.graph, []
    ends = graph.edge_index[:, edges]
    relation = torch.zeros_like(edges)
    if graph.types is not None:
        relation = graph.types.type_of_edges(edges.clamp(max=max(graph.num_proper_edges - 1, 0)))
    for distance in range(subject.num_layers):
        enters = torch.isin(ends[1], frontier)
        for kind in relation.unique():
            places = (enters & is_given & (relation == kind)).nonzero().view(-1)
            if places.numel():
                picked.append(places[(distance + 1) * places.numel() // (subject.num_layers + 1)])
        frontier = torch.cat([frontier, ends[0, enters]]).unique()
    return torch.stack(picked) if picked else edges[:0]
