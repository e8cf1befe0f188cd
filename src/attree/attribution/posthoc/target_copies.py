"""Copies of the targets' neighbourhoods, side by side, so that one pass of the model explains many targets.

Every target has its own edges in such a batch. So one backward pass gives the gradients of all targets, each with
respect to its own mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.posthoc.frozen_model import differentiable
from attree.attribution.subgraphs import neighbourhoods
from attree.subject import ModelCall, Part, Subject
from attree.subject.model_call import NotLocalError, target_outputs


@dataclass(frozen=True)
class TargetCopies:
    """A part of a subject's graph with one copy per target, and the entries of a mask of its edges.

    A mask has one entry per edge, then one per node for its self-loop if `masks_loops`. In a heterogeneous graph, edges
    and nodes are ordered by type, as in the model's arguments.

    Attributes:
        subject: The subject to explain.
        targets: The target of each copy, [B].
        part: The copies, one after the other; or the whole graph, for one target.
        masks_loops: Whether masks also have an entry for the self-loop of each node of the part.
    """

    subject: Subject
    targets: Tensor
    part: Part
    masks_loops: bool = False

    @classmethod
    def whole(cls, subject: Subject, target: Tensor) -> TargetCopies:
        """Return the whole graph, for one target; this is exact for every model."""
        edges = differentiable(subject.graph.original_edge_index)
        edge = torch.arange(edges.shape[1], device=edges.device)
        return cls(subject, target, Part(torch.arange(subject.graph.num_nodes, device=edges.device), edges, edge))

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole graph."""
        return self.part.graph is None

    @cached_property
    def placed(self) -> Part:
        """The part in the order of the model's arguments: by type, if there are several."""
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
        """Mask of the edges that are not self-loops."""
        return self.edge_index[0] != self.edge_index[1]

    @cached_property
    def entry_owner(self) -> Tensor:
        """The copy of each entry of a mask."""
        of_edges = self.node_owner[self.edge_index[1]]
        return torch.cat([of_edges, self.node_owner]) if self.masks_loops else of_edges

    @cached_property
    def entry_edge(self) -> Tensor:
        """Id in the graph with self-loops of each mask entry's edge."""
        graph, part = self.subject.graph, self.placed
        assert part.edge is not None
        edges = graph.position[part.edge]
        return torch.cat([edges, graph.num_proper_edges + part.node]) if self.masks_loops else edges

    @cached_property
    def entry_group(self) -> Tensor:
        """One number per entry of a mask for its copy and, in a heterogeneous graph, its edge type."""
        types = self.subject.graph.types
        if types is None:
            return self.entry_owner
        # Self-loops that layers add have no type; they are numbered after the last.
        return self.entry_owner * (len(types.edge_types) + 1) + types.type_of_edges(self.entry_edge)

    def rows(self, output: Tensor) -> Tensor:
        """Return the outputs of the targets, one row each, from the model's output.

        Raises:
            NotLocalError: If the output has other rows than the part.
        """
        if not self.is_whole:
            return target_outputs(self.subject.call, self.placed, output)
        if not isinstance(output, Tensor) or output.shape[0] != self.subject.output.shape[0]:
            raise NotLocalError(self.subject.call.name, "its output has other rows when messages are masked")
        return output[self.subject.rows(self.targets)]

    @cached_property
    def call(self) -> ModelCall:
        """The model's call on the part."""
        call = self.subject.call.changed(lambda _, value: differentiable(value))
        return call if self.is_whole else call.on(self.placed)

    @cached_property
    def graph(self) -> Graph:
        """The graph of that call."""
        return self.call.graph

    def entries_of_messages(self, step: int, edge_index: Tensor) -> Tensor | None:
        """Return the entry of a mask for each message of a step, -1 for none; None if the step was not traced."""
        messages = self.call.messages
        owner = None if messages is None else messages.owners(step, edge_index)
        if owner is None or not self.masks_loops:
            return owner
        is_loop = (edge_index[0] == edge_index[1]) & (edge_index[0] < self.placed.node.numel())
        return torch.where(is_loop, self.num_edges + edge_index[0], owner)

    def tiled(self, times: int) -> TargetCopies:
        """Return the same copies several times, one after the other."""
        if times == 1:
            return self
        part = self.part.take(torch.arange(self.part.count, device=self.targets.device).repeat(times))
        return replace(self, targets=self.targets.repeat(times), part=part)


def target_copies(
    subject: Subject, targets: Tensor, bytes_per_edge: float, memory: float, *, induced: bool = False
) -> Iterator[TargetCopies]:
    """Yield copies of the neighbourhoods of consecutive targets, as many as fit into memory; see `neighbourhoods`."""
    for begin, end, part in neighbourhoods(subject, targets, bytes_per_edge, memory, induced=induced):
        yield TargetCopies(subject, targets[begin:end], part)
