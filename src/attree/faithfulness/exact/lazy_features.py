"""Feature rows that are looked up only when they are read, and products with sparse features.

The model's input does not depend on the reduced edge: its rows are rows of one tensor. Row-wise maps of this tensor,
such as a linear layer, are computed once per recorded pass, not once for every row of the same node. Bag-of-words
features are multiplied as sparse matrices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.tensors.arrays import pointers, take_rows
from attree.tensors.precision import exact_dtype

SPARSE_SHARE = 20
"""Features are multiplied as a sparse matrix if less than one number in this many is not 0."""


def compact_features(x: Tensor) -> Tensor:
    """Return features as a sparse matrix if few are not 0 (as in bags of words); this makes the first projection cheap.

    Sparse matrices are returned in the exact dtype of the device. Half-precision features are returned unchanged,
    because torch has no sparse product for them.
    """
    x, dtype = x.detach(), exact_dtype(x.device)
    if x.layout != torch.strided:
        with _no_beta_warning():
            return x.to(dtype)
    fits = _has_sparse(x.device) and x.dtype.itemsize >= 4 and x.dim() == 2
    if not fits:
        return x
    place = (x != 0).reshape(-1).nonzero().view(-1)
    if place.numel() * SPARSE_SHARE >= x.numel():
        return x
    rows, width = x.shape
    row = place.div(width, rounding_mode="floor")
    ptr = pointers(row.bincount(minlength=rows))
    with _no_beta_warning():  # `x.to_sparse_csr()` gives the same result and takes twice as long
        return torch.sparse_csr_tensor(
            ptr, place - row * width, take_rows(x.reshape(-1), place).to(dtype), x.shape, check_invariants=False
        )


def weighted_sums(ptr: Tensor, row: Tensor, source: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Return, for each row and head, the weighted sum of the values of its sources, [rows, heads, channels].

    One head is one matrix product; several heads are faster entry by entry.

    Args:
        ptr: The entries of row j are `ptr[j]:ptr[j + 1]`.
        row: The row of each entry.
        source: The source node of each entry.
        weights: The weight of each entry, [entries, heads].
        values: Values of all nodes, [nodes, heads, channels].
    """
    num_rows, (num_nodes, heads, channels) = ptr.numel() - 1, values.shape
    if heads == 1 and _has_sparse(values.device):
        with _no_beta_warning():
            matrix = torch.sparse_csr_tensor(
                ptr, source, weights.reshape(-1), (num_rows, num_nodes), check_invariants=False
            )
        return torch.sparse.mm(matrix, values.reshape(num_nodes, channels)).unsqueeze(1)
    entries = take_rows(values, source).mul_(weights.unsqueeze(-1))
    return values.new_zeros(num_rows, heads, channels).index_add_(0, row, entries)


def _has_sparse(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda")


@contextmanager
def _no_beta_warning() -> Iterator[None]:
    """Silence torch's one-time notice that sparse CSR is in beta; the functions used here have long been stable."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        yield


ACTIVATIONS = frozenset(
    {F.relu, F.elu, F.leaky_relu, F.gelu, F.silu, torch.relu, torch.tanh, torch.sigmoid, Tensor.relu, Tensor.tanh}
)
"""Element-wise functions."""

NORMS = frozenset({F.layer_norm, F.batch_norm})
"""Row-wise functions, outside training."""

PIECE_BYTES = 64 * 2**20
"""Bytes of rows that are converted to the exact dtype at a time."""

METADATA = frozenset(
    {
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        Tensor.is_floating_point,
        *(
            vars(torch._C.TensorBase)[name].__get__
            for name in ("shape", "dtype", "device", "ndim", "layout", "is_sparse", "requires_grad")
        ),
    }
)
"""Functions and properties that do not read any values."""


class Store:
    """Cache for results of row-wise maps, so that each map is computed once per recorded pass.

    Args:
        fixed: Tensors that do not change while the store is used: the model's parameters. Cache keys consist of these
            and of arguments that are not tensors.
    """

    def __init__(self, fixed: Iterable[Tensor]) -> None:
        self._fixed = {id(tensor): tensor for tensor in fixed}
        self._known: dict[Any, Tensor] = {}

    def key(self, *values: Any) -> tuple[Any, ...] | None:
        """Return a cache key for arguments; None if they include other tensors, which may change."""
        if all(not isinstance(value, Tensor) or id(value) in self._fixed for value in values):
            return tuple(id(value) if isinstance(value, Tensor) else value for value in values)
        return None

    def has(self, key: Any) -> bool:
        """Whether the result of a key is cached."""
        return key in self._known

    def get(self, key: Any, make: Callable[[], Tensor]) -> Tensor:
        """Return the cached result of a key; compute it first if needed."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


class Lazy(Tensor):
    """A tensor whose rows are computed when they are read."""

    def at(self, index: Tensor) -> Tensor:
        """Return some rows."""
        raise NotImplementedError

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor that shares no memory with others."""
        raise NotImplementedError


class LazyRows(Lazy):
    """Rows `whole[positions]` in a floating-point dtype, looked up when they are read.

    Attributes:
        whole: All rows, dense or sparse, perhaps in a narrower dtype.
        compact: The same rows as a sparse matrix if few numbers are not 0, else `whole` itself.
        positions: Positions of the rows; None for all.
    """

    whole: Tensor
    compact: Tensor
    positions: Tensor | None
    _store: Store
    _name: Any

    @property
    def store(self) -> Store:
        """The cache of results."""
        return self._store

    @property
    def name(self) -> Any:
        """Key of the rows in the cache."""
        return self._name

    @staticmethod
    def __new__(
        cls,
        whole: Tensor,
        index: Tensor | None,
        dtype: torch.dtype,
        store: Store,
        name: Any,
        compact: Tensor | None = None,
    ) -> LazyRows:
        rows = whole.shape[0] if index is None else index.numel()
        self = torch.Tensor._make_wrapper_subclass(cls, (rows, *whole.shape[1:]), dtype=dtype, device=whole.device)
        self.whole, self.positions, self._store, self._name = whole, index, store, name
        self.compact = whole if compact is None else compact
        return self

    def at(self, index: Tensor) -> LazyRows:
        """Return some rows of `whole`."""
        return LazyRows(self.whole, index, self.dtype, self._store, self._name, self.compact)

    def read(self) -> Tensor:
        """Return the rows as an ordinary tensor that shares no memory with others."""
        if self.whole.layout != torch.strided:
            rows = self.whole.to_sparse_coo()
            return (rows if self.positions is None else rows.index_select(0, self.positions)).to_dense().to(self.dtype)
        if self.positions is None:
            return self.whole.to(self.dtype, copy=True)
        return self.whole.index_select(0, self.positions).to(self.dtype)

    def all_rows(self) -> Tensor:
        """Return all rows in their type, as an ordinary tensor."""
        whole = self.whole.to_dense() if self.whole.layout != torch.strided else self.whole
        return whole.to(self.dtype)

    def _mapped(self, make: Callable[[Tensor], Tensor], key: Any) -> LazyRows:
        """Return the same rows after a row-wise map, which is applied to all rows once."""
        name = (self._name, key)
        whole = self._store.get(name, lambda: self._map_all(make))
        return LazyRows(whole, self.positions, self.dtype, self._store, name)

    def _map_all(self, make: Callable[[Tensor], Tensor]) -> Tensor:
        if self.compact.layout != torch.strided:
            return make(self.compact.to(self.dtype))
        rows = max(PIECE_BYTES // max(self.whole[:1].numel() * 8, 1), 1)
        return torch.cat([make(part.to(self.dtype)) for part in self.whole.split(rows)])

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        lazy = _keep_lazy(func, args, kwargs)
        return func(*_read(args), **_read(kwargs)) if lazy is None else lazy


def _dispatch(func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Look up lazy arguments before an operation reaches torch."""
    return func(*_read(args), **_read(kwargs or {}))


LazyRows.__torch_dispatch__ = staticmethod(_dispatch)


def _read(values: Any) -> Any:
    """Return the same arguments with lazy rows replaced by ordinary tensors."""
    return torch.utils._pytree.tree_map_only(LazyRows, LazyRows.read, values)


def _keep_lazy(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LazyRows | None:
    """Return the result of a row-wise map as lazy rows; None if the function is not known to be row-wise."""
    x = args[0] if args else None
    if func in SUMS | PRODUCTS and len(args) == 2 and not kwargs and _are_same_rows(args):
        return _combined(func, args)
    if func in JOINS and _are_same_rows(x) and _is_by_row(args[1:], kwargs):
        return _combined(lambda *rows: torch.cat(rows, dim=-1), x)
    if func in PRODUCTS and len(args) == 2 and not kwargs:
        return _scaled(*args)
    if not isinstance(x, LazyRows) or x.dim() != 2:
        return None
    if func is F.dropout:
        return None if kwargs.get("training", True) else x
    key = x._store.key(func, *args[1:], *kwargs, *kwargs.values())
    if key is None:
        return None
    if func is F.linear:
        return x._mapped(lambda rows: _linear(rows, *args[1:], **kwargs), key)
    # Skip functions that work in place, are in training mode, or look across rows.
    switched = any(value is True for value in (*args[1:], *kwargs.values()))
    across = func is F.layer_norm and (len(args) < 2 or len(args[1]) != 1)
    if func in ACTIVATIONS | NORMS and not switched and not across and x.compact.layout == torch.strided:
        return x._mapped(lambda rows: func(rows, *args[1:], **kwargs), key)
    return None


PRODUCTS = frozenset({torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__})
"""Functions that multiply two values."""


SUMS = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__})
"""Functions that add or subtract two values."""

JOINS = frozenset({torch.cat, torch.concat, torch.concatenate})
"""Functions that join tensors."""


def _are_same_rows(values: Any) -> TypeGuard[Sequence[LazyRows]]:
    """Whether values are matrices of lazy rows of the same nodes and type, of which some belong to a table."""
    if not isinstance(values, list | tuple) or not all(isinstance(rows, LazyRows) for rows in values):
        return False
    if all(type(rows) is LazyRows for rows in values):
        return False
    first = values[0]
    return all(
        rows.dim() == 2
        and rows.positions is first.positions
        and rows.dtype == first.dtype
        and rows.is_floating_point()
        and rows.whole.shape[0] == first.whole.shape[0]
        for rows in values
    )


def _is_by_row(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether tensors are joined row by row."""
    dims = [*args, *kwargs.values()]
    return not set(kwargs) - {"dim", "axis"} and len(dims) == 1 and dims[0] in (1, -1)


def _combined(make: Callable[..., Tensor], values: Sequence[LazyRows]) -> LazyRows | None:
    """Return a row-wise function of rows of the same nodes, which is applied to all rows once."""
    first = values[0]
    widths = {rows.shape[1] for rows in values}
    name = (getattr(make, "__name__", ""), *(rows.name for rows in values))
    if make not in SUMS | PRODUCTS or len(widths) == 1:
        whole = first.store.get(name, lambda: make(*(rows.all_rows() for rows in values)))
        return LazyRows(whole, first.positions, first.dtype, first.store, name)
    return None


def _scaled(left: Any, right: Any) -> LazyRows | None:
    """Return the product of lazy rows and a number; None for other products."""
    rows, factor = (left, right) if isinstance(left, LazyRows) else (right, left)
    if isinstance(factor, Tensor) and not isinstance(factor, LazyRows) and factor.numel() == 1:
        factor = float(factor)
    if not isinstance(rows, LazyRows) or not isinstance(factor, int | float):
        return None
    return rows if factor == 1 else rows._mapped(lambda whole: whole * factor, ("times", factor))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map to features, which may be sparse."""
    if x.layout == torch.strided:
        return F.linear(x, weight, bias)
    out = torch.sparse.mm(x, weight.t())
    return out if bias is None else out + bias


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Return some rows as an ordinary tensor."""
    rows = x.at(index) if isinstance(x, Lazy) else x[index]
    return rows.read() if isinstance(rows, LazyRows) else rows
