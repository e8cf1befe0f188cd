"""Which calls of attention convolutions are the layers of a network: found by what feeds what, not by their order.

A computation tree has one step a layer, so layer k must work on what layer k - 1 returned. Skips are welcome: a
residual, jumping knowledge or the model's input may go into any layer as well. Calls that the output does not depend on
(an auxiliary head, a second pass for another loss) are no layers. Calls side by side are no chain, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.provenance import Marks, tensors_in
from attree.attention.recording import LayerRecord, Records, features_of
from attree.attention.softmax_hook import attention_convs
from attree.errors import UnsupportedModelError


def find_chain(records: Records, output: Any) -> tuple[int, ...]:
    """The calls that are the layers of what the model returned, first layer first.

    Args:
        records: What one forward pass recorded, with its calls followed.
        output: What it returned; of several tensors, all count.

    Raises:
        UnsupportedModelError: If the output depends on calls that are not one chain.
    """
    assert records.provenance is not None
    if not records:
        raise UnsupportedModelError("Expected the forward pass to call attention convolutions, but it called none.")
    ends = records.provenance.marks(output)
    if not ends:
        empty = next(tensors_in(output), None) is None
        got = "it returned no tensor" if empty else "what it returned depends on none of those it called"
        raise UnsupportedModelError(f"Expected the model's output to come from attention convolutions, but {got}.")
    calls = sorted(_reaching(records, ends))
    for before, after in pairwise(calls):
        if before not in (records[after].fed_by or ()):
            raise _no_chain(records, before, after, output)
    return tuple(calls)


def describe(records: Sequence[LayerRecord], call: int) -> str:
    """A call's convolution by name and class, and which call it is if the convolution is called more than once."""
    record = records[call]
    name = f"`{record.name}` ({type(record.conv).__name__})" if record.name else type(record.conv).__name__
    same = [number for number, other in enumerate(records) if other.conv is record.conv]
    return name if len(same) == 1 else f"call {same.index(call) + 1} of {name}"


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
                raise _no_chain(records, before, after, output)


def _no_chain(records: Records, before: int, after: int, output: Any) -> UnsupportedModelError:
    """The error for two calls that the output depends on, where one does not feed the other."""
    several = "" if isinstance(output, Tensor) else " (all that the model returns counts)"
    return UnsupportedModelError(
        "Expected attention layers that form a chain, each working on what the one before it returned, but "
        f"{describe(records, after)} does not work on what {describe(records, before)} returned, and the output "
        f"depends on both{several}."
    )


def _reaching(records: Sequence[LayerRecord], ends: Marks) -> set[int]:
    """All calls that these calls depend on, themselves included."""
    reached: set[int] = set()
    waiting = list(ends)
    while waiting:
        call = waiting.pop()
        if call not in reached:
            reached.add(call)
            waiting.extend(records[call].uses)
    return reached


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
