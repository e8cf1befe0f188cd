"""What feeds what: which calls of attention convolutions are the layers of a network, found in its forward pass.

A computation tree goes from the output to the calls that it was computed from, from these to the calls that their
features were computed from, and so on. In most networks that is a chain, one call a layer. Calls side by side (two
stacks, several heads, one call for each relation) are branches: each has the factor with which it was combined with the
others. Calls that the output does not depend on (an auxiliary head, a second pass for another loss) are no layers.

Where something goes around a layer (a residual, jumping knowledge), the way through the layers is a feed and the way
around them is a *skip*. `Wiring` leaves skips out; `Wiring.followed` has them as feeds of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.edge_ids import find_type
from attree.attention.graph import Graph
from attree.attention.layer_records import LayerRecord, LayerRecords, features_of
from attree.attention.provenance import Marks, tensors_in
from attree.attention.softmax_hook import attention_convs
from attree.errors import UnsupportedModelError

OUTPUT = -1
"""What the output is called among the calls that others feed."""

Feeds = dict[int, dict[int, float]]
"""For each call, or the output, the calls that feed it and their factors."""


@dataclass(frozen=True)
class Wiring:
    """The layers of a network and what feeds what.

    Attributes:
        layers: For each layer its calls side by side, numbered in the order of the pass; first layer first.
        factors: For each layer, what the weights of each of its calls are multiplied by.
        feeds: For each layer, the later layers that work on what it returned, with the factor that it has there.
        shares: For each layer, the factor with which the output reads it; 0 if it does not.
        is_fixed: Whether the factors are the same whatever the weights of the model.
        followed: The same with skips followed; None if there are none, or if they could not be read.
    """

    layers: tuple[tuple[int, ...], ...]
    factors: tuple[tuple[float, ...], ...]
    feeds: tuple[tuple[tuple[int, float], ...], ...]
    shares: tuple[float, ...]
    is_fixed: bool = True
    followed: Wiring | None = None

    @classmethod
    def chain(cls, calls: Sequence[int]) -> Wiring:
        """Layers of one call each, each working on what the one before it returned."""
        last = len(calls) - 1
        feeds = tuple(((layer + 1, 1.0),) if layer < last else () for layer in range(last + 1))
        shares = tuple(float(layer == last) for layer in range(last + 1))
        return cls(tuple((call,) for call in calls), ((1.0,),) * len(calls), feeds, shares)

    @property
    def calls(self) -> tuple[int, ...]:
        """All calls that are part of a layer, in the order of the pass."""
        return tuple(sorted(call for layer in self.layers for call in layer))

    @property
    def is_chain(self) -> bool:
        """Whether each layer feeds only the next one, with factor 1."""
        chain = Wiring.chain(range(len(self.layers)))
        return (self.feeds, self.shares) == (chain.feeds, chain.shares)

    @property
    def heights(self) -> tuple[int, ...]:
        """For each layer, the number of layers above it on the longest path to the output."""
        heights: list[int] = []
        for feeds in reversed(self.feeds):
            heights.insert(0, 1 + max((heights[later - len(self.feeds)] for later, _ in feeds), default=-1))
        return tuple(heights)

    @property
    def depth(self) -> int:
        """Height of the computation tree: the number of layers on the longest path from the input to the output."""
        return 1 + max(self.heights)

    def without_factors(self) -> Wiring:
        """The same wiring with all factors 1, to count flows."""
        feeds = tuple(tuple((later, 1.0) for later, _ in own) for own in self.feeds)
        return Wiring(self.layers, self.factors, feeds, tuple(float(share != 0) for share in self.shares))


@dataclass
class CallGraph:
    """What feeds what among the calls of one pass.

    Attributes:
        calls: The calls that feed the output, directly or through others, in their order.
        feeds: For each of them, and for the output, the calls that feed it without a detour around others.
        full: The same with all skips; None if some cannot be read.
        is_fixed: Whether no factor was read from a tensor.
    """

    calls: list[int]
    feeds: Feeds
    full: Feeds | None = None
    is_fixed: bool = True
    height: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.height = {OUTPUT: -1}
        for call in reversed(self.calls):
            self.height[call] = 1 + max(self.height[later] for later in self.consumers(self.feeds, call))

    @staticmethod
    def consumers(feeds: Feeds, call: int) -> dict[int, float]:
        """What a call feeds, and with which factor."""
        return {later: own[call] for later, own in feeds.items() if call in own}

    def wiring(self, ends: Sequence[tuple[set[str], set[str]]] | None = None) -> Wiring:
        """The layers: one for each call, or for all calls side by side where they run on other types of edges.

        Args:
            ends: For each call, the types of nodes that its edges leave and enter; None if there is one type alone.
        """
        groups = [[call] for call in self.calls]
        if ends is not None:
            of_call = dict(zip(self.calls, ends, strict=True))
            levels = sorted({self.height[call] for call in self.calls}, reverse=True)
            merged = [[call for call in self.calls if self.height[call] == level] for level in levels]
            if _can_merge(merged, self.feeds, of_call):
                groups = merged
        wiring = _layers(groups, self.feeds, self.is_fixed)
        if self.full is None or self.full == self.feeds:
            return wiring
        followed = _layers(groups, self.full, self.is_fixed)
        if followed.factors != wiring.factors:
            return wiring
        return Wiring(wiring.layers, wiring.factors, wiring.feeds, wiring.shares, self.is_fixed, followed)


def _layers(groups: list[list[int]], feeds: Feeds, is_fixed: bool) -> Wiring:
    """Merge calls into layers. Each call of a layer has one factor, the same for all that the layer feeds."""
    place = {call: layer for layer, group in enumerate(groups) for call in group}
    factors: list[tuple[float, ...]] = []
    later_layers, shares = [], []
    for group in groups:
        out = CallGraph.consumers(feeds, group[0])
        if len(group) == 1:
            factors.append((1.0,))
            to = {OUTPUT if later == OUTPUT else place[later]: factor for later, factor in out.items()}
        else:
            factors.append(tuple(max(CallGraph.consumers(feeds, call).values()) for call in group))
            to = {
                OUTPUT if later == OUTPUT else place[later]: 1.0
                for call in group
                for later in CallGraph.consumers(feeds, call)
            }
        shares.append(to.pop(OUTPUT, 0.0))
        later_layers.append(tuple(sorted(to.items())))
    return Wiring(tuple(tuple(group) for group in groups), tuple(factors), tuple(later_layers), tuple(shares), is_fixed)


def _can_merge(groups: list[list[int]], feeds: Feeds, ends: Mapping[int, tuple[set[str], set[str]]]) -> bool:
    """Whether each group can be one layer: the walk through it is that through its calls.

    A call has one factor wherever it goes. And if any call of a later group works on what this group returned for a
    type of nodes, all calls of that group that leave this type do, and they work on all calls that enter it.
    """
    for group in groups:
        out = {call: CallGraph.consumers(feeds, call) for call in group}
        if any(len(set(own.values())) > 1 for own in out.values()):
            return False
        for later in groups:
            if not any(consumer in own for own in out.values() for consumer in later):
                continue
            for call in group:
                wanted = {consumer for consumer in later if ends[consumer][0] & ends[call][1]}
                if wanted != {consumer for consumer in later if consumer in out[call]}:
                    return False
    return True


def find_calls(records: LayerRecords, output: Any, graph: Graph | None = None) -> CallGraph:
    """The calls that the output was computed from, and what feeds what.

    Args:
        records: What one forward pass recorded, with its calls followed.
        output: What it returned; of several tensors, all count.
        graph: The graph that it ran on. Calls whose messages go to different types of nodes are no branches of one
            node: a decoder of pairs may combine them as it likes.

    Raises:
        UnsupportedModelError: If the output depends on a call in a way that no computation tree shows.
    """
    provenance = records.provenance
    assert provenance is not None
    if not records:
        raise UnsupportedModelError("Expected the forward pass to call attention convolutions, but it called none.")
    ends = provenance.marks(output)
    if not ends:
        empty = next(tensors_in(output), None) is None
        got = "it returned no tensor" if empty else "what it returned depends on none of those it called"
        raise UnsupportedModelError(f"Expected the model's output to come from attention convolutions, but {got}.")
    full, is_fixed = {OUTPUT: dict(provenance.mix(output).factors)}, provenance.mix(output).is_fixed
    waiting = sorted(ends)
    while waiting:
        call = waiting.pop()
        if call not in full:
            mix = records[call].mix
            full[call], is_fixed = dict(mix.factors), is_fixed and mix.is_fixed
            waiting.extend(mix.factors)
    calls = sorted(set(full) - {OUTPUT})
    _check_other_ways(records, calls, output)
    kinds = [None if graph is None else find_type(graph, record.given) for record in records]
    ends_in = tuple(None if kind is None else kind[2] for kind in kinds)
    readable = not any(_nonlinear(records, list(own), ends_in) for own in full.values())
    return CallGraph(calls, _reduced(records, full, ends_in), full if readable else None, is_fixed)


def _reduced(records: LayerRecords, full: Feeds, ends_in: Sequence[str | None]) -> Feeds:
    """Feeds without skips: leave out a call that also feeds the same call through others."""
    before: dict[int, set[int]] = {}
    for call in sorted(full, key=lambda one: len(records) if one == OUTPUT else one):
        before[call] = set(full[call]).union(*(before[own] for own in full[call]))
    reduced: Feeds = {}
    for call, own in full.items():
        kept = {one: factor for one, factor in own.items() if not any(one in before[other] for other in own)}
        found = _nonlinear(records, list(kept), ends_in)
        if found is not None:
            one, other, name = found
            raise UnsupportedModelError(
                "Expected branches that are added, averaged, weighted by one number each or concatenated, but what "
                f"{describe(records, one)} and {describe(records, other)} return is combined by `{name}`."
            )
        reduced[call] = dict.fromkeys(kept, 1.0) if len(kept) == 1 else kept
    return reduced


def _nonlinear(records: LayerRecords, calls: list[int], ends_in: Sequence[str | None]) -> tuple[int, int, str] | None:
    """Two of these calls that are combined by an operation that is not linear in both, and its name.

    Args:
        records: What was recorded.
        calls: The calls.
        ends_in: The type of nodes that the messages of each recorded call go to, where it is known.
    """
    assert records.provenance is not None
    for position, one in enumerate(calls):
        for other in calls[position + 1 :]:
            name = records.provenance.nonlinear.get(frozenset((one, other)))
            apart = ends_in[one] is not None and ends_in[other] is not None and ends_in[one] != ends_in[other]
            if name is not None and not apart:
                return min(one, other), max(one, other), name
    return None


def _check_other_ways(records: LayerRecords, calls: list[int], output: Any) -> None:
    """Raise if a call affects the output through other arguments than features, or from inside another call.

    What comes in as features of destinations alone changes attention, but sends no message.
    """
    for call in sorted(reaching(records, output) - set(calls)):
        users = [number for number, record in enumerate(records) if call in record.uses]
        if not any(call in records[user].beside for user in users):
            raise UnsupportedModelError(
                "Expected attention layers that work on what others returned as features of nodes, but "
                f"{describe(records, users[-1])} does not work on what {describe(records, call)} returned in this way, "
                "and the output depends on both."
            )


def describe(records: Sequence[LayerRecord], call: int) -> str:
    """A call's convolution by name and class, and which call it is if the convolution is called more than once."""
    record = records[call]
    name = f"`{record.name}` ({type(record.conv).__name__})" if record.name else type(record.conv).__name__
    same = [number for number, other in enumerate(records) if other.conv is record.conv]
    return name if len(same) == 1 else f"call {same.index(call) + 1} of {name}"


def check_calls(
    model: nn.Module, run: Callable[[], Any], records: LayerRecords, found: CallGraph, output: Any
) -> CallGraph:
    """Check what feeds what by altering the results of calls; raise if the output contradicts it.

    Two things hide from torch operations: values that leave torch on their way, and the parts of a buffer that hold
    different things. The model runs again only where one of these may matter.

    Args:
        model: The model.
        run: Runs it on the inputs of the recorded pass.
        records: What was recorded.
        found: What feeds what by torch operations.
        output: What the model returned.
    """
    provenance = records.provenance
    assert provenance is not None
    left_out = set(range(len(records))) - reaching(records, output)
    if left_out and _differ(output, _run_altered(model, run, left_out)[0]):
        raise UnsupportedModelError(
            "Expected the output to depend on the attention layers that torch operations lead back to, but it also "
            "depends on others: some step between them is computed outside torch."
        )
    if not provenance.blurred or len(found.calls) < 2:
        return found
    usual = _run_altered(model, run, ())[1]
    reached: dict[int, set[int]] = {call: set() for call in found.calls}
    for call in found.calls:
        altered = _run_altered(model, run, {call})[1]
        for later in found.calls:
            if later > call and _differ(usual[later], altered[later]):
                reached[later].add(call)
    expected = {call: _reaching(records, records[call].uses) & set(found.calls) for call in found.calls}
    if reached == expected:
        return found
    for before, after in zip(found.calls, found.calls[1:], strict=False):
        if before not in reached[after]:
            raise UnsupportedModelError(
                "Expected branches that are kept in tensors of their own, but what "
                f"{describe(records, before)} and {describe(records, after)} return is kept in one, and "
                f"{describe(records, after)} does not work on what {describe(records, before)} returned."
            )
    chain: Feeds = {after: {before: 1.0} for before, after in zip(found.calls, found.calls[1:], strict=False)}
    return CallGraph(found.calls, {found.calls[0]: {}, **chain, OUTPUT: {found.calls[-1]: 1.0}})


def reaching(records: LayerRecords, output: Any) -> set[int]:
    """All calls that the output depends on, through any argument."""
    return set() if records.provenance is None else _reaching(records, records.provenance.marks(output))


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
    """Run a model with altered results of some calls; return its output and the features that each call was given."""
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
    if isinstance(returned, dict):
        return {key: _other(item) for key, item in returned.items()}
    return returned.flip(0) * 2 + 1 if isinstance(returned, Tensor) and returned.is_floating_point() else returned


def _differ(one: Any, other: Any) -> bool:
    """Whether tensors differ by more than rounding."""
    pairs = zip(tensors_in(one), tensors_in(other), strict=True)
    return not all(torch.allclose(left, right, rtol=1e-4, atol=1e-6, equal_nan=True) for left, right in pairs)
