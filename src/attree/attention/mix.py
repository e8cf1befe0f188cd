"""The mix of a tensor (the convolution calls that it was computed from, with factors), and rules for torch operations.

A *mark* is the index of a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

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
