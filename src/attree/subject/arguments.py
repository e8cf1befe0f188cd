"""Which argument of a model has one row per node, which one per edge: one rule, by name first, then by shape.

A model is called again on parts and copies of its graph, and each of its arguments must be cut accordingly.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from attree.errors import ArgumentError

NODE_NAMES = ("x", "z", "pos", "h", "features", "feat", "n_id")
"""Arguments that are of nodes, whatever else their length could mean."""

COUNT_NAMES = ("batch_size", "num_graphs")
"""Arguments that count graphs, if they are integers."""


class Kind(Enum):
    """What an argument has one row for; the graph of each node is `BATCH`, the number of graphs `COUNT`."""

    NODE = auto()
    EDGE = auto()
    BATCH = auto()
    COUNT = auto()
    OTHER = auto()


def argument_kind(name: str, value: Any, num_nodes: int, num_edges: int) -> Kind:
    """Say what an argument of a model belongs to.

    A name that contains `edge` or `node`, and a few common ones, decide where the length allows it; otherwise the
    length alone does, unless the graph has as many nodes as edges.

    Args:
        name: The argument's name; empty if it has none.
        value: Its value.
        num_nodes: Nodes of the graph that the model is called on.
        num_edges: Edges of that graph, as given.

    >>> argument_kind("edge_attr", torch.zeros(5, 2), num_nodes=5, num_edges=5)
    <Kind.EDGE: 2>
    >>> argument_kind("", torch.zeros(5, 2), num_nodes=5, num_edges=7)
    <Kind.NODE: 1>
    """
    if name in COUNT_NAMES and isinstance(value, int):
        return Kind.COUNT
    if not isinstance(value, Tensor) or value.dim() == 0 or num_nodes == 0:
        return Kind.OTHER
    of_nodes, of_edges = value.shape[0] == num_nodes, value.shape[0] == num_edges
    if "batch" in name and value.shape == (num_nodes,) and value.dtype == torch.int64:
        return Kind.BATCH
    if "edge" in name:
        return Kind.EDGE if of_edges else Kind.OTHER
    if name in NODE_NAMES or "node" in name:
        return Kind.NODE if of_nodes else Kind.OTHER
    if of_nodes and of_edges:
        raise ArgumentError(
            f"Expected argument `{name or 'of the model'}` to say by its name whether it is of nodes or of edges (one "
            f"that contains `node` or `edge`), as the graph has {num_nodes} of both, but got a tensor of shape "
            f"{tuple(value.shape)}."
        )
    if of_nodes:
        return Kind.NODE
    return Kind.EDGE if of_edges else Kind.OTHER
