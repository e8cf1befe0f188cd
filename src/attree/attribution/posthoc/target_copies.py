"""Copies of what targets depend on, side by side: one pass of the model explains them all.

Every target has edges of its own in such a batch, so that one backward pass gives the gradients of all targets, each
with respect to its own mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.neighbourhoods import neighbourhoods
from attree.attribution.posthoc.frozen_model import differentiable
from attree.subject import ModelCall, Part, Subject
from attree.subject.part_check import NotLocalError, target_outputs


@dataclass(frozen=True)
class TargetCopies:
    """A part of a subject's graph with a copy for each target, and the entries that masks of its edges have.

    A mask has one entry for each edge, then one for the self-loop of each node if `masks_loops`. In a heterogeneous
    graph, edges and nodes stand type by type, as the model gets them.

    Attributes:
        subject: The subject.
        targets: The target of each copy, [B].
        part: The copies, one after the other; the whole graph if its nodes are in no copies, for one target.
        masks_loops: Whether masks also have an entry for the self-loop of each node of the part.
    """

    subject: Subject
    targets: Tensor
    part: Part
    masks_loops: bool = False

    @classmethod
    def whole(cls, subject: Subject, target: Tensor) -> TargetCopies:
        """The whole graph, for one target: exact for every model."""
        edges = differentiable(subject.graph.original_edge_index)
        edge = torch.arange(edges.shape[1], device=edges.device)
        return cls(subject, target, Part(torch.arange(subject.graph.num_nodes, device=edges.device), edges, edge))

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole graph."""
        return self.part.graph is None

    @cached_property
    def placed(self) -> Part:
        """The part in the order in which the model gets it: type by type, if there are types."""
        types = self.subject.graph.types
        if types is None or self.is_whole:
            return self.part
        return self.part.take(torch.arange(self.part.count, device=self.targets.device), types)

    @property
    def edge_index(self) -> Tensor:
        """The edges of the part."""
        return self.placed.edge_index

    @property
    def num_edges(self) -> int:
        """Number of edges of the part."""
        return self.part.edge_index.shape[1]

    @cached_property
    def node_owner(self) -> Tensor:
        """The copy of each node."""
        part = self.placed
        return torch.zeros_like(part.node) if part.graph is None else part.graph

    @cached_property
    def proper(self) -> Tensor:
        """Which edges are not self-loops."""
        return self.edge_index[0] != self.edge_index[1]

    @cached_property
    def entry_owner(self) -> Tensor:
        """The copy of each entry of a mask."""
        of_edges = self.node_owner[self.edge_index[1]]
        return torch.cat([of_edges, self.node_owner]) if self.masks_loops else of_edges

    @cached_property
    def entry_edge(self) -> Tensor:
        """The edge of the looped graph that each entry of a mask belongs to."""
        graph, part = self.subject.graph, self.placed
        assert part.edge is not None
        edges = graph.position[part.edge]
        return torch.cat([edges, graph.num_proper_edges + part.node]) if self.masks_loops else edges

    @cached_property
    def entry_group(self) -> Tensor:
        """The copy of each entry of a mask and, in a heterogeneous graph, its edge type, as one number."""
        types = self.subject.graph.types
        if types is None:
            return self.entry_owner
        # Self-loops that layers add are of no type: they come after the last.
        return self.entry_owner * (len(types.edge_types) + 1) + types.type_of_edges(self.entry_edge)

    def rows(self, output: Tensor) -> Tensor:
        """The outputs of the targets, a row each, in what the model returned.

        Raises:
            NotLocalError: If it returned other rows than those of the part.
        """
        if not self.is_whole:
            return target_outputs(self.subject.call, self.placed, output)
        if not isinstance(output, Tensor) or output.shape[0] != self.subject.output.shape[0]:
            raise NotLocalError(self.subject.call.name, "its output has other rows when messages are masked")
        return output[self.subject.rows(self.targets)]

    @cached_property
    def call(self) -> ModelCall:
        """The model's call on the part."""
        given = self.subject.call.changed(lambda _, value: differentiable(value))
        return given if self.is_whole else given.on(self.placed)

    @cached_property
    def graph(self) -> Graph:
        """The graph that the model gets."""
        return self.call.graph

    def tiled(self, times: int) -> TargetCopies:
        """The same copies several times, one after the other."""
        if times == 1:
            return self
        part = self.part.take(torch.arange(self.part.count, device=self.targets.device).repeat(times))
        return replace(self, targets=self.targets.repeat(times), part=part)


def target_copies(
    subject: Subject, targets: Tensor, bytes_per_edge: float, memory: float, *, induced: bool = False
) -> Iterator[TargetCopies]:
    """Copies of what consecutive targets depend on, as many as fit into memory; see `neighbourhoods`."""
    for begin, end, part in neighbourhoods(subject, targets, bytes_per_edge, memory, induced=induced):
        yield TargetCopies(subject, targets[begin:end], part)
