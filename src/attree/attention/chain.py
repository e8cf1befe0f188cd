"""Which calls of attention convolutions are the layers of a network: found by what feeds what, not by their order.

A computation tree has one step a layer, so layer k must work on what layer k - 1 returned. Skips are welcome: a
residual, jumping knowledge or the model's input may go into any layer as well. Calls that the output does not depend on
(an auxiliary head, a second pass for another loss) are no layers. Calls side by side are no chain, and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from attree.attention.provenance import Marks, tensors_in
from attree.attention.recording import LayerRecord, Records
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
            raise no_chain(records, before, after, output)
    return tuple(calls)


def describe(records: Sequence[LayerRecord], call: int) -> str:
    """A call's convolution by name and class, and which call it is if the convolution is called more than once."""
    record = records[call]
    name = f"`{record.name}` ({type(record.conv).__name__})" if record.name else type(record.conv).__name__
    same = [number for number, other in enumerate(records) if other.conv is record.conv]
    return name if len(same) == 1 else f"call {same.index(call) + 1} of {name}"


def no_chain(records: Records, before: int, after: int, output: Any) -> UnsupportedModelError:
    """The refusal of two calls that the output depends on, but of which one does not feed the other."""
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
