"""Run a model in float64, whatever the type of its weights and of the tensors that its code makes.

An edge often changes a probability by less than float32 can resolve. So engines that run the model's own code give it
copies of its weights and arguments in float64. Code that makes float32 tensors (`torch.zeros(n, h)`) or casts to
float32 (`x.float()`) runs inside `WideFloats`, which makes them float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.marked_tensors import tensors_in
from attree.attention.stand_ins import copied, eval_mode, stand_in
from attree.errors import ArgumentError
from attree.subject import ModelCall, Subject
from attree.subject.facts import facts_of
from attree.tensors.function_modes import SwitchedMode
from attree.tensors.precision import difference, exact_dtype

RUNS_WIDE = "runs in float64"
"""The fact that a model returns the same outputs in the exact type of the device, up to rounding."""

MAKES_NARROW = "makes float32"
"""The fact whether a model's code makes tensors of narrow types from wide weights and arguments."""

NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})

_CASTS = {Tensor.float: Tensor.double, Tensor.half: Tensor.double, Tensor.bfloat16: Tensor.double}
_NAMES = frozenset({"torch.FloatTensor", "torch.HalfTensor", "torch.BFloat16Tensor"})


class WideFloats(SwitchedMode):
    """Context in which all floating-point tensors that torch functions make are float64; of this thread only.

    A constant such as `torch.tensor(0.1)` keeps the value that it has in float32: it is a number of the model.

    Attributes:
        has_widened: Whether some function would have made a narrow type from none.

    >>> with WideFloats():
    ...     made, cast = torch.zeros(2), torch.tensor([1 / 3], dtype=torch.float64).float()
    >>> made.dtype, bool(cast == 1 / 3)
    (torch.float64, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_widened = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._is_active:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        writes = (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__", "__get__")
        if writes:  # the tensor that is written to must stay itself
            return func(*args, **(kwargs or {}))
        values = (*args, *(kwargs or {}).values())
        wants_narrow = func in _CASTS or any(isinstance(value, torch.dtype) and value in NARROW for value in values)
        func = _CASTS.get(func, func)
        result = func(*map(_wide_argument, args), **{key: _wide_argument(v) for key, v in (kwargs or {}).items()})
        wide = _as_wide(result)
        is_made = isinstance(wide, Tensor) and wide is not result
        if wants_narrow or (
            is_made and not any(isinstance(value, Tensor) and value.dtype in NARROW for value in values)
        ):
            self.has_widened = True
        return wide


def _wide_argument(value: Any) -> Any:
    """Return an argument of a torch function with wide types and tensors."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value in NARROW else value
    if isinstance(value, str):
        return "torch.DoubleTensor" if value in _NAMES else value
    return _as_wide(value)


def _as_wide(value: Any) -> Any:
    """Return tensors of narrow types in float64; other values unchanged."""
    if type(value) is Tensor or isinstance(value, torch.nn.Parameter):
        return value.double() if value.dtype in NARROW else value
    if type(value) in (list, tuple):
        return type(value)(map(_as_wide, value))
    return value


def widened(call: ModelCall) -> ModelCall:
    """Return a call of a copy of its model, with weights and arguments in the exact type of the device."""
    dtype = exact_dtype(call.edge_index.device)
    wide = call.on_model(stand_in(call.user_model, partial(copied, dtype=dtype)))
    return wide.changed(lambda kind, value: _as(value, dtype))


class ExactRun(NamedTuple):
    """A subject in the widest floating-point type in which its model runs.

    Attributes:
        subject: The subject; its attention is captured already.
        attention: Its attention, with weights in the type of the user's arguments.
        dtype: The type in which the model runs.
        context: Returns the context in which to run its calls.
    """

    subject: Subject
    attention: Attention
    dtype: torch.dtype
    context: Callable[[], AbstractContextManager[Any]]


class WideSubject:
    """Makes `ExactRun`s of one subject with the current weights; its arguments are converted once.

    Args:
        subject: The subject.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._dtype = exact_dtype(subject.device)
        self._converted: ModelCall | None = None
        self._is_narrow = False

    def run(self) -> ExactRun:
        """Run the model in the exact type of the device; in its own type, with one warning, if that fails."""
        if not self._is_narrow:
            try:
                return self._wide()
            except ArgumentError:
                raise
            except Exception as error:
                subject = self._subject.with_current_weights()  # raises the model's own error, if it fails anyway
                _ = subject.layers
                self._is_narrow = True
                if self._own_dtype(subject) == self._dtype:
                    raise
                reason = " ".join(str(error).split())[:200]
                warnings.warn(
                    f"{subject.call.name} runs in {self._own_dtype(subject)} only, because it fails in {self._dtype} "
                    f"({type(error).__name__}: {reason}): effects have a larger resolution, see "
                    "attree.defaults.RESOLUTION_FLOAT32.",
                    stacklevel=2,
                )
        subject = self._subject.with_current_weights()
        return ExactRun(subject, subject.layers, self._own_dtype(subject), nullcontext)

    def _wide(self) -> ExactRun:
        """Return the run in the exact type; raise if the model fails there, or computes something else."""
        call = self._subject.call
        if self._converted is None:
            self._converted = call.changed(lambda kind, value: _as(value, self._dtype))
        # Converted arguments stay the same, only the weights are new.
        context = WideFloats if self._dtype == torch.float64 else nullcontext
        with context():
            subject = self._subject.on_call(widened(self._converted))
        attention = subject.layers
        output = attention.output
        facts = facts_of(call)
        if not facts.get(RUNS_WIDE):
            usual = self._subject.with_current_weights().output
            if not isinstance(output, Tensor) or output.shape != usual.shape:
                raise TypeError("its output has another shape")
            apart = difference(output, usual.to(output.dtype), usual.dtype)
            if apart is not None:
                again = self._subject.with_current_weights().output
                if difference(again, usual, usual.dtype) is None:
                    raise ValueError(f"its outputs differ by {apart:.2g}")
            facts[RUNS_WIDE] = True
        if MAKES_NARROW not in facts:
            with context() as wide, torch.no_grad(), eval_mode(subject.model):
                subject.call.run()
            facts[MAKES_NARROW] = wide is not None and wide.has_widened
        needed = context if facts[MAKES_NARROW] else nullcontext  # it takes time
        return ExactRun(subject, _narrow(attention, weight_dtype(call)), self._dtype, needed)

    def _own_dtype(self, subject: Subject) -> torch.dtype:
        dtypes = [
            tensor.dtype for tensor in (*subject.model.parameters(), subject.output) if tensor.is_floating_point()
        ]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def weight_dtype(call: ModelCall) -> torch.dtype:
    """Return the type of captured attention weights: that of the first floating-point argument of a call."""
    for value in call.values:
        for tensor in tensors_in(value):
            if tensor.is_floating_point():
                return tensor.dtype
    return torch.get_default_dtype()


def _narrow(attention: Attention, dtype: torch.dtype) -> Attention:
    """Return attention whose weights have been rounded to a type."""
    uniform_weights = (
        None
        if attention.uniform_weights is None
        else tuple(None if values is None else values.to(dtype) for values in attention.uniform_weights)
    )
    of_messages = None if attention.of_messages is None else _narrow(attention.of_messages, dtype)
    weights = tuple(weight.to(dtype) for weight in attention.weights)
    return replace(attention, weights=weights, uniform_weights=uniform_weights, of_messages=of_messages)


def _as(value: Any, dtype: torch.dtype) -> Any:
    """Return an argument with its floating-point tensors in a type."""
    if isinstance(value, Mapping):
        return {key: _as(entry, dtype) for key, entry in value.items()}
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
