"""Trace which marked tensors a tensor was computed from, through any torch code.

While a `Provenance` is open, every torch operation passes the marks of its inputs on to its outputs. This works through
`detach`, `no_grad`, in-place changes and views, and needs no gradients. It depends on the operations only, not on the
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

Marks = frozenset[int]
NONE: Marks = frozenset()

ACTIVATIONS = {
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "log_sigmoid_forward": "log_sigmoid",
}
"""Activations that show the meaning of the outputs, by the names of torch operations."""


class Provenance(TorchDispatchMode):
    """Dispatch mode that traces marks from tensor to tensor.

    Attributes:
        blurred: Whether an operation wrote marks to a part of a tensor. Marks belong to a whole storage, so the other
            parts then seem to depend on them, too.

    >>> x, y = torch.ones(2), torch.ones(2)
    >>> with Provenance() as provenance:
    ...     provenance.mark(x, 0)
    ...     provenance.mark(y, 1)
    ...     z = (x + 1).detach()
    >>> sorted(provenance.marks(z)), sorted(provenance.marks([z, y]))
    ([0], [0, 1])
    """

    def __init__(self) -> None:
        super().__init__()
        self.blurred = False
        self._is_paused = False
        self._depth = 0
        self._made_by: dict[StorageWeakRef, str] = {}
        # A weak reference prevents reuse of the storage's address, so a mark cannot pass to another tensor.
        self._marks: dict[StorageWeakRef, Marks] = {}

    def __exit__(self, *exception: Any) -> None:
        self._put_back()  # an exception may have occurred while it was paused
        super().__exit__(*exception)

    def pause(self) -> None:
        """Do not trace operations until `resume`; the caller marks their result itself."""
        self._is_paused = True
        if _get_current_dispatch_mode() is self:  # false if the model has opened a mode of its own
            _pop_mode()
            self._depth = len(_get_current_dispatch_mode_stack())

    def resume(self) -> None:
        """Trace operations again."""
        self._is_paused = False
        self._put_back()

    @property
    def is_paused(self) -> bool:
        """Whether operations are not traced at the moment."""
        return self._is_paused

    def _put_back(self) -> None:
        """Put this mode back on torch's stack of modes, unless a backward pass has restored it already."""
        stack = _get_current_dispatch_mode_stack()
        if not any(mode is self for mode in stack):
            above = [_pop_mode() for _ in stack[self._depth :]]
            for mode in (self, *reversed(above)):
                _push_mode(mode)

    def mark(self, value: Any, mark: int) -> None:
        """Replace the marks of all tensors in `value` by this one mark."""
        for tensor in tensors_in(value):
            self._marks[storage_of(tensor)] = frozenset([mark])

    def marks(self, value: Any) -> Marks:
        """Return the marks of all tensors in `value`."""
        return NONE.union(*(self._marks.get(storage_of(tensor), NONE) for tensor in tensors_in(value)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch operation, and pass the marks of its inputs on to its results and to changed tensors."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._is_paused:
            return result
        read = [storage_of(tensor) for tensor in tensors_in((args, kwargs))]
        marks = NONE if _reads_shapes_only(func) else NONE.union(*(self._marks.get(key, NONE) for key in read))
        if marks:
            changed = list(tensors_in(written_by(func, args, kwargs)))
            self.blurred |= any(_is_part(tensor) for tensor in changed)
            activation = _activation(func, args)
            for tensor in (*changed, *tensors_in(result)):
                key = storage_of(tensor)
                self._marks[key] = self._marks.get(key, NONE) | marks
                if activation is not None:
                    self._made_by[key] = activation
                elif changed:
                    self._made_by.pop(key, None)
        return result

    def activation(self, value: Any) -> str | None:
        """Return the function that computed a tensor, if it is one of `ACTIVATIONS`."""
        return self._made_by.get(storage_of(value)) if isinstance(value, Tensor) else None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a value: a tensor, or nested sequences, mappings and PyG data objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif hasattr(value, "to_dict"):
        yield from tensors_in(value.to_dict())


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """Return the storage of a tensor's values; views of a tensor share it."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout != torch.strided:
        tensor = tensor.values()
    return StorageWeakRef(tensor.untyped_storage())


def _is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a view of a larger one."""
    return tensor.layout == torch.strided and tensor.nbytes < tensor.untyped_storage().nbytes()


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to."""
    if not func._schema.is_mutable:
        return []
    arguments = func._schema.arguments
    named = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    writes = (argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write)
    return [named.get(name) for name in writes]


def _activation(func: Any, args: tuple[Any, ...]) -> str | None:
    """Return which of `ACTIVATIONS` an operation is; a softmax counts only over the last dimension."""
    name = ACTIVATIONS.get(func.overloadpacket.__name__)
    if name in ("softmax", "log_softmax") and args[1] not in (-1, args[0].dim() - 1):
        return None
    return name


def _reads_shapes_only(func: Any) -> bool:
    """Whether an operation makes a new tensor without reading the values of its arguments."""

    name = func.overloadpacket.__name__
    return name.startswith("new_") or name.endswith("_like")
