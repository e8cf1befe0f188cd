"""How nodes become a graph: the last step of a graph's computation tree, from the graph to its nodes.

A graph's tree has the trees of all its nodes below its root, node i weighted by what the readout gives it: 1 for a
sum, 1 / n for a mean, and for a maximum over nodes the share of channels whose value comes from node i.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from attree.errors import expect
from attree.precision import exact_dtype

NamedReadout = Literal["sum", "mean", "max"]
Readout = NamedReadout | Tensor
"""How nodes become a graph: by name, or as one weight a node."""

READOUTS: tuple[NamedReadout, ...] = ("sum", "mean", "max")


def check_readout(readout: Readout) -> None:
    """Raise unless `readout` is a known name or a tensor."""
    known = isinstance(readout, Tensor) or readout in READOUTS
    expect(known, "readout", "'sum', 'mean', 'max' or one weight a node", readout)


def readout_weights(readout: Readout, batch: Tensor, embedding: Tensor | None = None) -> Tensor:
    """The weight of every node in its graph, [num_nodes], as exact as the device allows.

    Args:
        readout: How nodes become a graph.
        batch: The graph of each node, [num_nodes].
        embedding: What the last layer returned, [num_nodes, channels]; `max` reads its winners from it.

    >>> readout_weights("mean", torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5, 1.0]
    """
    check_readout(readout)
    if isinstance(readout, Tensor):
        expect(readout.shape == batch.shape, "readout", f"{batch.numel()} weights, one a node", tuple(readout.shape))
        return readout.to(dtype=exact_dtype(batch.device)).to(batch.device)
    if readout == "max":
        expect(embedding is not None, "readout", "'sum' or 'mean' where no embedding was captured", readout)
        assert embedding is not None
        return max_shares(embedding, batch)
    ones = torch.ones(batch.numel(), dtype=exact_dtype(batch.device), device=batch.device)
    return ones if readout == "sum" else ones / batch.bincount()[batch]


def max_shares(embedding: Tensor, batch: Tensor) -> Tensor:
    """The share of channels in which each node has its graph's largest value; nodes that tie split the channel.

    >>> max_shares(torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 0.0]]), torch.tensor([0, 0, 1])).tolist()
    [0.25, 0.75, 1.0]
    """
    index = batch.unsqueeze(1).expand_as(embedding)
    size = (int(batch.max()) + 1 if batch.numel() else 0, embedding.shape[1])
    largest = embedding.new_full(size, -torch.inf).scatter_reduce(0, index, embedding, "amax")
    wins = (embedding == largest.gather(0, index)).to(exact_dtype(batch.device))
    winners = wins.new_zeros(size).scatter_add(0, index, wins)
    return (wins / winners.gather(0, index)).mean(dim=1)
