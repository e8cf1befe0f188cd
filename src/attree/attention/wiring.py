"""The wiring of a network: which calls of convolutions the output was computed from, and which layer feeds which.

A computation tree leads from the output to the calls that produced it, then to the calls that produced their input, and
so on. In most networks this is a chain with one call per layer. Calls side by side (two stacks, several heads, one call
per relation) are branches. Each branch has the factor with which it is combined with the others. Calls that the output
does not depend on (an auxiliary head, a second pass for another loss) are not layers.

If the output of a call also bypasses later layers (a residual, jumping knowledge), the path around them is a *skip*.
`Wiring` ignores skips; `Wiring.followed` includes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GAT, BatchNorm, GATConv, GATv2Conv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from attree.attention.branch_factors import Factors
from attree.attention.graph import Graph, find_type
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.layer_records import LayerRecord, LayerRecords
from attree.attention.marked_tensors import Marks, tensors_in
from attree.errors import UnsupportedModelError
from attree.tensors.precision import same

OUTPUT = -1
"""The key of the model's output among the indices of calls."""

Feeds = dict[int, dict[int, float]]
"""For each call and the output: the calls that feed it, with their factors."""


ROWWISE = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.PReLU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)
"""Elementwise activations."""


@dataclass(frozen=True)
class Wiring:
    """The layers of a network, and which layer feeds which.

    Attributes:
        layers: For each layer, the indices of its calls in the order of the pass; first layer first.
        factors: For each layer, the factor of each of its calls.
        feeds: For each layer, the later layers that read its output, each with its factor.
        shares: For each layer, the factor with which the output reads it; 0 if it does not.
        is_fixed: Whether the factors do not depend on the weights of the model.
        followed: The wiring that includes skips; None if there are none, or if they could not be read.
    """

    layers: tuple[tuple[int, ...], ...]
    factors: tuple[tuple[float, ...], ...]
    feeds: tuple[tuple[tuple[int, float], ...], ...]
    shares: tuple[float, ...]
    is_fixed: bool = True
    followed: Wiring | None = None

    @classmethod
    def chain(cls, calls: Sequence[int]) -> Wiring:
        """Return a chain of layers with one call each; each layer reads the output of the layer before it."""
        last = len(calls) - 1
        feeds = tuple(((layer + 1, 1.0),) if layer < last else () for layer in range(last + 1))
        shares = tuple(float(layer == last) for layer in range(last + 1))
        return cls(tuple((call,) for call in calls), ((1.0,),) * len(calls), feeds, shares)

    @property
    def calls(self) -> tuple[int, ...]:
        """Indices of the calls of all layers, in the order of the pass."""
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
        """Return the same wiring with all factors 1, to count flows."""
        feeds = tuple(tuple((later, 1.0) for later, _ in later_layers) for later_layers in self.feeds)
        return Wiring(self.layers, self.factors, feeds, tuple(float(share != 0) for share in self.shares))


@dataclass
class CallGraph:
    """Which call feeds which in one forward pass.

    Attributes:
        calls: Indices of the calls that feed the output, directly or through others, ascending.
        feeds: For each of them, and for the output, the calls that feed it; without skips.
        full: The same with skips; None if some cannot be read.
        is_fixed: Whether no factor was read from a tensor.
        height: For each call, the number of calls after it on the longest path to the output.
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
        """Return the calls that read the output of a call, each with its factor."""
        return {later: sources[call] for later, sources in feeds.items() if call in sources}

    def wiring(self, ends: Sequence[tuple[set[str], set[str]]] | None = None) -> Wiring:
        """Return the layers: one per call, or one for all calls side by side that run on different edge types.

        Args:
            ends: For each call, the node types of the sources and of the destinations of its edges; None for a graph of
                one type.
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
    """Return the wiring of groups of calls. Each call has one factor, which is the same for all later layers."""
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
    """Whether each group of calls can be one layer, so that flows through the layer are flows through its calls.

    Each call must have the same factor for all calls that it feeds. If a later group reads outputs of this group for a
    node type, every call of the later group with sources of that type must read every call of this group with
    destinations of that type.
    """
    for group in groups:
        out = {call: CallGraph.consumers(feeds, call) for call in group}
        if any(len(set(consumers.values())) > 1 for consumers in out.values()):
            return False
        for later in groups:
            if not any(consumer in consumers for consumers in out.values() for consumer in later):
                continue
            for call in group:
                expected = {consumer for consumer in later if ends[consumer][0] & ends[call][1]}
                if expected != {consumer for consumer in later if consumer in out[call]}:
                    return False
    return True


def feeds_of(factors: Factors, ends: Iterable[int], feeding: Callable[[int], Factors]) -> Feeds:
    """Return the feeds of the output and of all calls that it depends on.

    Args:
        factors: The calls that directly produced the output, with their factors.
        ends: All calls that it was computed from; more than these if the factors of some are unknown.
        feeding: Returns the calls that directly produced the features of a call, with their factors.
    """
    feeds: Feeds = {OUTPUT: dict(factors)}
    waiting = sorted(ends)
    while waiting:
        call = waiting.pop()
        if call not in feeds:
            feeds[call] = dict(feeding(call))
            waiting.extend(feeds[call])
    return feeds


def without_skips(feeds: Feeds) -> Feeds:
    """Return the feeds without skips: leave out a call that also feeds the same call through others.

    >>> without_skips({0: {}, 1: {0: 1.0}, OUTPUT: {0: 1.0, 1: 1.0}})  # call 0 also bypasses call 1
    {0: {}, 1: {0: 1.0}, -1: {1: 1.0}}
    """
    before: dict[int, set[int]] = {}
    for call in sorted(feeds, key=lambda number: math.inf if number == OUTPUT else number):
        before[call] = set(feeds[call]).union(*(before[feeding] for feeding in feeds[call]))
    return {
        call: {
            feeding: factor
            for feeding, factor in factors.items()
            if not any(feeding in before[other] for other in factors)
        }
        for call, factors in feeds.items()
    }


def is_plain_stack(model: Any) -> bool:
    """Whether a model is known to be a chain of attention layers in which nothing bypasses a layer.

    The outputs of such a model belong to nodes, and no experiment is needed to find this out. A model states this by
    its attribute `is_plain_stack`. PyG's `GAT` is a plain stack without jumping knowledge, residuals and norms over all
    nodes.

    >>> is_plain_stack(GAT(4, 8, 2, 3)), is_plain_stack(GAT(4, 8, 2, 3, jk="cat")), is_plain_stack(nn.Linear(4, 3))
    (True, False, False)
    """
    if getattr(model, "is_plain_stack", False):
        return True
    if type(model) is not GAT or type(model).forward is not BasicGNN.forward or "forward" in vars(model):
        return False
    has_skips = model.jk_mode is not None or any(getattr(conv, "residual", False) for conv in model.convs)
    is_known = all(type(conv) in (GATConv, GATv2Conv) for conv in model.convs)
    is_rowwise = model.act is None or type(model.act) in ROWWISE
    return is_known and is_rowwise and not has_skips and all(_is_rowwise_norm(norm) for norm in model.norms)


def _is_rowwise_norm(norm: Any) -> bool:
    """Whether a norm in eval mode works on each node separately."""

    return type(norm) is nn.Identity or (type(norm) is BatchNorm and norm.module.running_mean is not None)


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
    if not records:
        raise UnsupportedModelError(CALLED_NONE)
    ends = records.marks(output)
    if not ends:
        for call, record in enumerate(records):
            if record.is_readout:
                raise has_two_node_sets(records, call)
        empty = next(tensors_in(output), None) is None
        got = "it returned no tensor" if empty else "its output depends on none of the convolutions that it called"
        raise UnsupportedModelError(f"Expected the model's output to come from attention convolutions, but {got}.")
    mix = records.mix(output)
    full = feeds_of(mix.factors, ends, lambda call: records.local(records[call].mix.factors))
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
    for position, first in enumerate(calls):
        for second in calls[position + 1 :]:
            name = records.nonlinear.get(frozenset((first, second)))
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


def has_two_node_sets(records: Sequence[LayerRecord], call: int) -> UnsupportedModelError:
    """Return the error of a call whose sources are other nodes than its destinations, in a graph of one type."""
    where = describe(records, call)
    return UnsupportedModelError(f"Expected {where} to map nodes to the same nodes, but it has two node sets.")


def describe(records: Sequence[LayerRecord], call: int) -> str:
    """Return the name and class of a call's convolution, and the number of the call if there are several."""
    record = records[call]
    name = f"`{record.name}` ({type(record.conv).__name__})" if record.name else type(record.conv).__name__
    same = [number for number, other in enumerate(records) if other.conv is record.conv]
    return name if len(same) == 1 else f"{'step' if record.is_step else 'call'} {same.index(call) + 1} of {name}"


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
    left_out = {call for call in range(len(records)) if records.is_layer(call)} - reaching(records, output)
    if left_out and _differ(output, _run_altered(model, run, records, left_out)[0]):
        raise UnsupportedModelError(
            "Expected the output to depend only on the attention layers that torch operations lead back to, but it "
            "also depends on others: some step between them is computed outside torch."
        )
    if not provenance.blurred or len(call_graph.calls) < 2:
        return call_graph
    usual = _run_altered(model, run, records, ())[1]
    reached: dict[int, set[int]] = {call: set() for call in call_graph.calls}
    for call in call_graph.calls:
        altered = _run_altered(model, run, records, {call})[1]
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
    return _reaching(records, records.marks(output))


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

    def __init__(self, records: LayerRecords, calls: Container[int]) -> None:
        self._records, self._calls = records, calls
        self.features: dict[int, list[Tensor]] = {}

    def begin(self, call: LayerCall) -> None:
        self.features[call.number] = [tensor.clone() for tensor in tensors_in(call.features)]

    def propagate(self, call: LayerCall, arguments: dict[str, Any]) -> None:
        if call.number not in self.features:  # another step of a call
            self.features[call.number] = [tensor.clone() for tensor in tensors_in(arguments)]

    def sums(self, call: LayerCall, sums: Tensor) -> Tensor | None:
        is_altered = self._records[call.number].is_step and call.number in self._calls
        altered: Tensor | None = _altered(sums) if is_altered else None
        return altered

    def end(self, call: LayerCall, output: Any) -> Any:
        is_altered = not self._records[call.number].is_step and call.number in self._calls
        return _altered(output) if is_altered else None


def _run_altered(
    model: nn.Module, run: Callable[[], Any], records: LayerRecords, altered: Container[int]
) -> tuple[Any, dict[int, list[Tensor]]]:
    """Run a model with altered outputs of some calls; return its output and the input features of each call."""
    watcher = _AlteredOutputs(records, altered)
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
