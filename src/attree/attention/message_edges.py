"""Which edge of the data each message comes from, for layers that run on other edges than the data's in their order.

A model may select edges by their type, sort, reverse or join them, or make edges of its own (nearest neighbours, a
virtual node). Each message then comes from one edge of the data, its *owner*, or from none. `MessageEdges` has the
owners of all steps of one pass; `attree.subject.traced_edges` finds them by experiments.

A walk needs the ends of messages, which may differ from those of their owners. `MessageGraph` lists them: the edges of
the data and the self-loops first, with their own ids, then all other messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.tensors.arrays import find

NO_EDGE = -1
"""The owner of a message that comes from no edge of the data."""


@dataclass(frozen=True)
class StepEdges:
    """The edges of one step of a layer.

    Attributes:
        edge_index: The edges along which it passes messages, [2, M].
        owner: The position of each message's owner in the given edges, [M]; `NO_EDGE` for none, and for self-loops,
            which belong to the self-loop of their node.
    """

    edge_index: Tensor
    owner: Tensor

    @cached_property
    def _occurrences(self) -> tuple[Tensor, Tensor, int, int]:
        """Sorted keys of all messages, their owners, and the sizes that make the keys."""
        num_nodes = int(self.edge_index.max()) + 1 if self.edge_index.numel() else 1
        ends = self.edge_index[0] * num_nodes + self.edge_index[1]
        rank = occurrence(ends)
        most = int(rank.max()) + 1 if rank.numel() else 1
        keys, order = (ends * most + rank).sort()
        return keys, self.owner[order], num_nodes, most

    def owners(self, ends: Tensor, rank: Tensor) -> Tensor:
        """Return the owners of messages with some ends, [2, K]; `rank` counts earlier messages of the same ends."""
        keys, owner, num_nodes, most = self._occurrences
        fits = (ends < num_nodes).all(dim=0) & (rank < most)
        place, is_found = find(keys, torch.where(fits, (ends[0] * num_nodes + ends[1]) * most + rank, -1))
        return torch.where(is_found & fits, owner[place], NO_EDGE) if owner.numel() else torch.full_like(rank, NO_EDGE)


def occurrence(keys: Tensor) -> Tensor:
    """Return, for each key, how many equal keys come before it.

    >>> occurrence(torch.tensor([5, 2, 5, 5, 2])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = keys.argsort(stable=True)
    _, counts = keys[order].unique_consecutive(return_counts=True)
    begin = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.empty_like(keys)
    rank[order] = torch.arange(keys.numel(), device=keys.device) - begin
    return rank


@dataclass(frozen=True)
class MessageEdges:
    """The owners of the messages of one pass on a whole graph.

    Attributes:
        steps: The edges of each step whose edges are not the data's in their order, by the number of the step.
    """

    steps: Mapping[int, StepEdges]

    def owners(self, step: int, edge_index: Tensor) -> Tensor | None:
        """Return the owner of each message of a step, as a position in the given edges; None for any other step."""
        edges = self.steps.get(step)
        if edges is None:
            return None
        if edges.edge_index.shape == edge_index.shape and torch.equal(edges.edge_index, edge_index):
            return edges.owner
        largest = int(edge_index.max()) + 1 if edge_index.numel() else 1
        return edges.owners(edge_index, occurrence(edge_index[0] * largest + edge_index[1]))

    def of_part(self, node: Tensor, edge: Tensor, node_copy: Tensor | None, edge_copy: Tensor) -> PartMessageEdges:
        """Return the owners of messages on a part of the graph.

        Args:
            node: The id of each node of the part in the whole graph.
            edge: The position of each edge of the part in the given edges of the whole graph.
            node_copy: The copy that each node belongs to; None for one.
            edge_copy: The copy that each edge belongs to.
        """
        copies = torch.zeros_like(node) if node_copy is None else node_copy
        return PartMessageEdges(self, node, edge, copies, edge_copy)


@dataclass(frozen=True)
class PartMessageEdges:
    """The owners of the messages of a pass on a part of a graph, which may have copies of nodes and edges.

    A message has the owner that the whole graph has for its ends, if the copy has this edge.
    """

    whole: MessageEdges
    node: Tensor
    edge: Tensor
    node_copy: Tensor
    edge_copy: Tensor

    def owners(self, step: int, edge_index: Tensor) -> Tensor | None:
        """Return the owner of each message of a step, as a position in the edges of the part; None if it has none."""
        edges = self.whole.steps.get(step)
        if edges is None:
            return None
        count = self.node.numel()
        inside = (edge_index < count).all(dim=0)
        ends = edge_index.where(inside, 0)
        copies = self.node_copy[ends[1]] if count else ends[1]
        largest = count + 1
        rank = occurrence(ends[0] * largest + ends[1])
        owner = edges.owners(self.node[ends] if count else ends, rank)
        owner = torch.where(inside, owner, NO_EDGE)
        num_edges = int(self.edge.max()) + 1 if self.edge.numel() else 1
        keys, order = (self.edge_copy * num_edges + self.edge).sort()
        place, is_found = find(keys, copies * num_edges + owner)
        is_found &= (owner >= 0) & (owner < num_edges)
        return torch.where(is_found, order[place], NO_EDGE) if order.numel() else torch.full_like(owner, NO_EDGE)

    def of_part(self, node: Tensor, edge: Tensor, node_copy: Tensor | None, edge_copy: Tensor) -> PartMessageEdges:
        """Return the owners of messages on a part of this part."""
        copies = self.node_copy[node] if node_copy is None else node_copy
        of_edges = self.edge_copy[edge] if node_copy is None else edge_copy
        return PartMessageEdges(self.whole, self.node[node], self.edge[edge], copies, of_edges)


class MessageGraph(Graph):
    """All messages of a network: the edges of the data and the self-loops, then the other messages of any step.

    Args:
        data: The graph of the data.
        messages: The owners of messages.

    Attributes:
        data: The graph of the data.
        num_data_edges: Its number of edges.
        owner: For each message, the edge that it comes from: an id in `data.edge_index`, [num_edges], or `NO_EDGE`.
    """

    def __init__(self, data: Graph, messages: MessageEdges) -> None:
        super().__init__(data.original_edge_index, data.num_nodes)
        columns = [data.edge_index.new_zeros(3, 0)]
        for step in messages.steps.values():
            ids = data.owner_ids(step.edge_index, step.owner)
            columns.append(torch.cat([step.edge_index, ids.unsqueeze(0)])[:, ~_is_own(data, step.edge_index, ids)])
        self._others = torch.cat(columns, dim=1).unique(dim=1)
        self.edge_index = torch.cat([data.edge_index, self._others[:2]], dim=1)
        self.owner = torch.cat([torch.arange(data.num_edges, device=data.device), self._others[2]])
        self.data = data
        self.num_data_edges = data.num_edges
        self.num_nodes = max(data.num_nodes, int(self._others[:2].max()) + 1 if self._others.numel() else 0)

    @property
    def has_others(self) -> bool:
        """Whether any message differs from its owner in its ends, or has none."""
        return self._others.numel() > 0

    def ids(self, edge_index: Tensor, owner: Tensor) -> Tensor:
        """Return the ids of the messages of a traced step, given their owners as ids in the graph of the data."""
        is_own = (owner >= 0) & (self.edge_index[:, owner.clamp(min=0)] == edge_index).all(dim=0)
        if bool(is_own.all()):
            return owner
        columns = torch.cat([self._others, torch.cat([edge_index, owner.unsqueeze(0)])[:, ~is_own]], dim=1)
        _, number = columns.unique(dim=1, return_inverse=True)  # the others come first, so numbers are theirs
        ids = owner.clone()
        ids[~is_own] = self.num_data_edges + number[self._others.shape[1] :]
        return ids


def _is_own(data: Graph, edge_index: Tensor, ids: Tensor) -> Tensor:
    """Whether each message has the ends of its owner."""
    return (ids >= 0) & (data.edge_index[:, ids.clamp(min=0)] == edge_index).all(dim=0)
