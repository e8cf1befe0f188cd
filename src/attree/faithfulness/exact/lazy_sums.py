"""Sums of feature rows that are computed only when they are read, after linear layers have made them narrow.

Some layers (SAGE, GIN, GraphConv) add up the features of neighbours first and apply a linear layer W to the sum. For
the model's input, W is applied to the features of all nodes instead, once: the sum of W x_i is W times the sum of x_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.faithfulness.exact.lazy_features import METADATA, PRODUCTS, Lazy, LazyRows, weighted_sums
from attree.tensors.arrays import expand, pointers, take_rows

FEW = 8
"""Less than one row in this many is computed alone, not as a row of the sums of all nodes."""


Map = Callable[[LazyRows], LazyRows]
"""A linear map of features."""


@dataclass(frozen=True, eq=False)
class SumMatrix:
    """Weights with which features of sources are added up at each destination, row by row.

    Attributes:
        ptr: The entries of row j are `ptr[j]:ptr[j + 1]`.
        row: The row of each entry.
        source: The source of each entry.
        weight: The weight of each entry.
    """

    ptr: Tensor
    row: Tensor
    source: Tensor
    weight: Tensor

    def times(self, values: Tensor) -> Tensor:
        """Return the sums of values [sources, channels] at all rows."""
        return weighted_sums(self.ptr, self.row, self.source, self.weight.unsqueeze(1), values.unsqueeze(1)).squeeze(1)

    def rows(self, nodes: Tensor, values: LazyRows) -> Tensor:
        """Return the sums at some rows; only their sources are read."""
        row, place = expand(self.ptr, nodes)
        source, inverse = take_rows(self.source, place).unique(return_inverse=True)
        sizes = self.ptr.diff()[nodes]
        part = SumMatrix(pointers(sizes), row, inverse, take_rows(self.weight, place))
        return part.times(values.at(source).read())


@dataclass(frozen=True)
class Entries:
    """Change of a sum: features of single sources, each times a factor, are added to some rows.

    Attributes:
        row: The row of each entry.
        factor: The factor of each entry.
        values: The features of each entry's source.
    """

    row: Tensor
    factor: Tensor
    values: LazyRows


@dataclass(frozen=True)
class Copies:
    """Change of a sum: some rows become those of other rows, times a factor.

    Attributes:
        row: The rows.
        source: The row that each of them becomes.
        factor: The factor of each; None for 1.
    """

    row: Tensor
    source: Tensor
    factor: Tensor | None


@dataclass(frozen=True)
class Sums:
    """Term of lazy sums: rows of the sums of all nodes, each times a factor, and then changed.

    Attributes:
        matrix: The weights of the sums.
        values: Features of all sources.
        node: The row of the matrix for each row; None for all.
        scale: Factor of each row; None for 1.
        changes: What is changed, one after the other.
    """

    matrix: SumMatrix
    values: LazyRows
    node: Tensor | None = None
    scale: Tensor | None = None
    changes: tuple[Entries | Copies, ...] = ()

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor."""
        name, node = (self.values.name, id(self.matrix)), self.node
        store, count = self.values.store, self.matrix.ptr.numel() - 1
        if node is not None and not store.has(name) and node.numel() * FEW < count:
            out = self.matrix.rows(node, self.values)
        else:
            whole = store.get(name, lambda: self.matrix.times(self.values.read()))
            out = whole.clone() if node is None else take_rows(whole, node)
        if self.scale is not None:
            out.mul_(self.scale.unsqueeze(1))
        for change in self.changes:
            if isinstance(change, Entries):
                out.index_add_(0, change.row, change.values.read().mul_(change.factor.unsqueeze(1)))
            else:
                rows = take_rows(out, change.source)
                out.index_copy_(0, change.row, rows if change.factor is None else rows.mul_(change.factor.unsqueeze(1)))
        return out

    def at(self, rows: Tensor) -> Sums:
        """Return some rows of sums of all nodes that nothing has changed."""
        assert self.node is None
        assert not self.changes
        return replace(self, node=rows)

    def mapped(self, function: Map) -> Sums:
        """Return the sums of mapped features."""
        changes = tuple(
            replace(change, values=function(change.values)) if isinstance(change, Entries) else change
            for change in self.changes
        )
        return replace(self, values=function(self.values), changes=changes)


@dataclass(frozen=True)
class Replaced:
    """Term of lazy sums: recorded features of nodes, some rows of which are replaced by new ones.

    Attributes:
        values: The recorded features of each row's node.
        place: The rows that are replaced.
        new: The new features.
    """

    values: LazyRows
    place: Tensor
    new: LazyRows

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor."""
        return self.values.read().index_copy_(0, self.place, self.new.read())

    def at(self, rows: Tensor) -> Replaced:
        """Not needed: only sums of all nodes are read in part."""
        raise NotImplementedError

    def mapped(self, function: Map) -> Replaced:
        """Return the mapped rows."""
        return replace(self, values=function(self.values), new=function(self.new))


@dataclass(frozen=True)
class Whole:
    """Term of lazy sums: features of nodes, row by row."""

    values: LazyRows

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor."""
        return self.values.read()

    def at(self, rows: Tensor) -> Whole:
        """Return some of the rows."""
        return Whole(self.values.at(rows))

    def mapped(self, function: Map) -> Whole:
        """Return the mapped rows."""
        return Whole(function(self.values))


Term = Sums | Replaced | Whole


class _NotMappedError(Exception):
    """A map cannot be applied to lazy rows."""


class LazySums(Lazy):
    """Sum of terms, computed when it is read.

    Attributes:
        terms: The terms.
        bias: A vector that is added to every row; None for none.
    """

    terms: tuple[Term, ...]
    bias: Tensor | None
    _changed: Tensor | None

    @staticmethod
    def __new__(cls, terms: tuple[Term, ...], num_rows: int, bias: Tensor | None = None) -> LazySums:
        values = terms[0].values
        self = torch.Tensor._make_wrapper_subclass(
            cls, (num_rows, *values.shape[1:]), dtype=values.dtype, device=values.device
        )
        self.terms, self.bias, self._changed = terms, bias, None
        return self

    def copy(self) -> LazySums:
        """Return the same sums, for code that may change them in place."""
        return LazySums(self.terms, self.shape[0], self.bias)

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor that shares no memory with others."""
        if self._changed is not None:
            return self._changed.clone()
        out = self.terms[0].read()
        for term in self.terms[1:]:
            out.add_(term.read())
        return out if self.bias is None else out.add_(self.bias)

    def at(self, rows: Tensor) -> Tensor:
        """Return some rows of a sum that was recorded for all nodes, as an ordinary tensor."""
        if self._changed is not None:
            return self._changed[rows]
        return LazySums(tuple(term.at(rows) for term in self.terms), rows.numel(), self.bias).read()

    def mapped(self, function: Callable[[LazyRows], Any], bias: Tensor | None) -> LazySums | None:
        """Return the sum of linearly mapped features; None if they cannot be mapped."""

        def mapped_rows(values: LazyRows) -> LazyRows:
            rows = function(values)
            if not isinstance(rows, LazyRows):
                raise _NotMappedError
            return rows

        try:
            return LazySums(tuple(term.mapped(mapped_rows) for term in self.terms), self.shape[0], bias)
        except _NotMappedError:
            return None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], cls) and (name.startswith("__i") or (name[-1:] == "_" and name[:1] != "_")):
            args[0]._changed = args[0].read()
            func(args[0]._changed, *_read(args[1:]), **_read(kwargs))
            return args[0]
        lazy = _keep_lazy(func, args, kwargs)
        return func(*_read(args), **_read(kwargs)) if lazy is None else lazy


def _dispatch(func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Compute lazy arguments before an operation reaches torch."""
    return func(*_read(args), **_read(kwargs or {}))


LazySums.__torch_dispatch__ = staticmethod(_dispatch)


def _read(values: Any) -> Any:
    return torch.utils._pytree.tree_map_only((LazySums, LazyRows), lambda lazy: lazy.read(), values)


ADDITIONS = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__})
"""Functions that add two tensors."""


def _keep_lazy(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LazySums | None:
    """Return the result of a linear layer or of an addition as lazy sums; None for any other function."""
    if any(isinstance(value, LazySums) and value._changed is not None for value in args):
        return None
    if func is F.linear and args and isinstance(args[0], LazySums) and args[0].bias is None:
        weight: Tensor = args[1] if len(args) > 1 else kwargs["weight"]
        bias: Tensor | None = args[2] if len(args) > 2 else kwargs.get("bias")
        return args[0].mapped(lambda values: F.linear(values, weight), bias)
    if func in PRODUCTS and len(args) == 2 and not kwargs:
        return _scaled(*args)
    if func in ADDITIONS and len(args) == 2 and not kwargs:
        left, right = args
        fits = all(isinstance(value, LazySums | LazyRows) for value in args) and left.shape == right.shape
        if fits:
            terms = [value.terms if isinstance(value, LazySums) else (Whole(value),) for value in args]
            biases = [value.bias for value in args if isinstance(value, LazySums) and value.bias is not None]
            return LazySums(terms[0] + terms[1], left.shape[0], sum(biases) if biases else None)  # type: ignore[arg-type]
    return None


def _scaled(left: Any, right: Any) -> LazySums | None:
    """Return the product of lazy sums and a number; None for other products."""
    sums, factor = (left, right) if isinstance(left, LazySums) else (right, left)
    if isinstance(factor, Tensor) and not isinstance(factor, Lazy) and factor.numel() == 1:
        factor = float(factor)
    if sums.bias is not None or not isinstance(factor, int | float):
        return None
    return sums if factor == 1 else sums.mapped(lambda values: values * factor, None)
