"""Find out what each argument of a model has one row for: by its name first, then by its shape and values.

A model is called again on parts and copies of its graph, and each of its arguments must be cut accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from attree.errors import ArgumentError

NODE_NAMES = ("x", "y", "z", "pos", "h", "features", "feat", "n_id", "train_mask", "val_mask", "test_mask")
"""Names of arguments that belong to nodes, whatever else their length could mean."""

GRAPH_NAMES = ("u", "globals", "global_attr")
"""Names of arguments that belong to graphs, whatever else their length could mean."""

COUNT_NAMES = ("batch_size", "num_graphs")
"""Names of arguments that count graphs, if they are integers."""

ID_WORDS = ("index", "idx", "root", "target", "pair", "link", "ids")
"""Words in the names of integer arguments whose values are node ids."""


class Kind(Enum):
    """What an argument of a model has one row for, or what its values mean.

    NODE, EDGE and GRAPH arguments have one row per node, edge or graph. EDGES is the edge list that the model runs on.
    BATCH holds the graph of each node, PTR the first node of each graph and the number of nodes, COUNT the number of
    graphs. The values of IDS are node ids: the two ends of queried links, the root of a graph. OTHER is the rest.
    """

    NODE = auto()
    EDGE = auto()
    GRAPH = auto()
    EDGES = auto()
    BATCH = auto()
    PTR = auto()
    COUNT = auto()
    IDS = auto()
    OTHER = auto()


@dataclass(frozen=True)
class Sizes:
    """The size of the graph that a model is called on.

    Attributes:
        nodes: Number of nodes.
        edges: Number of edges, as given.
        graphs: Number of graphs; None if no argument tells graphs apart.
        of_data: Whether the arguments are all that a PyG graph has: where it has as many nodes as edges, what does not
            say `edge` is of nodes then, as PyG takes it. A model may not read it at all.
    """

    nodes: int
    edges: int
    graphs: int | None = None
    of_data: bool = False


def argument_kinds(
    names: Sequence[str], values: Sequence[Any], num_nodes: int, num_edges: int, of_data: bool = False
) -> tuple[Kind, ...]:
    """The kind of each argument of a call, other than its edge list.

    Args:
        names: The arguments' names; empty where they have none.
        values: Their values.
        num_nodes: Nodes of the graph.
        num_edges: Edges of the graph, as given.
        of_data: Whether they are all that a PyG graph has, see `Sizes`.
    """
    named = list(zip(names, values, strict=True))
    batches = [value for name, value in named if _is_batch(name, value, num_nodes)]
    graphs = (int(batches[0].max()) + 1 if batches[0].numel() else 0) if batches else None
    sizes = Sizes(num_nodes, num_edges, graphs, of_data)
    return tuple(argument_kind(name, value, sizes) for name, value in named)


def argument_kind(name: str, value: Any, sizes: Sizes) -> Kind:
    """Find out what one argument of a model has rows for.

    A name that contains `edge` or `node`, and a few common ones, decide where the length allows it; otherwise the
    length alone does, unless the graph has as many nodes as edges.

    >>> argument_kind("edge_attr", torch.zeros(5, 2), Sizes(nodes=5, edges=5))
    <Kind.EDGE: 2>
    >>> argument_kind("", torch.zeros(5, 2), Sizes(nodes=5, edges=7))
    <Kind.NODE: 1>
    >>> argument_kind("edge_label_index", torch.tensor([[0, 1, 4], [2, 2, 0]]), Sizes(nodes=5, edges=7))
    <Kind.IDS: 8>
    """
    if name in COUNT_NAMES and isinstance(value, int) and not isinstance(value, bool):
        return Kind.COUNT if sizes.graphs in (None, value) else Kind.OTHER
    if not isinstance(value, Tensor) or value.dim() == 0 or sizes.nodes == 0 or value.layout != torch.strided:
        return Kind.OTHER if not isinstance(value, Tensor) or value.dim() == 0 else _by_length(name, value, sizes)
    if _is_batch(name, value, sizes.nodes):
        return Kind.BATCH
    if name == "ptr" and value.dim() == 1 and int(value[-1]) == sizes.nodes:
        return Kind.PTR
    if _are_pairs(name, value, sizes.nodes):
        return Kind.IDS
    return _by_length(name, value, sizes)


def _by_length(name: str, value: Tensor, sizes: Sizes) -> Kind:
    length = value.shape[0]
    if "edge" in name:
        return Kind.EDGE if length == sizes.edges else Kind.OTHER
    if length == sizes.graphs and (name in GRAPH_NAMES or "graph" in name):
        return Kind.GRAPH
    of_nodes, of_edges = length == sizes.nodes, length == sizes.edges
    if of_nodes and (name in NODE_NAMES or "node" in name):
        return Kind.NODE
    if of_nodes and of_edges and not sizes.of_data:
        raise ArgumentError(
            f"Expected argument `{name or 'of the model'}` to say by its name whether it is of nodes or of edges (one "
            f"that contains `node` or `edge`), as the graph has {sizes.nodes} of both, but got a tensor of shape "
            f"{tuple(value.shape)}."
        )
    if of_nodes:
        return Kind.NODE
    if of_edges:
        return Kind.EDGE
    if length == sizes.graphs:
        return Kind.GRAPH
    return Kind.IDS if _are_ids(name, value, sizes.nodes) else Kind.OTHER


def _is_batch(name: str, value: Any, num_nodes: int) -> bool:
    if not isinstance(value, Tensor) or "batch" not in name:
        return False
    return value.shape == (num_nodes,) and value.dtype == torch.int64 and num_nodes > 0


def _are_pairs(name: str, value: Tensor, num_nodes: int) -> bool:
    """Whether values can be the two ends of pairs of nodes: integers [2, P] in range."""
    if value.dim() != 2 or value.shape[0] != 2 or value.dtype not in (torch.int64, torch.int32):
        return False
    named = "edge" in name or any(word in name for word in ID_WORDS)
    return (named or num_nodes != 2) and _in_range(value, num_nodes)


def _are_ids(name: str, value: Tensor, num_nodes: int) -> bool:
    integer = value.dtype in (torch.int64, torch.int32)
    return integer and any(word in name for word in (*ID_WORDS, "node")) and _in_range(value, num_nodes)


def _in_range(value: Tensor, num_nodes: int) -> bool:
    return value.numel() == 0 or (int(value.min()) >= 0 and int(value.max()) < num_nodes)
