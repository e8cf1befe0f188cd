"""Graph-level explanations: the readout is one more step of the computation tree, from the graph to its nodes.

A graph's tree has the trees of all its nodes below its root, node i weighted by what the readout gives it: 1 for a
sum, 1 / n for a mean, and for a maximum over nodes the share of channels whose value comes from node i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.flows import Start
from attree.errors import expect

Readout = Literal["sum", "mean", "max"] | Tensor
"""How nodes become a graph: by name, or as one weight a node."""


def readout_start(
    attention: Attention, batch: Tensor | None, readout: Readout, graphs: int | Sequence[int] | Tensor | None = None
) -> Start:
    """Where the walk of every graph begins: at all its nodes, weighted by the readout."""
    graph = attention.graph
    if batch is None:
        batch = torch.zeros(graph.num_nodes, dtype=torch.int64, device=graph.device)
    expect(
        batch.shape == (graph.num_nodes,) and batch.dtype == torch.int64,
        "batch",
        f"{graph.num_nodes} graph ids of dtype torch.int64, one a node",
        f"{tuple(batch.shape)} of {batch.dtype}",
    )
    weights = readout_weights(readout, batch, attention.embedding)
    known = batch.unique()
    targets = known if graphs is None else torch.as_tensor(graphs, device=batch.device).reshape(-1).long()
    expect(bool(torch.isin(targets, known).all()), "graphs", "ids of graphs that have nodes", targets.tolist()[:5])
    expect(targets.unique().numel() == targets.numel(), "graphs", "distinct ids", "some more than once")
    position = torch.full((int(known.max()) + 1 if known.numel() else 0,), -1, device=batch.device)
    position[targets] = torch.arange(targets.numel(), device=batch.device)
    owner = position[batch]
    nodes = owner.argsort(stable=True)
    # No flow passes a node that the readout ignores.
    nodes = nodes[(owner[nodes] >= 0) & (weights[nodes] != 0)]
    return Start(targets, owner[nodes], nodes, weights[nodes])


def readout_weights(readout: Readout, batch: Tensor, embedding: Tensor | None = None) -> Tensor:
    """The weight of every node in its graph, [num_nodes], in float64.

    >>> readout_weights("mean", torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5, 1.0]
    """
    if isinstance(readout, Tensor):
        expect(readout.shape == batch.shape, "readout", f"{batch.numel()} weights, one a node", tuple(readout.shape))
        return readout.to(batch.device, torch.float64)
    expect(readout in ("sum", "mean", "max"), "readout", "'sum', 'mean', 'max' or one weight a node", readout)
    if readout == "max":
        expect(embedding is not None, "readout", "'sum' or 'mean' where no embedding was captured", readout)
        assert embedding is not None
        return max_shares(embedding, batch)
    ones = torch.ones(batch.numel(), dtype=torch.float64, device=batch.device)
    return ones if readout == "sum" else ones / batch.bincount()[batch]


def max_shares(embedding: Tensor, batch: Tensor) -> Tensor:
    """The share of channels in which each node has its graph's largest value; nodes that tie split the channel.

    >>> max_shares(torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 0.0]]), torch.tensor([0, 0, 1])).tolist()
    [0.25, 0.75, 1.0]
    """
    index = batch.unsqueeze(1).expand_as(embedding)
    size = (int(batch.max()) + 1 if batch.numel() else 0, embedding.shape[1])
    largest = embedding.new_full(size, -torch.inf).scatter_reduce(0, index, embedding, "amax")
    wins = (embedding == largest.gather(0, index)).double()
    winners = wins.new_zeros(size).scatter_add(0, index, wins)
    return (wins / winners.gather(0, index)).mean(dim=1)
