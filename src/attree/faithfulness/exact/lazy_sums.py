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

from attree.faithfulness.exact.lazy_rows import METADATA, Lazy, LazyRows, weighted_sums
from attree.tensors.arrays import expand, pointers, take_rows

FEW = 8
"""Less than one row in this many is computed alone, not as a row of the sums of all nodes."""


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
class Recorded:
    """Term of a sum: rows of the sums of all nodes, each times a factor.

    Attributes:
        matrix: The weights of the sums.
        values: Features of all sources.
        node: The row of the matrix for each row; None for all.
        scale: Factor of each row; None for 1.
    """

    matrix: SumMatrix
    values: LazyRows
    node: Tensor | None = None
    scale: Tensor | None = None

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor."""
        name, node = (self.values.name, id(self.matrix)), self.node
        store, count = self.values.store, self.matrix.ptr.numel() - 1
        if node is not None and not store.has(name) and node.numel() * FEW < count:
            out = self.matrix.rows(node, self.values)
        else:
            whole = store.get(name, lambda: self.matrix.times(self.values.read()))
            out = whole.clone() if node is None else take_rows(whole, node)
        return out if self.scale is None else out.mul_(self.scale.unsqueeze(1))


@dataclass(frozen=True)
class Entries:
    """Term of a sum: features of single sources, each times a factor, added to some rows.

    Attributes:
        row: The row of each entry.
        factor: The factor of each entry.
        values: The features of each entry's source.
    """

    row: Tensor
    factor: Tensor
    values: LazyRows


Term = Recorded | Entries | LazyRows
"""A term of a sum; lazy rows are added row by row."""


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
        values = _values(terms[0])
        self = torch.Tensor._make_wrapper_subclass(
            cls, (num_rows, *values.shape[1:]), dtype=values.dtype, device=values.device
        )
        self.terms, self.bias, self._changed = terms, bias, None
        return self

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor that shares no memory with others."""
        if self._changed is not None:
            return self._changed.clone()
        out: Tensor | None = None
        for term in sorted(self.terms, key=lambda term: isinstance(term, Entries)):
            if isinstance(term, Entries):
                assert out is not None
                out.index_add_(0, term.row, term.values.read() * term.factor.unsqueeze(1))
            else:
                out = term.read() if out is None else out.add_(term.read())
        assert out is not None
        return out if self.bias is None else out.add_(self.bias)

    def at(self, rows: Tensor) -> Tensor:
        """Return some rows of a sum that was recorded for all nodes, as an ordinary tensor."""
        if self._changed is not None:
            return self._changed[rows]
        terms = [
            replace(term, node=rows) if isinstance(term, Recorded) else term.at(rows)
            for term in self.terms
            if not isinstance(term, Entries)
        ]
        return LazySums(tuple(terms), rows.numel(), self.bias).read()

    def mapped(self, function: Callable[[LazyRows], LazyRows | None], bias: Tensor | None) -> LazySums | None:
        """Return the sum of mapped features; None if one of them cannot be mapped."""
        terms: list[Term] = []
        for term in self.terms:
            values = function(_values(term))
            if values is None:
                return None
            terms.append(values if isinstance(term, LazyRows) else replace(term, values=values))
        return LazySums(tuple(terms), self.shape[0], bias)

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


def _values(term: Term) -> LazyRows:
    return term if isinstance(term, LazyRows) else term.values


ADDITIONS = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__})
"""Functions that add two tensors."""


def _keep_lazy(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LazySums | None:
    """Return the result of a linear layer or of an addition as lazy sums; None for any other function."""
    if any(isinstance(value, LazySums) and value._changed is not None for value in args):
        return None
    if func is F.linear and args and isinstance(args[0], LazySums) and args[0].bias is None:
        weight: Tensor = args[1] if len(args) > 1 else kwargs["weight"]
        bias: Tensor | None = args[2] if len(args) > 2 else kwargs.get("bias")
        return args[0].mapped(lambda values: _linear(values, weight), bias)
    if func in ADDITIONS and len(args) == 2 and not kwargs:
        left, right = args
        fits = all(isinstance(value, LazySums | LazyRows) for value in args) and left.shape == right.shape
        if fits:
            terms = [value.terms if isinstance(value, LazySums) else (value,) for value in args]
            biases = [value.bias for value in args if isinstance(value, LazySums) and value.bias is not None]
            return LazySums(terms[0] + terms[1], left.shape[0], sum(biases) if biases else None)  # type: ignore[arg-type]
    return None


def _linear(values: LazyRows, weight: Tensor) -> LazyRows | None:
    mapped = F.linear(values, weight)
    return mapped if isinstance(mapped, LazyRows) else None
