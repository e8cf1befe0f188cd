"""Find which convolution calls an output was computed from in one forward pass, and check it by altered passes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from torch import Tensor, nn

from attree.attention.conv_edges import find_type
from attree.attention.graph import Graph
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.layer_records import LayerRecord, LayerRecords
from attree.attention.locality import same
from attree.attention.provenance import Marks, tensors_in
from attree.attention.wiring import OUTPUT, CallGraph, Feeds, feeds_of, without_skips
from attree.errors import UnsupportedModelError

CALLED_NONE = (
    "Expected the forward pass to call attention convolutions, but it called none. (A function `call=` must call the "
    "model that it is given.)"
)


def find_calls(records: LayerRecords, output: Any, graph: Graph | None = None) -> CallGraph:
    """Return the calls that the output was computed from, and which call feeds which.

    Args:
        records: The records of one forward pass, made with `follow=True`.
        output: The output of the pass; it may contain several tensors.
        graph: The graph of the pass. Calls that send messages to different node types are not branches of one node, so
            a decoder of pairs may combine them in any way.

    Raises:
        UnsupportedModelError: If the output depends on a call in a way that a computation tree cannot show.
    """
    provenance = records.provenance
    assert provenance is not None
    if not records:
        raise UnsupportedModelError(CALLED_NONE)
    ends = provenance.marks(output)
    if not ends:
        empty = next(tensors_in(output), None) is None
        got = "it returned no tensor" if empty else "its output depends on none of the convolutions that it called"
        raise UnsupportedModelError(f"Expected the model's output to come from attention convolutions, but {got}.")
    mix = provenance.mix(output)
    full = feeds_of(mix.factors, ends, lambda call: records[call].mix.factors)
    calls = sorted(set(full) - {OUTPUT})
    is_fixed = mix.is_fixed and all(records[call].mix.is_fixed for call in calls)
    _check_other_ways(records, calls, output)
    kinds = [None if graph is None else find_type(graph, record.given_edges) for record in records]
    ends_in = tuple(None if kind is None else kind[2] for kind in kinds)
    readable = not any(_nonlinear(records, list(factors), ends_in) for factors in full.values())
    return CallGraph(calls, _reduced(records, full, ends_in), full if readable else None, is_fixed)


def _reduced(records: LayerRecords, full: Feeds, ends_in: Sequence[str | None]) -> Feeds:
    """Return the feeds without skips; raise if a nonlinear operation combines two calls that feed the same one."""
    reduced: Feeds = {}
    for call, direct in without_skips(full).items():
        nonlinear = _nonlinear(records, list(direct), ends_in)
        if nonlinear is not None:
            first, second, name = nonlinear
            raise UnsupportedModelError(
                "Expected branches that are added, averaged, weighted by one number each or concatenated, but the "
                f"outputs of {describe(records, first)} and {describe(records, second)} are combined by `{name}`. "
                "(`call=`, a function of the model and the data, can return the output of one branch.)"
            )
        reduced[call] = dict.fromkeys(direct, 1.0) if len(direct) == 1 else direct
    return reduced


def _nonlinear(records: LayerRecords, calls: list[int], ends_in: Sequence[str | None]) -> tuple[int, int, str] | None:
    """Return two of these calls that a nonlinear operation combines, and its name; None if there are none.

    Args:
        records: The records of the pass.
        calls: The calls.
        ends_in: For each recorded call, the node type that receives its messages, if known.
    """
    assert records.provenance is not None
    for position, first in enumerate(calls):
        for second in calls[position + 1 :]:
            name = records.provenance.nonlinear.get(frozenset((first, second)))
            apart = ends_in[first] is not None and ends_in[second] is not None and ends_in[first] != ends_in[second]
            if name is not None and not apart:
                return min(first, second), max(first, second), name
    return None


def _check_other_ways(records: LayerRecords, calls: list[int], output: Any) -> None:
    """Raise if a call affects the output through arguments other than features, or from inside another call.

    Features of destinations alone are allowed: they change attention, but send no message.
    """
    for call in sorted(reaching(records, output) - set(calls)):
        users = [number for number, record in enumerate(records) if call in record.uses]
        if not any(call in records[user].destination_calls for user in users):
            raise UnsupportedModelError(
                "Expected attention layers to read each other's outputs as features of nodes, but "
                f"{describe(records, users[-1])} reads the output of {describe(records, call)} in another way, and the "
                "model's output depends on both."
            )


def describe(records: Sequence[LayerRecord], call: int) -> str:
    """Return the name and class of a call's convolution, and the number of the call if there are several."""
    record = records[call]
    name = f"`{record.name}` ({type(record.conv).__name__})" if record.name else type(record.conv).__name__
    same = [number for number, other in enumerate(records) if other.conv is record.conv]
    return name if len(same) == 1 else f"call {same.index(call) + 1} of {name}"


def check_calls(
    model: nn.Module, run: Callable[[], Any], records: LayerRecords, call_graph: CallGraph, output: Any
) -> CallGraph:
    """Check which call feeds which by altering the outputs of calls; raise if the model's output contradicts it.

    Tracing torch operations misses two things: values that are computed outside torch, and different values in parts of
    one buffer. The model runs again only if one of these may matter.

    Args:
        model: The model.
        run: Calls the model with the inputs of the recorded pass.
        records: The records of the pass.
        call_graph: Which call feeds which, as found by tracing torch operations.
        output: The output of the pass.
    """
    provenance = records.provenance
    assert provenance is not None
    left_out = set(range(len(records))) - reaching(records, output)
    if left_out and _differ(output, _run_altered(model, run, left_out)[0]):
        raise UnsupportedModelError(
            "Expected the output to depend only on the attention layers that torch operations lead back to, but it "
            "also depends on others: some step between them is computed outside torch."
        )
    if not provenance.blurred or len(call_graph.calls) < 2:
        return call_graph
    usual = _run_altered(model, run, ())[1]
    reached: dict[int, set[int]] = {call: set() for call in call_graph.calls}
    for call in call_graph.calls:
        altered = _run_altered(model, run, {call})[1]
        for later in call_graph.calls:
            if later > call and _differ(usual[later], altered[later]):
                reached[later].add(call)
    expected = {call: _reaching(records, records[call].uses) & set(call_graph.calls) for call in call_graph.calls}
    if reached == expected:
        return call_graph
    for before, after in zip(call_graph.calls, call_graph.calls[1:], strict=False):
        if before not in reached[after]:
            raise UnsupportedModelError(
                f"Expected branches in separate tensors, but {describe(records, before)} and "
                f"{describe(records, after)} write to one tensor, and {describe(records, after)} does not read the "
                f"output of {describe(records, before)}."
            )
    chain: Feeds = {after: {before: 1.0} for before, after in zip(call_graph.calls, call_graph.calls[1:], strict=False)}
    return CallGraph(call_graph.calls, {call_graph.calls[0]: {}, **chain, OUTPUT: {call_graph.calls[-1]: 1.0}})


def reaching(records: LayerRecords, output: Any) -> set[int]:
    """Return all calls that the output depends on, through any argument."""
    return set() if records.provenance is None else _reaching(records, records.provenance.marks(output))


def _reaching(records: Sequence[LayerRecord], ends: Marks) -> set[int]:
    """Return these calls and all calls that they depend on."""
    reached: set[int] = set()
    waiting = list(ends)
    while waiting:
        call = waiting.pop()
        if call not in reached:
            reached.add(call)
            waiting.extend(records[call].uses)
    return reached


class _AlteredOutputs(Watcher):
    """Alters the outputs of some calls, and keeps the input features of each call."""

    def __init__(self, calls: Container[int]) -> None:
        self._calls = calls
        self.features: list[list[Tensor]] = []

    def begin(self, call: LayerCall) -> None:
        self.features.append([tensor.clone() for tensor in tensors_in(call.features)])

    def end(self, call: LayerCall, output: Any) -> Any:
        return _altered(output) if call.number in self._calls else None


def _run_altered(model: nn.Module, run: Callable[[], Any], altered: Container[int]) -> tuple[Any, list[Any]]:
    """Run a model with altered outputs of some calls; return its output and the input features of each call."""
    watcher = _AlteredOutputs(altered)
    with instrument(model, watcher) as instrumented:
        return instrumented.run(run), watcher.features


def _altered(returned: Any) -> Any:
    """Return different numbers of the same shape."""
    if isinstance(returned, tuple):
        return tuple(_altered(item) for item in returned)
    if isinstance(returned, dict):
        return {key: _altered(item) for key, item in returned.items()}

    return returned.flip(0) * 2 + 1 if isinstance(returned, Tensor) and returned.is_floating_point() else returned


def _differ(left_value: Any, right_value: Any) -> bool:
    """Whether tensors differ by more than rounding."""
    pairs = zip(tensors_in(left_value), tensors_in(right_value), strict=True)
    return not all(same(right, left) for left, right in pairs)
