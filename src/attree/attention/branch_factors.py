"""Which calls a tensor was computed from, with what factors: sums, means and concatenations of branches.

A *mark* is the index of a call.

While a `Combination` is open, it traces the factors of marked tensors through every torch operation. A term of a sum
and a part of a concatenation have factor 1. A term of a mean over n branches has factor 1 / n. A term of a weighted sum
has its weight as the factor, if that is one number. Operations on a single branch (activations, norms, linear maps) do
not change its factor: factors only compare branches, and any linear map can absorb a scale. Operations that are not
linear in their branches (a maximum, an LSTM, a product of two branches) are recorded by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from attree.attention.marked_tensors import Provenance, storage_of, tensors_in

Factors = Mapping[int, float]
"""The factor of each mark."""


@dataclass(frozen=True)
class Mix:
    """The calls that a tensor was computed from.

    Attributes:
        factors: The factor of each mark.
        slices: For stacked branches, the factors of each; otherwise empty.
        dim: The dimension along which branches are stacked.
        is_fixed: Whether no factor was read from a tensor, whose values may change in training.
    """

    factors: Factors
    slices: tuple[Factors, ...] = ()
    dim: int = 0
    is_fixed: bool = True

    @classmethod
    def stacked(cls, slices: Sequence[Factors], dim: int, is_fixed: bool) -> Mix:
        return cls(total_of(slices), tuple(slices), dim, is_fixed)


@dataclass
class Operation:
    """One torch operation: its name, arguments and result, and the mixes of its marked arguments."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Tensor
    is_pointwise: bool
    read: list[tuple[Tensor, Mix]] = field(default_factory=list)

    @property
    def is_fixed(self) -> bool:
        return all(mix.is_fixed for _, mix in self.read)

    def mix_of(self, value: Any) -> Mix | None:
        """Return the mix of an argument; None if it is not marked."""
        return next((mix for tensor, mix in self.read if tensor is value), None)


def total_of(parts: Iterable[Factors]) -> dict[int, float]:
    """Return the factors of a sum."""
    total: dict[int, float] = {}
    for part in parts:
        for mark, factor in part.items():
            total[mark] = total.get(mark, 0.0) + factor
    return total


def times_of(factors: Factors, scale: float) -> dict[int, float]:
    """Return the factors, each multiplied by the same number."""
    return {mark: factor * scale for mark, factor in factors.items()}


def marks_of(read: list[tuple[Tensor, Mix]]) -> list[int]:
    """Return the marks of some tensors, ascending."""
    return sorted({mark for _, mix in read for mark in mix.factors})


def mix_of_sum(operation: Operation) -> Mix:
    """Return the mix of a sum or difference; stacked branches stay separate if one argument is marked."""
    scale = float(operation.kwargs.get("alpha", 1)) * (-1 if "sub" in operation.name else 1)
    scales = (scale, 1.0) if operation.name == "rsub" else (1.0, scale)
    parts = [
        (mix, scale_of_part)
        for value, scale_of_part in zip(operation.args[:2], scales, strict=False)
        if (mix := operation.mix_of(value)) is not None
    ]
    stacked = [mix for mix, _ in parts if mix.slices]
    if len(stacked) == 1 and len(parts) == 1 and operation.result.shape == operation.read[0][0].shape:
        return stacked[0]
    return Mix(
        total_of([times_of(mix.factors, scale_of_part) for mix, scale_of_part in parts]), is_fixed=operation.is_fixed
    )


def mix_of_product(operation: Operation) -> Mix:
    """Return the mix of a product with an unmarked factor: a single number, or one number per stacked branch."""
    tensor, mix = operation.read[0]
    other = next((value for value in operation.args[:2] if value is not tensor), 1.0)
    is_division = operation.name.startswith("div")
    if is_division and operation.args[0] is not tensor:
        return Mix(mix.factors, is_fixed=mix.is_fixed)  # an unmarked value divided by a branch
    if not isinstance(other, Tensor):
        scale = 1 / float(other) if is_division else float(other)
        slices = tuple(times_of(factors, scale) for factors in mix.slices)
        return Mix(times_of(mix.factors, scale), slices, mix.dim, mix.is_fixed)
    fits = tensor.shape == operation.result.shape
    if other.numel() == 1:
        scales = [float(other)] * max(len(mix.slices), 1)
    elif mix.slices and fits and _is_one_each(other, tensor, mix):
        scales = other.reshape(-1).tolist()
    else:
        return mix if fits else Mix(mix.factors, is_fixed=mix.is_fixed)
    scales = [1 / scale if is_division else scale for scale in scales]
    if not mix.slices:
        return Mix(times_of(mix.factors, scales[0]), is_fixed=False)
    return Mix.stacked(
        [times_of(factors, scale) for factors, scale in zip(mix.slices, scales, strict=True)], mix.dim, False
    )


def _is_one_each(other: Tensor, tensor: Tensor, mix: Mix) -> bool:
    """Whether a tensor holds one number per stacked branch, along the dimension of the stack."""
    place = mix.dim - (tensor.dim() - other.dim())
    return other.numel() == len(mix.slices) and 0 <= place < other.dim() and other.shape[place] == len(mix.slices)


def mix_of_stack(operation: Operation) -> Mix | None:
    """Return the mix of branches stacked along a new dimension, or concatenated along one of size 1; otherwise None."""
    tensors = list(operation.args[0])
    if any(not isinstance(tensor, Tensor) for tensor in tensors):
        return None
    dim = int(operation.args[1] if len(operation.args) > 1 else operation.kwargs.get("dim", 0))
    dim %= operation.result.dim()
    if operation.name == "cat" and any(tensor.dim() <= dim or tensor.shape[dim] != 1 for tensor in tensors):
        return None
    slices = [mix.factors if (mix := operation.mix_of(tensor)) is not None else {} for tensor in tensors]
    return Mix.stacked(slices, dim, operation.is_fixed)


def order_of(operation: Operation, dims: int) -> list[int]:
    """Return, for each dimension of the result, the dimension of the argument."""
    if operation.name == "permute":
        return [int(dim) % dims for dim in operation.args[1]]
    order = list(range(dims))
    first, second = (0, dims - 1) if operation.name == "t" else (int(dim) % dims for dim in operation.args[1:3])
    order[first], order[second] = order[second], order[first]
    return order


def dims_reduced_by(operation: Operation, dims: int) -> list[int] | None:
    """Return the dimensions that an operation reduces; None if it is not a reduction."""

    if operation.name not in ("sum", "mean", "max", "min", "amax", "amin", "prod", "logsumexp", "norm"):
        return None
    dim = operation.args[1] if len(operation.args) > 1 else operation.kwargs.get("dim")
    if isinstance(dim, int):
        return [dim % dims]
    return [int(entry) % dims for entry in dim] if dim else list(range(dims))


View = tuple[StorageWeakRef, int, tuple[int, ...], tuple[int, ...]]
"""Key of a view: storage, offset, shape and strides."""

ADDED = {"add", "add_", "sub", "sub_", "rsub"}
SCALED = {"mul", "mul_", "div", "div_"}
PLACED = {"cat", "copy_", "index_put", "index_put_", "index_copy", "index_copy_", "slice_scatter", "select_scatter"}
PLACED |= {"index_add", "index_add_", "scatter_add", "scatter_add_", "index_select", "new_zeros", "masked_fill"}
BY_ROW = {"native_layer_norm", "native_dropout", "clone", "detach", "contiguous", "_to_copy", "alias", "lift_fresh"}
"""Operations that keep stacked branches in place, besides all that torch tags as pointwise."""

NAMES = {
    "mkldnn_rnn_layer": "LSTM",
    "lstm": "LSTM",
    "gru": "GRU",
    "maximum": "max",
    "amax": "max",
    "minimum": "min",
    "amin": "min",
    "mul": "product",
    "mul_": "product",
    "div": "quotient",
    # A matrix product of stacked branches reshapes them first.
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "_unsafe_view", "view", "expand"), "matrix product"),
}
"""Common names of operations that are not linear in their branches."""


class Combination(Provenance):
    """Dispatch mode that traces marked tensors through torch operations, with the factor of each in a result.

    Attributes:
        nonlinear: For each pair of marks that a nonlinear operation combined, the name of the operation.

    >>> x, y = torch.ones(2), torch.ones(2)
    >>> with Combination() as combination:
    ...     combination.mark(x, 0)
    ...     combination.mark(y, 1)
    ...     mean = torch.stack([x, y.relu()]).mean(0)
    ...     weighted = 0.25 * x + y
    ...     largest = torch.maximum(x, y)
    >>> combination.mix(mean).factors, combination.mix(weighted).factors
    ({0: 0.5, 1: 0.5}, {0: 0.25, 1: 1.0})
    >>> combination.nonlinear
    {frozenset({0, 1}): 'max'}
    """

    def __init__(self) -> None:
        super().__init__()
        self.nonlinear: dict[frozenset[int], str] = {}
        self._mixes: dict[StorageWeakRef, Mix] = {}
        # Views of stacked branches share memory, but may have the branches along another dimension.
        self._views: dict[View, Mix] = {}

    def mark(self, value: Any, mark: int) -> None:
        super().mark(value, mark)
        for tensor in tensors_in(value):
            self._mixes[storage_of(tensor)] = Mix({mark: 1.0})

    def _mix_of(self, tensor: Tensor) -> Mix | None:
        return self._views.get(_view(tensor)) or self._mixes.get(storage_of(tensor))

    def mix(self, value: Any) -> Mix:
        """Return the mix of the tensors in `value`; for several tensors, each mark has its largest absolute factor.

        The sign is dropped because a linear map of the branch can absorb it: a difference weighs both branches equally.
        """
        mixes = [mix for tensor in tensors_in(value) if (mix := self._mix_of(tensor)) is not None]
        factors: dict[int, float] = {}
        for mix in mixes:
            for mark, factor in mix.factors.items():
                factors[mark] = max(factors.get(mark, 0.0), abs(factor))
        return Mix(factors, is_fixed=all(mix.is_fixed for mix in mixes))

    def combine(self, name: str, inputs: Any, result: Any) -> None:
        """Note that a nonlinear function of this name, which was not traced, computed a result from some inputs."""
        mixes = [mix for tensor in tensors_in(inputs) if (mix := self._mix_of(tensor)) is not None]
        parts = [part for mix in mixes for part in (mix.slices or (mix.factors,))]
        if not parts:
            return
        self._record(name, parts)
        marks = sorted({mark for part in parts for mark in part})
        factors = {mark: max(part.get(mark, 0.0) for part in parts) for mark in marks}
        for tensor in tensors_in(result):
            self._marks[storage_of(tensor)] = frozenset(marks)
            self._mixes[storage_of(tensor)] = Mix(factors, is_fixed=all(mix.is_fixed for mix in mixes))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch operation, and store the factor of each marked tensor in the results of the operation."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self._is_paused or not self._mixes:
            return result
        kwargs = kwargs or {}
        first = next(tensors_in(result), None)
        if first is None or not self.marks(result):
            return result
        name = func.overloadpacket.__name__
        operation = Operation(name, args, kwargs, first, torch.Tag.pointwise in func.tags)
        for tensor in tensors_in((args, kwargs)):
            if (mix := self._mix_of(tensor)) is not None:
                operation.read.append((tensor, mix))
        if operation.read:
            mix = self._combined(operation)
            read_storages = {storage_of(tensor) for tensor, _ in operation.read}
            for tensor in tensors_in(result):
                storage = storage_of(tensor)
                if mix.slices:
                    self._views[_view(tensor)] = mix
                if func._schema.is_mutable or storage not in read_storages:
                    self._mixes[storage] = Mix(mix.factors, is_fixed=mix.is_fixed)
        return result

    def _combined(self, operation: Operation) -> Mix:
        """Return the mix of the result of an operation."""
        name, read = operation.name, operation.read
        if name in ADDED:
            return mix_of_sum(operation)
        if name in ("stack", "cat") and (stacked := mix_of_stack(operation)) is not None:
            return stacked
        if name in SCALED and len(read) == 1:
            return mix_of_product(operation)
        if len(read) == 1:
            return self._of_one(operation)
        if name in PLACED:
            return Mix(total_of([mix.factors for _, mix in read]), is_fixed=operation.is_fixed)
        if name == "lerp" and isinstance(operation.args[2], int | float) and len(read) == 2:
            weight = float(operation.args[2])
            start, end = operation.mix_of(operation.args[0]), operation.mix_of(operation.args[1])
            assert start is not None
            assert end is not None
            return Mix(total_of([times_of(start.factors, 1 - weight), times_of(end.factors, weight)]))
        self._record(name, [mix.factors for _, mix in read])
        # Several arguments can have the same mark, as in x * sigmoid(x).
        return Mix({mark: max(mix.factors.get(mark, 0.0) for _, mix in read) for mark in marks_of(read)})

    def _of_one(self, operation: Operation) -> Mix:
        """Return the mix of an operation with one marked argument: stacked branches stay separate, or are merged."""
        (tensor, mix), name = operation.read[0], operation.name
        if not mix.slices or tensor.dim() <= mix.dim or tensor.shape[mix.dim] != len(mix.slices):
            return Mix(mix.factors, is_fixed=mix.is_fixed)
        same_shape = operation.result.shape == tensor.shape
        if same_shape and (operation.is_pointwise or name in BY_ROW):
            return mix
        if name == "unsqueeze":
            dim = int(operation.args[1]) % (tensor.dim() + 1)
            return Mix(mix.factors, mix.slices, mix.dim + (dim <= mix.dim), mix.is_fixed)
        if name in ("transpose", "permute", "t"):
            order = order_of(operation, tensor.dim())
            return Mix(mix.factors, mix.slices, order.index(mix.dim), mix.is_fixed)
        dims = dims_reduced_by(operation, tensor.dim())
        if dims is not None and mix.dim not in dims:
            keeps_dims = operation.result.dim() == tensor.dim()
            dim = mix.dim if keeps_dims else mix.dim - sum(reduced_dim < mix.dim for reduced_dim in dims)
            return Mix(mix.factors, mix.slices, dim, mix.is_fixed)
        if dims is not None and name in ("sum", "mean"):
            share = 1.0 if name == "sum" else 1 / len(mix.slices)
            return Mix(times_of(total_of(mix.slices), share), is_fixed=mix.is_fixed)
        self._record(name, mix.slices)
        return Mix(mix.factors, is_fixed=mix.is_fixed)

    def _record(self, name: str, parts: Iterable[Factors]) -> None:
        """Record the name of a nonlinear operation that combines these branches.

        Marks that occur in both parts were combined before: x * sigmoid(x) is a function of x, even if x is a sum.
        """

        for factors, other_factors in combinations(parts, 2):
            for first in factors:
                for second in other_factors:
                    if first != second and not (first in other_factors and second in factors):
                        self.nonlinear.setdefault(frozenset((first, second)), NAMES.get(name, name))


def _view(tensor: Tensor) -> View:
    if tensor.layout != torch.strided:
        return storage_of(tensor), 0, (), ()
    return storage_of(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
