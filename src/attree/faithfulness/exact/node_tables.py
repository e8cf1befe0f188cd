"""Tables that a model holds, and tensors that its code makes, with one row per node: cut to the rows that it runs on.

A model may add a table to its features (`x + self.emb.weight`), look up all its nodes (`self.emb(torch.arange(n))`), or
make a state of each node (`torch.zeros(n, width)`). On the rows that an edge changes, each of these must have one row
per row, of the right node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.graph import Graph
from attree.faithfulness.exact.lazy_features import LazyRows, Store
from attree.tensors.function_modes import SwitchedMode

LOOKUPS = frozenset({torch.index_select, Tensor.index_select, torch.gather, Tensor.gather, torch.take_along_dim})
"""Functions that look up rows of their first argument."""

MATRIX_PRODUCTS = frozenset({F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm})
"""Functions that multiply by the second argument as a matrix."""

TURNS = frozenset(
    {
        torch.t,
        Tensor.t,
        torch.transpose,
        Tensor.transpose,
        Tensor.permute,
        *(vars(torch._C.TensorBase)[name].__get__ for name in ("T", "mT")),
    }
)
"""Functions that exchange rows and columns."""


class NodeTable(LazyRows):
    """Rows of a table that a model holds.

    Functions that look up rows by their numbers, or multiply by the table as a matrix, get the whole table; all others
    get the rows.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function on the rows, or on the whole table."""
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func is Tensor.__getitem__ and isinstance(first, NodeTable):
            return func(first.selected_by(args[1]), _at_rows(args[1], first))
        if func in LOOKUPS | TURNS and isinstance(first, NodeTable):
            return func(first.whole, *args[1:], **kwargs)
        if func in (F.embedding, *MATRIX_PRODUCTS) and len(args) > 1 and isinstance(args[1], NodeTable):
            return func(first, args[1].whole, *args[2:], **kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def selected_by(self, key: Any) -> Tensor:
        """Return what a key selects from: the rows for a slice of all nodes, else the whole table."""
        first = key[0] if isinstance(key, tuple) and key else key
        counts = (None, self.whole.shape[0], self.shape[0])
        is_all = isinstance(first, slice) and first.start in (None, 0) and first.stop in counts and first.step is None
        return self.read() if is_all or first is Ellipsis or first is None else self.whole


def _at_rows(key: Any, table: NodeTable) -> Any:
    """Return a key that selects all nodes as one that selects all rows."""
    first = key[0] if isinstance(key, tuple) and key else key
    if not isinstance(first, slice) or first.stop != table.whole.shape[0]:
        return key
    return (slice(None), *key[1:]) if isinstance(key, tuple) else slice(None)


HOLDERS = (nn.Embedding, nn.ParameterList, nn.ParameterDict)
"""Modules of PyTorch that may hold tables of nodes; the weights of others are none, whatever their shape."""


class Place(NamedTuple):
    """Where a model holds a table.

    Attributes:
        attributes: The attributes, parameters or buffers of a module.
        name: The name of the table among them.
        whole: The table.
        nodes: The nodes that its rows belong to.
    """

    attributes: dict[str, Any]
    name: str
    whole: Tensor
    nodes: range


class NodeTables:
    """The tables of a stand-in of a model that have one row per node, of a type if there are several.

    Args:
        model: The stand-in, which holds rows of the tables after `cut`.
        graph: The graph.
    """

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self._places = list(_tables(model, graph))
        self._has_types = graph.types is not None

    def __len__(self) -> int:
        """Number of tables."""
        return len(self._places)

    @property
    def positions(self) -> list[Tensor]:
        """The rows of each table that the model holds now."""
        held = [place.attributes[place.name] for place in self._places]
        return [table.positions for table in held if isinstance(table, NodeTable) and table.positions is not None]

    def cut(self, rows: Tensor | None, store: Store) -> None:
        """Cut the tables to some nodes; None for all."""
        for place in self._places:
            # Features have rows of the same tensor, see `_are_same_rows`.
            positions = rows if rows is None or not self._has_types else nodes_within(rows, place.nodes)
            whole = place.whole
            place.attributes[place.name] = NodeTable(whole, positions, whole.dtype, store, ("table", id(whole)))


def nodes_within(rows: Tensor, nodes: range) -> Tensor:
    """Return those rows that are among some consecutive nodes, numbered from the first of these."""
    return rows[(rows >= nodes.start) & (rows < nodes.stop)] - nodes.start


def _tables(model: nn.Module, graph: Graph) -> Iterator[Place]:
    """Yield the tables of a model: of embeddings, and of modules that are the user's own."""
    for path, module in model.named_modules():
        package = type(module).__module__.partition(".")[0]
        may_hold = package not in ("torch", "torch_geometric") or isinstance(module, HOLDERS)
        if isinstance(module, MessagePassing) or not may_hold:
            continue
        for attributes in (vars(module)["_parameters"], vars(module)["_buffers"], vars(module)):
            for name, value in list(attributes.items()):
                if isinstance(value, Tensor) and value.dim() and value.layout == torch.strided:
                    nodes = nodes_of_length(graph, value.shape[0], f"{path}.{name}")
                    if nodes is not None:
                        yield Place(attributes, name, value, nodes)


def nodes_of_length(graph: Graph, length: int, path: str = "") -> range | None:
    """Return the nodes that rows may belong to by their number: all, or of one type; None if they fit to none.

    Args:
        graph: The graph.
        length: Number of rows.
        path: A name, which decides between types of the same number of nodes.
    """
    if graph.types is None:
        return range(graph.num_nodes) if length == graph.num_nodes else None
    fitting = [kind for kind in graph.types.node_types if len(graph.types.nodes(kind)) == length]
    named = [kind for kind in fitting if kind in path]
    return graph.types.nodes((named or fitting)[0]) if len(named or fitting) == 1 else None


MAKERS = frozenset(
    {
        torch.arange,
        torch.zeros,
        torch.ones,
        torch.empty,
        torch.full,
        Tensor.new_zeros,
        Tensor.new_ones,
        Tensor.new_empty,
        Tensor.new_full,
    }
)
"""Functions that make a tensor of a size."""


class NodeNumbers(SwitchedMode):
    """Context in which tensors that a model makes with one row per node have one row per row.

    A pass over all nodes notes which of the calls have as many rows as there are nodes. In later passes, the size of
    these calls is either that of the rows already (`x.size(0)`), or it is replaced; `torch.arange` returns the numbers
    of the rows' nodes.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self._rows: Tensor | None = None
        self._calls = 0
        self._nodes_of_call: dict[int, range] = {}

    def start(self, rows: Tensor | None) -> None:
        """Start a pass on some nodes; None for a pass over all nodes, which notes the calls."""
        self._rows, self._calls = rows, 0

    @property
    def is_needed(self) -> bool:
        """Whether the model makes any such tensor."""
        return bool(self._nodes_of_call)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, on rows if it makes one row per node."""
        kwargs = kwargs or {}
        if not self._is_active or func not in MAKERS:
            return func(*args, **kwargs)
        number, self._calls = self._calls, self._calls + 1
        size = _size(func, args, kwargs)
        if self._rows is None:
            nodes = None if size is None else nodes_of_length(self._graph, size[0])
            if nodes is not None:
                self._nodes_of_call[number] = nodes
            return func(*args, **kwargs)
        nodes = self._nodes_of_call.get(number)
        if nodes is None or size is None:
            return func(*args, **kwargs)
        rows = self._rows if self._graph.types is None else nodes_within(self._rows, nodes)
        if size[0] not in (len(nodes), rows.numel()):
            return func(*args, **kwargs)
        if func is torch.arange:
            return rows.to(kwargs.get("dtype") or rows.dtype, copy=True)
        return _resized(func, args, kwargs, (rows.numel(), *size[1:]))


def _size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the size of the tensor that a function makes; None if it is not known, or has no dimension."""
    values = args[1:] if func.__name__.startswith("new_") else args
    if func is torch.arange:
        start, end = (0, values[0]) if len(values) == 1 else values[:2] if len(values) == 2 else (1, 0)
        return (end,) if start == 0 and type(end) is int else None
    if func.__name__.endswith("full") or (values and not isinstance(values[0], int)):
        values = values[0] if values else ()
    size = kwargs.get("size", values)
    return tuple(size) if isinstance(size, tuple | list) and size and all(isinstance(n, int) for n in size) else None


def _resized(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], size: tuple[int, ...]) -> Tensor:
    """Return what a function makes, of another size."""
    like = args[:1] if func.__name__.startswith("new_") else ()
    fill = args[len(like) + 1 :] if func.__name__.endswith("full") else ()
    resized: Tensor = func(*like, size, *fill, **{name: value for name, value in kwargs.items() if name != "size"})
    return resized
