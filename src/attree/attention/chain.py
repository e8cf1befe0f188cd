"""Which calls of attention convolutions are the layers of a network: found by what feeds what, not by their order.

A computation tree has one step a layer, so layer k must work on what layer k - 1 returned. Skips are welcome: a
residual, jumping knowledge or the model's input may go into any layer as well. Calls that the output does not depend on
(an auxiliary head, a second pass for another loss) are no layers. Calls side by side are no chain, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.provenance import Marks, tensors_in
from attree.attention.recording import LayerRecord, Records
from attree.attention.softmax_tap import attention_convs
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
            several = "" if isinstance(output, Tensor) else " (all that the model returns counts)"
            raise UnsupportedModelError(
                "Expected attention layers that form a chain, each working on what the one before it returned, but "
                f"{describe(records, after)} does not work on what {describe(records, before)} returned, and the "
                f"output depends on both{several}."
            )
    return tuple(calls)


def check_left_out(model: nn.Module, run: Callable[[], Any], calls: Sequence[int], output: Any) -> None:
    """Raise unless the model returns `output` also when all other calls return something else.

    Args:
        model: The model.
        run: Runs it again on the same inputs.
        calls: The calls that are layers.
        output: What it returned.
    """
    number = count()

    def alter(conv: nn.Module, inputs: Any, returned: Any) -> Any:
        return returned if next(number) in calls else _altered(returned)

    with ExitStack() as stack:
        for conv in attention_convs(model):
            stack.callback(conv.register_forward_hook(alter).remove)
        again = run()
    for one, other in zip(tensors_in(output), tensors_in(again), strict=True):
        if not torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise UnsupportedModelError(
                "Expected the output to depend on the attention layers that torch operations lead back to, but it "
                "also depends on others: some step between them is computed outside torch."
            )


def describe(records: Sequence[LayerRecord], call: int) -> str:
    """A call's convolution by name and class, and which call it is if the convolution is called more than once."""
    record = records[call]
    name = f"`{record.name}` ({type(record.conv).__name__})" if record.name else type(record.conv).__name__
    same = [number for number, other in enumerate(records) if other.conv is record.conv]
    return name if len(same) == 1 else f"call {same.index(call) + 1} of {name}"


def _altered(returned: Any) -> Any:
    """Other numbers of the same shape."""
    if isinstance(returned, tuple):
        return tuple(_altered(item) for item in returned)
    return returned.flip(0) * 2 + 1 if isinstance(returned, Tensor) and returned.is_floating_point() else returned


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
