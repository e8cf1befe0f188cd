"""The few rows that a model is looked at with before it is run on rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph
from attree.ragged import expand, group
from attree.subject import ModelInputs
from attree.subject.arguments import Kind

NODES = 24
"""Nodes that rows are compared at, if the model does not see several graphs."""

GRAPHS = 3
"""Graphs that rows are compared at otherwise, the smallest ones."""


@dataclass(frozen=True)
class Sample:
    """Rows to compare; the last one can be made a decoy.

    Attributes:
        node: The node of each row.
        copy: The graph of each row, numbered from 0; None if no argument says which graph nodes are of.
        graph: Which graph each of them is a copy of; the last has the decoy in it.
        whole: Whether these are all nodes as they are, because the model sees them as one graph.
    """

    node: Tensor
    copy: Tensor | None = None
    graph: Tensor | None = None
    whole: bool = False

    @classmethod
    def of(cls, inputs: ModelInputs, graph: LoopedGraph) -> Sample:
        """A few nodes, or all nodes of a few graphs if an argument could say which graph nodes are of."""
        batch = _graph_numbers(inputs)
        if batch is None:
            node = spread_nodes(graph)
            return cls(torch.cat([node, node[:1]]))
        rows = group(batch, int(batch.max()) + 1)
        filled = rows.sizes.nonzero().view(-1)
        graphs = filled[rows.sizes[filled].argsort(stable=True)[:GRAPHS]]
        graphs = torch.cat([graphs, graphs[:1]])
        copy, place = expand(rows.ptr, graphs)
        return cls(rows.items[place], copy, graphs)

    @classmethod
    def of_one_graph(cls, graph: LoopedGraph) -> Sample:
        """All nodes."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        return cls(node, torch.zeros_like(node), node[:1], whole=True)


def spread_nodes(graph: LoopedGraph) -> Tensor:
    """A few nodes from all over the graph."""
    count = min(NODES, graph.num_nodes)
    return torch.linspace(0, graph.num_nodes - 1, count, device=graph.device).round().long()


def _graph_numbers(inputs: ModelInputs) -> Tensor | None:
    """The argument that holds the graph of each node, or else could hold it."""
    for kind in (Kind.BATCH, Kind.NODE):
        for (_, value), own in zip(inputs.named(), inputs.kinds(), strict=True):
            if own is kind and value.dim() == 1 and value.dtype == torch.int64 and bool((value.diff() >= 0).all()):
                return value if int(value[0]) >= 0 else None
    return None
