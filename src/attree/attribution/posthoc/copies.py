"""Copies of what targets depend on, side by side in one batch: one pass of the model explains them all.

What an L-layer network computes for a node depends on the edges that enter the nodes fewer than L hops away. Copies of
these parts of the graph, one for each target, make a block-diagonal batch in which every target has edges of its own,
so that one backward pass gives the gradients of all targets, each with respect to its own mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attree.attribution.flows import Frontier, stream_frontiers
from attree.attribution.posthoc.frozen_model import plain
from attree.subject import ModelCall, Part, Subject
from attree.tensors.memory import chunk_bounds
from attree.tensors.precision import exact_dtype
from attree.tensors.ragged import Rows, expand, find, group


@dataclass(frozen=True)
class Copies:
    """Copies of parts of a subject's graph.

    Attributes:
        subject: The subject.
        targets: The target of each copy, [B].
        node: Node id behind each node of the batch, copy by copy.
        copy: The copy that each node belongs to, ascending.
        edge: Position in the given `edge_index` behind each edge of the batch.
        edge_copy: The copy that each edge belongs to.
        edge_index: The batch's edges.
        masks_loops: Whether masks also have an entry for the self-loop of each node of the batch.
        decoy: Whether one more copy follows, without features: a model that mixes copies shows it.
        is_whole: Whether this is the whole graph, as it was given.
    """

    subject: Subject
    targets: Tensor
    node: Tensor
    copy: Tensor
    edge: Tensor
    edge_copy: Tensor
    edge_index: Tensor
    masks_loops: bool = False
    decoy: bool = False
    is_whole: bool = False

    @classmethod
    def entering(
        cls,
        subject: Subject,
        targets: Tensor,
        owner: Tensor,
        node: Tensor,
        rows: Rows,
        *,
        decoy: bool = False,
        induced: bool = False,
    ) -> Copies:
        """Parts made of the edges that enter given nodes.

        Args:
            subject: The subject.
            targets: The target of each part.
            owner: The part that each given node belongs to, ascending.
            node: The given nodes.
            rows: The given edges grouped by destination.
            decoy: Add a copy without features of the smallest part.
            induced: Leave out edges that do not also start at a given node.
        """
        graph = subject.graph
        if decoy:
            size = torch.zeros_like(targets).index_add_(0, owner, rows.sizes[node] + 1)
            again = owner == int(size.argmin())
            owner = torch.cat([owner, torch.full_like(owner[again], targets.numel())])
            node = torch.cat([node, node[again]])
        row, place = expand(rows.ptr, node)
        part, edge = owner[row], rows.items[place]
        ends = graph.original_edge_index[:, edge] + part * graph.num_nodes
        given = owner * graph.num_nodes + node
        if induced:
            inside = find(given.sort().values, ends[0])[1]
            part, edge, ends = part[inside], edge[inside], ends[:, inside]
        known = torch.cat([given, ends[0]]).unique()
        edge_index = torch.searchsorted(known, ends)
        node, copy = known % max(graph.num_nodes, 1), known // max(graph.num_nodes, 1)
        return cls(subject, targets, node, copy, edge, part, edge_index, decoy=decoy)

    @classmethod
    def whole(cls, subject: Subject, target: Tensor) -> Copies:
        """The whole graph, for one target: exact for every model."""
        edges = plain(subject.graph.original_edge_index)
        edge = torch.arange(edges.shape[1], device=edges.device)
        node = torch.arange(subject.graph.num_nodes, device=edges.device)
        return cls(subject, target, node, torch.zeros_like(node), edge, torch.zeros_like(edge), edges, is_whole=True)

    @property
    def count(self) -> int:
        """Number of copies, the decoy included."""
        return self.targets.numel() + int(self.decoy)

    @cached_property
    def proper(self) -> Tensor:
        """Which edges are no self-loops."""
        return self.edge_index[0] != self.edge_index[1]

    @cached_property
    def entry_owner(self) -> Tensor:
        """The copy of each entry of a mask: one entry an edge, then one a node if self-loops are masked."""
        return torch.cat([self.edge_copy, self.copy]) if self.masks_loops else self.edge_copy

    @cached_property
    def entry_edge(self) -> Tensor:
        """The edge of the looped graph that each entry of a mask is of."""
        graph = self.subject.graph
        edges = graph.position[self.edge]
        return torch.cat([edges, graph.num_proper_edges + self.node]) if self.masks_loops else edges

    @cached_property
    def rows(self) -> Tensor:
        """Which row of the model's output belongs to each target."""
        if self.is_whole:
            return self.subject.rows(self.targets)
        if self.subject.level != "node":
            return torch.arange(self.targets.numel(), device=self.node.device)
        return self._place(self.targets)

    @property
    def num_rows(self) -> int:
        """How many rows the model returns on this batch."""
        if self.is_whole:
            return self.subject.output.shape[0]
        return {"node": self.node.numel(), "edge": self.targets.numel(), "graph": self.count}[self.subject.level]

    def _place(self, nodes: Tensor) -> Tensor:
        """Where in the batch one given node of each target's copy is."""
        num_nodes = self.subject.graph.num_nodes
        asked = torch.arange(nodes.numel(), device=nodes.device) * num_nodes + nodes
        return find(self.copy * num_nodes + self.node, asked)[0]

    @cached_property
    def call(self) -> ModelCall:
        """The model's call on this batch; each copy is a graph of its own."""
        given = self.subject.call.changed(lambda _, value: plain(value))
        if self.is_whole:
            return given
        own = given.batch
        graph_of = None if own is None or not self.node.numel() else own[self.node[self._first]]
        ends = self.subject.outputs.ends
        queries = None if ends is None else torch.stack([self._place(end[self.targets]) for end in ends])
        call = given.on(Part(self.node, self.edge_index, self.edge, self.copy, graph_of, self.count, queries=queries))
        if not self.decoy or not call.has_features:
            return call
        x = call.x.clone()
        x[self.copy == self.targets.numel()] = 0
        return call.with_features(x)

    @cached_property
    def _first(self) -> Tensor:
        """The first node of each copy."""
        return torch.searchsorted(self.copy, torch.arange(self.count, device=self.copy.device))

    def without_decoy(self) -> Copies:
        """The batch without its decoy, which is its end."""
        if not self.decoy:
            return self
        nodes, edges = self.copy < self.targets.numel(), self.edge_copy < self.targets.numel()
        return replace(
            self,
            node=self.node[nodes],
            copy=self.copy[nodes],
            edge=self.edge[edges],
            edge_copy=self.edge_copy[edges],
            edge_index=self.edge_index[:, edges],
            decoy=False,
        )

    def tiled(self, times: int) -> Copies:
        """The same batch several times, one after the other; without decoy."""
        if times == 1:
            return self
        assert not self.decoy
        assert not self.is_whole
        device = self.node.device
        step = torch.arange(times, device=device)
        copy = (self.copy + (step * self.count).unsqueeze(1)).view(-1)
        edge_copy = (self.edge_copy + (step * self.count).unsqueeze(1)).view(-1)
        edge_index = (self.edge_index.unsqueeze(1) + (step * self.node.numel()).view(1, -1, 1)).reshape(2, -1)
        return Copies(
            self.subject,
            self.targets.repeat(times),
            self.node.repeat(times),
            copy,
            self.edge.repeat(times),
            edge_copy,
            edge_index,
            self.masks_loops,
        )


def neighbourhood_copies(subject: Subject, targets: Tensor, bytes_per_edge: float, memory: float) -> Iterator[Copies]:
    """Copies of the neighbourhoods of consecutive targets, or of their graphs, that take at most `memory` bytes.

    Args:
        subject: The subject.
        targets: Ids of nodes, of pairs of nodes, or of graphs.
        bytes_per_edge: What one edge takes in a pass of the model.
        memory: Bytes that a batch may take; one copy is never cut.
    """
    rows = group(subject.graph.original_edge_index[1], subject.graph.num_nodes)
    for part, owner, node in _inner_nodes(subject, targets, memory):
        edges = torch.zeros(part.numel(), dtype=exact_dtype(part.device), device=part.device)
        edges.index_add_(0, owner, (rows.sizes[node] + 1).to(edges.dtype))
        for begin, end in chunk_bounds(edges * bytes_per_edge, memory):
            first, last = torch.searchsorted(owner, owner.new_tensor([begin, end])).tolist()
            inner = owner[first:last] - begin, node[first:last]
            yield Copies.entering(subject, part[begin:end], *inner, rows, decoy=True)


def _inner_nodes(subject: Subject, targets: Tensor, memory: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For consecutive targets, the nodes whose entering edges they depend on: targets, owners, nodes."""
    if subject.level == "graph":
        assert subject.batch is not None
        nodes = group(subject.batch, subject.num_targets)
        owner, place = expand(nodes.ptr, targets)
        yield targets, owner, nodes.items[place]
        return
    for frontier in _frontiers(subject, targets, memory):
        yield frontier.targets, frontier.owner, frontier.node


def _frontiers(subject: Subject, targets: Tensor, memory: float) -> Iterator[Frontier]:
    graph = subject.graph
    ones = [torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)] * subject.num_layers
    return stream_frontiers(graph, subject.roots(targets, torch.float32), ones, memory=max(int(memory), 1))
