"""The pairs that graph-level explanations are judged on."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.errors import expect
from attree.ragged import expand, group


def graph_pairs(graph: LoopedGraph, batch: Tensor) -> Pairs:
    """All edges, self-loops included, of every graph of a batch; the targets are the ids of graphs that have nodes.

    Every edge of a graph carries a flow to its readout.

    Args:
        graph: The looped graph of the whole batch.
        batch: The graph of each node, [num_nodes].

    >>> pairs = graph_pairs(LoopedGraph(torch.tensor([[2, 0], [1, 0]]), num_nodes=3), torch.tensor([0, 1, 1]))
    >>> pairs.targets.tolist(), pairs.ptr.tolist(), pairs.edges.tolist()
    ([0, 1], [0, 1, 4], [1, 0, 2, 3])
    """
    expect(
        batch.shape == (graph.num_nodes,) and batch.dtype == torch.int64,
        "batch",
        f"{graph.num_nodes} graph ids of dtype torch.int64, one a node",
        f"{tuple(batch.shape)} of {batch.dtype}",
    )
    source, destination = batch[graph.edge_index]
    expect(torch.equal(source, destination), "batch", "one graph for both ends of every edge", "edges between graphs")
    rows = group(destination, int(batch.max()) + 1 if batch.numel() else 0)
    targets = batch.unique()
    _, place = expand(rows.ptr, targets)
    ptr = torch.cat([rows.ptr[:1], rows.ptr[targets + 1]])
    return Pairs(targets, ptr, rows.items[place], torch.ones_like(place, dtype=torch.bool))
