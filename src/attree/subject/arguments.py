"""Arguments of a model: the parameters of its forward, and what each argument of a call has one row for.

attree calls a model again on parts and copies of its graph, and must cut each argument accordingly. The name of an
argument decides its kind first, then its shape and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.graph import Types
from attree.errors import ArgumentError

NODE_NAMES = ("x", "y", "z", "pos", "h", "features", "feat", "n_id", "train_mask", "val_mask", "test_mask")
"""Names of arguments that have one row per node, if the length fits."""

GRAPH_NAMES = ("u", "globals", "global_attr")
"""Names of arguments that have one row per graph, if the length fits."""

COUNT_NAMES = ("batch_size", "num_graphs")
"""Names of integer arguments that hold the number of graphs."""

ID_WORDS = ("index", "idx", "root", "target", "pair", "link", "ids")
"""Words in the names of integer arguments whose values are node ids."""

WRAPPED = ("_orig_mod", "module", "encoder", "model", "net")
"""Attributes in which wrappers keep the wrapped module."""


FIRST_ENDS = ("src", "source", "sources", "head", "heads", "h", "u", "row", "i", "user", "users")
"""Names of arguments that hold the first ends of links, if another argument holds the second ones."""


@dataclass(frozen=True)
class LinkArguments:
    """Links that a model takes as two arguments, or as one pair of tensors; attree keeps them as one tensor [2, P].

    Attributes:
        names: The names of the model's arguments: two, or one for a pair of tensors.
        joined: The name of the one tensor.
        make: For a pair of tensors: what makes the pair from two tensors.
        is_swapped: Whether the second argument holds the first ends.
    """

    names: tuple[str, ...]
    joined: str = "edge_label_index"
    make: Callable[[Sequence[Tensor]], Any] = tuple
    is_swapped: bool = False

    @classmethod
    def join(
        cls, names: Sequence[str], values: Sequence[Any], rows: int, num_nodes: int
    ) -> tuple[LinkArguments, int, Tensor] | None:
        """Return the first links among arguments, their position and their ends [2, P]; None if there are none."""
        if LinkArguments.joined in names:
            return None
        for place, value in enumerate(values):
            is_pair = isinstance(value, tuple | list) and len(value) == 2
            if is_pair and all(_are_ends(end, rows, num_nodes) for end in value):
                return cls((names[place],), make=type(value)), place, torch.stack(list(value))
            pair = values[place : place + 2]
            if len(pair) == 2 and all(_are_ends(end, rows, num_nodes) for end in pair):
                first, second = names[place : place + 2]
                is_swapped = second in FIRST_ENDS and first not in FIRST_ENDS
                ends = torch.stack(list(pair[::-1] if is_swapped else pair))
                return cls((first, second), is_swapped=is_swapped), place, ends
        return None

    def apart(
        self, names: tuple[str, ...], values: tuple[Any, ...], num_positional: int
    ) -> tuple[tuple[str, ...], tuple[Any, ...], int]:
        """Return the model's own arguments: names, values, and how many are passed by position."""
        place = names.index(self.joined)
        ends = values[place].unbind(0)
        model_ends = ends[::-1] if self.is_swapped else ends
        passed = (self.make(model_ends),) if len(self.names) == 1 else tuple(model_ends)
        more = len(passed) - 1 if place < num_positional else 0
        return (
            (*names[:place], *self.names, *names[place + 1 :]),
            (*values[:place], *passed, *values[place + 1 :]),
            num_positional + more,
        )


def _are_ends(value: Any, rows: int, num_nodes: int) -> bool:
    """Whether a value can hold one end of each of some links: node ids."""
    return isinstance(value, Tensor) and value.shape == (rows,) and _is_integer(value) and _in_range(value, num_nodes)


def parameters(model: nn.Module) -> list[Parameter]:
    """Return the named parameters of a model's forward; for a wrapper, those of the wrapped module."""
    declared = list(signature(unwrapped(model).forward).parameters.values())
    return [
        parameter for parameter in declared if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside wrappers that pass on all arguments (compiled, DataParallel, averaged weights).

    >>> layer = nn.Linear(1, 1)
    >>> unwrapped(nn.DataParallel(layer)) is layer, unwrapped(layer) is layer
    (True, True)
    """
    while True:
        kinds = {parameter.kind for parameter in signature(model.forward).parameters.values()}
        if kinds - {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
            return model
        modules = (getattr(model, name, None) for name in WRAPPED)
        inner = next((module for module in modules if isinstance(module, nn.Module)), None)
        if inner is None:
            return model
        model = inner


def model_name(model: nn.Module) -> str:
    """Return the class name of a model; for a wrapper, of the wrapped module."""
    return type(unwrapped(model)).__name__


class Kind(Enum):
    """Kind of a model's argument: what it has one row for, or what its values mean.

    NODE, EDGE and GRAPH arguments have one row per node, edge or graph. EDGES is the edge list that the model runs on.
    BATCH holds the graph of each node. PTR holds the first node of each graph, then the number of nodes. COUNT is the
    number of graphs. The values of IDS are node ids, such as the ends of queried links or the root of a graph. OTHER is
    everything else.
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
    """Sizes of the graph that a model is called on.

    Attributes:
        nodes: Number of nodes.
        edges: Number of edges, as given.
        graphs: Number of graphs; None if no argument holds the graph of each node.
        of_data: Whether the arguments are all attributes of a PyG graph. If the graph has as many nodes as edges, an
            attribute without `edge` in its name then has one row per node, as in PyG.
    """

    nodes: int
    edges: int
    graphs: int | None = None
    of_data: bool = False


def argument_kinds(
    names: Sequence[str], values: Sequence[Any], num_nodes: int, num_edges: int, of_data: bool = False
) -> tuple[Kind, ...]:
    """Return the kind of each argument of a call, except its edge list.

    Args:
        names: Names of the arguments; an empty string for an argument without a name.
        values: Values of the arguments.
        num_nodes: Number of nodes.
        num_edges: Number of edges, as given.
        of_data: Whether the arguments are all attributes of a PyG graph, see `Sizes`.
    """
    named = list(zip(names, values, strict=True))
    batches = [value for name, value in named if _is_batch(name, value, num_nodes)]
    graphs = (int(batches[0].max()) + 1 if batches[0].numel() else 0) if batches else None
    sizes = Sizes(num_nodes, num_edges, graphs, of_data)
    return tuple(argument_kind(name, value, sizes) for name, value in named)


def argument_kind(name: str, value: Any, sizes: Sizes) -> Kind:
    """Return the kind of one argument.

    A name that contains `edge` or `node`, and a few common names, decide if the length fits. Otherwise the length
    decides, unless the graph has as many nodes as edges.

    >>> argument_kind("edge_attr", torch.zeros(5, 2), Sizes(nodes=5, edges=5))
    <Kind.EDGE: 2>
    >>> argument_kind("", torch.zeros(5, 2), Sizes(nodes=5, edges=7))
    <Kind.NODE: 1>
    >>> argument_kind("edge_label_index", torch.tensor([[0, 1, 4], [2, 2, 0]]), Sizes(nodes=5, edges=7))
    <Kind.IDS: 8>
    """
    if name in COUNT_NAMES and isinstance(value, int) and not isinstance(value, bool):
        return Kind.COUNT if sizes.graphs in (None, value) else Kind.OTHER
    if not isinstance(value, Tensor) or value.dim() == 0:
        return Kind.OTHER
    if sizes.nodes == 0 or value.layout != torch.strided:
        return _by_length(name, value, sizes)
    if _is_batch(name, value, sizes.nodes):
        return Kind.BATCH
    if name == "ptr" and value.dim() == 1 and int(value[-1]) == sizes.nodes:
        return Kind.PTR
    if _are_pairs(name, value, sizes.nodes):
        return Kind.IDS
    return _by_length(name, value, sizes)


def _by_length(name: str, value: Tensor, sizes: Sizes) -> Kind:
    """Return the kind of a tensor argument by its name and its number of rows; raise if nodes and edges both fit."""
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
    named = any(word in name for word in (*ID_WORDS, "node"))
    return Kind.IDS if named and _is_integer(value) and _in_range(value, sizes.nodes) else Kind.OTHER


def _is_batch(name: str, value: Any, num_nodes: int) -> bool:
    if not isinstance(value, Tensor) or "batch" not in name:
        return False
    return value.shape == (num_nodes,) and value.dtype == torch.int64 and num_nodes > 0


def _are_pairs(name: str, value: Tensor, num_nodes: int) -> bool:
    """Whether values can be the ends of pairs of nodes: node ids of shape [2, P]."""
    if value.dim() != 2 or value.shape[0] != 2 or not _is_integer(value):
        return False
    named = "edge" in name or any(word in name for word in ID_WORDS)
    return (named or num_nodes != 2) and _in_range(value, num_nodes)


def _is_integer(value: Tensor) -> bool:
    return value.dtype in (torch.int64, torch.int32)


def _in_range(value: Tensor, num_nodes: int) -> bool:
    return value.numel() == 0 or (int(value.min()) >= 0 and int(value.max()) < num_nodes)


def typed_kind(name: str, value: Any, types: Types) -> Kind:
    """Return the kind of one argument of a model of a heterogeneous graph.

    >>> types = Types.of({"user": 3, "item": 2}, {("user", "buys", "item"): 4})
    >>> typed_kind("x_dict", {"user": torch.zeros(3, 5)}, types)
    <Kind.NODE: 1>
    >>> typed_kind("edge_attr_dict", {("user", "buys", "item"): torch.zeros(4, 1)}, types)
    <Kind.EDGE: 2>
    """
    if isinstance(value, Tensor):
        return Kind.IDS if _are_typed_ids(name, value) else Kind.OTHER
    if not isinstance(value, Mapping) or not value or not all(isinstance(rows, Tensor) for rows in value.values()):
        return Kind.OTHER
    if all(kind in types.node_types and _has_rows(rows, len(types.nodes(kind))) for kind, rows in value.items()):
        return Kind.BATCH if "batch" in name else Kind.NODE
    if all(kind in types.edge_types for kind in value):
        if all(_has_rows(rows, len(types.edges(kind))) for kind, rows in value.items()) and "index" not in name:
            return Kind.EDGE
        if all(_are_typed_ids(name, rows) for rows in value.values()):
            return Kind.IDS
    return Kind.OTHER


def _has_rows(value: Tensor, count: int) -> bool:
    return value.dim() > 0 and value.shape[0] == count


def _are_typed_ids(name: str, value: Tensor) -> bool:
    pairs = value.dim() == 2 and value.shape[0] == 2
    return _is_integer(value) and value.dim() > 0 and (pairs or any(word in name for word in ID_WORDS))
