"""Check a chain of layers by experiment where following torch operations may not be enough."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.chain import no_chain
from attree.attention.provenance import tensors_in
from attree.attention.recording import Records, features_of
from attree.attention.softmax_tap import attention_convs
from attree.errors import UnsupportedModelError


def check_chain(model: nn.Module, run: Callable[[], Any], records: Records, calls: Sequence[int], output: Any) -> None:
    """Raise if a chain does not hold when calls return something else.

    Two things hide from torch operations: values that leave torch on their way, and the parts of a buffer that hold
    different things. The model runs again only where one of these may matter.

    Args:
        model: The model.
        run: Runs it on the inputs of the recorded pass.
        records: What was recorded.
        calls: The calls that are layers.
        output: What the model returned.
    """
    left_out = set(range(len(records))) - set(calls)
    if left_out and _differ(output, _run_altered(model, run, left_out)[0]):
        raise UnsupportedModelError(
            "Expected the output to depend on the attention layers that torch operations lead back to, but it also "
            "depends on others: some step between them is computed outside torch."
        )
    if records.provenance is not None and records.provenance.blurred and len(calls) > 1:
        usual = _run_altered(model, run, ())[1]
        for before, after in pairwise(calls):
            if not _differ(usual[after], _run_altered(model, run, {before})[1][after]):
                raise no_chain(records, before, after, output)


def _run_altered(model: nn.Module, run: Callable[[], Any], altered: Container[int]) -> tuple[Any, list[Any]]:
    """Run a model with what some calls return altered: its output, and the features that each call was given."""
    features: list[list[Tensor]] = []
    opened: list[int] = []

    def begin(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        opened.append(len(features))
        features.append([tensor.clone() for tensor in tensors_in(features_of(conv, args, kwargs))])

    def end(conv: nn.Module, inputs: Any, returned: Any) -> Any:
        return _other(returned) if opened.pop() in altered else returned

    with ExitStack() as stack:
        for conv in attention_convs(model):
            stack.callback(conv.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(conv.register_forward_hook(end).remove)
        return run(), features


def _other(returned: Any) -> Any:
    """Other numbers of the same shape."""
    if isinstance(returned, tuple):
        return tuple(_other(item) for item in returned)
    return returned.flip(0) * 2 + 1 if isinstance(returned, Tensor) and returned.is_floating_point() else returned


def _differ(one: Any, other: Any) -> bool:
    """Whether tensors differ by more than rounding."""
    pairs = zip(tensors_in(one), tensors_in(other), strict=True)
    return not all(torch.allclose(left, right, rtol=1e-4, atol=1e-6, equal_nan=True) for left, right in pairs)
