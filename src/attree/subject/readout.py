"""How nodes become a graph: the last step of a graph's computation tree, from the graph to its nodes.

A graph's tree has the trees of all its nodes below its root, node i weighted by what the readout gives it: 1 for a
sum, 1 / n for a mean, and for a maximum over nodes the share of channels whose value comes from node i.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from attree.errors import expect
from attree.subject.pooling import winners
from attree.tensors.limits import exact_dtype

NamedReadout = Literal["sum", "mean", "max"]
Readout = NamedReadout | Tensor
"""How nodes become a graph: by name, or as one weight a node."""

READOUTS: tuple[NamedReadout, ...] = ("sum", "mean", "max")


def check_readout(readout: Readout | None) -> None:
    """Raise unless `readout` is a known name, a tensor, or None."""
    known = readout is None or isinstance(readout, Tensor) or readout in READOUTS
    expect(known, "readout", "'sum', 'mean', 'max', one weight a node, or None", readout)


def readout_weights(
    readout: Readout | None,
    batch: Tensor,
    embedding: Tensor | None = None,
    read: Callable[[], Tensor | None] | None = None,
) -> Tensor:
    """The weight of every node in its graph, [num_nodes], as exact as the device allows.

    Args:
        readout: How nodes become a graph; None reads it from the model.
        batch: The graph of each node, [num_nodes].
        embedding: What the last layer returned, [num_nodes, channels]; `max` reads its winners from it.
        read: Reads the weights from the model, see `read_readout`; None or no result is a sum, and the latter is said.

    >>> readout_weights("mean", torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5, 1.0]
    """
    check_readout(readout)
    if readout is None:
        found = None if read is None else read()
        if found is not None:
            return found
        if read is not None:
            warnings.warn(
                "The model's readout could not be read from its forward pass, so graphs are explained as sums over "
                "their nodes. Argument `readout` sets it: 'sum', 'mean', 'max' or one weight a node.",
                stacklevel=2,
            )
        readout = "sum"
    if isinstance(readout, Tensor):
        expect(readout.shape == batch.shape, "readout", f"{batch.numel()} weights, one a node", tuple(readout.shape))
        return readout.to(dtype=exact_dtype(batch.device)).to(batch.device)
    if readout == "max":
        expect(embedding is not None, "readout", "'sum' or 'mean' where no embedding was captured", readout)
        assert embedding is not None
        return winners(embedding, batch).mean(dim=1)
    ones = torch.ones(batch.numel(), dtype=exact_dtype(batch.device), device=batch.device)
    return ones if readout == "sum" else ones / batch.bincount()[batch]
