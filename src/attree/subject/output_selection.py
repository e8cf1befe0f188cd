"""Find the nodes whose outputs a model returns, if it selects them (`out[:batch_size]`, `out[mask]`), and undo this.

Models for mini-batches return the outputs of a part of the nodes. On the rows that an edge changes, such a selection
would select others. Without it, the model returns one row per row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.tensors.function_modes import SwitchedMode

SELECTS = frozenset({Tensor.__getitem__, torch.index_select, Tensor.index_select, torch.narrow, Tensor.narrow})
"""Functions that select rows of their first argument."""


class Selections(SwitchedMode):
    """Context that notes which nodes are selected from tensors with one row per node.

    Args:
        num_nodes: Number of rows of such a tensor.

    Attributes:
        nodes: The selected nodes of each call that selects nodes, in the order of the calls.

    >>> with Selections(5) as selections:
    ...     selected = torch.arange(10.0).view(5, 2)[:3]
    >>> selections.nodes[0].tolist()
    [0, 1, 2]
    """

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self._num_nodes = num_nodes
        self.nodes: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, and note the nodes that it selects."""
        kwargs = kwargs or {}
        if self._is_active and func in SELECTS and _has_rows(args, self._num_nodes):
            nodes = selected_nodes(func, args, kwargs, self._num_nodes)
            if nodes is not None:
                self.nodes.append(nodes)
        return func(*args, **kwargs)


class WithoutSelection(SwitchedMode):
    """Context in which selections of some nodes, in this order, return all rows.

    A pass over all nodes notes which calls these are; later passes on rows leave out the same calls.

    Args:
        nodes: The nodes.
        num_nodes: Number of nodes.
    """

    def __init__(self, nodes: Tensor, num_nodes: int) -> None:
        super().__init__()
        self._nodes, self._num_nodes = nodes, num_nodes
        self._calls = 0
        self._is_over_all = True
        self._undone: set[int] = set()

    def start(self, is_over_all: bool) -> None:
        """Start a pass over all nodes, which notes the calls, or a pass on rows."""
        self._calls, self._is_over_all = 0, is_over_all

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function; if it selects the nodes, return all rows."""
        kwargs = kwargs or {}
        if not self._is_active or func not in SELECTS or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        number, self._calls = self._calls, self._calls + 1
        if self._is_over_all and _has_rows(args, self._num_nodes):
            nodes = selected_nodes(func, args, kwargs, self._num_nodes)
            if nodes is not None and torch.equal(nodes.to(self._nodes.device), self._nodes):
                self._undone.add(number)
        if number not in self._undone:
            return func(*args, **kwargs)
        key = args[1] if func is Tensor.__getitem__ else None
        return args[0][(slice(None), *key[1:])] if isinstance(key, tuple) else args[0]


def _has_rows(args: tuple[Any, ...], count: int) -> bool:
    """Whether the first argument is a tensor with this number of rows."""
    return bool(args) and isinstance(args[0], Tensor) and args[0].dim() > 0 and args[0].shape[0] == count


def selected_nodes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], num_nodes: int) -> Tensor | None:
    """Return the positions of the rows that a function selects; None if it does not select rows."""
    numbers = torch.arange(num_nodes, device=args[0].device)
    if func is Tensor.__getitem__:
        first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        if isinstance(first, int) or first is None or first is Ellipsis:
            return None
        selected = numbers[first]
        return selected if selected.dim() == 1 else None
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dim not in (0, -args[0].dim()):
        return None
    if func in (torch.narrow, Tensor.narrow):
        others = {name: value for name, value in kwargs.items() if name != "dim"}
        return numbers.narrow(0, *args[2:], **others)
    index = kwargs.get("index", args[2] if len(args) > 2 else None)
    return numbers.index_select(0, index) if isinstance(index, Tensor) else None
