"""Record every call of a convolution in one forward pass: inputs, the weights of its messages, output, earlier calls.

The weight of an edge is the factor of the source's features in the output: c in `message = c * x_j + ...`, times k if
the aggregation is k times the sum of messages (k is 1 for a sum, 1 / n for a mean of n). In GATConv and similar
convolutions, c is the weight of the softmax and k is 1. A user's convolution may multiply by edge weights, mix two
softmaxes or take the mean. So c and k are read from the convolution's own methods: `message` is called with other
features x_j, and `aggregate` with other messages, while all weights stay the same. The result is checked against the
real call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, RGATConv
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from attree.attention.global_attention import FIRST_MARK, GlobalRecords, watch_global
from attree.attention.instruments import (
    KNOWN,
    PLAIN,
    Aggregate,
    LayerCall,
    Softmax,
    Watcher,
    instrument,
    makes_steps,
    within_relations,
)
from attree.attention.mix import Combination, Factors, Mix, times_of, total_of
from attree.attention.provenance import NONE, Marks
from attree.errors import UnsupportedModelError
from attree.tensors.precision import same

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""Recurrent modules and cells of torch (GRU, LSTM, GRUCell and others)."""


def _is_plain(conv: MessagePassing) -> bool:
    """Whether a layer is one of PyG's that are known to leave the arguments of `message` as they are."""
    return type(conv) in PLAIN


def is_known(conv: MessagePassing) -> bool:
    """Whether a convolution is known to sum messages that are weighted by its softmax."""
    if isinstance(conv, RGATConv) and conv.mod is not None:  # changes the weights after the softmax
        return False
    return type(conv) in KNOWN and type(conv.aggr_module) is SumAggregation


class WeightReader:
    """Reads the weights of the messages of one call of a convolution, from what a `Watcher` sees of the call.

    Args:
        conv: The convolution.
        softmaxes: The weights that were computed for this step before it passes messages.
    """

    def __init__(self, conv: MessagePassing, softmaxes: Iterable[Tensor] = ()) -> None:
        self._conv = conv
        self._heads = int(getattr(conv, "heads", 1))
        self._softmaxes: list[Tensor] = list(softmaxes)
        self._replayed: Iterator[Tensor] | None = None
        self._factors: Tensor | None = None
        self._unclear: str | None = "it calls no `message`"

    def result(self) -> tuple[Tensor | None, str | None]:
        """Return the weights of the messages of this call, [edges, heads], or the reason why they could not be read."""
        return (None, self._unclear) if self._unclear else (self._factors, None)

    @property
    def is_probing(self) -> bool:
        """Whether the softmax runs only to read weights, not in the pass of the model."""
        return self._replayed is not None

    def softmax(self, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Run the softmax; while messages are recomputed, return the weights of the real call."""
        if self._replayed is not None:
            return next(self._replayed)
        weights = softmax(scores)
        self._softmaxes.append(weights)
        return weights

    def message(self, message: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
        """Return the messages, and read the factor of each source."""
        before = len(self._softmaxes)
        is_plain = not self._softmaxes and _is_plain(self._conv)
        arguments_before = {
            name: value.clone() if isinstance(value, Tensor) and not is_plain else value
            for name, value in arguments.items()
        }
        messages = message(**arguments)
        returned, inside = self._edges_first(messages), self._softmaxes[before:]
        arguments_before = {name: self._edges_first(value, messages.dim()) for name, value in arguments_before.items()}

        def again(replaced: dict[str, Any]) -> Tensor:
            self._replayed = iter(inside)
            try:
                in_place = {
                    name: self._edges_back(value, messages.dim())
                    for name, value in (arguments_before | replaced).items()
                }
                return self._edges_first(message(**in_place))
            finally:
                self._replayed = None

        weights = self._softmaxes[0] if len(self._softmaxes) == 1 else None
        if weights is not None:
            weights = (weights.unsqueeze(1) if weights.dim() == 1 else weights.flatten(1)).to(returned.dtype)
            self._heads = weights.shape[1]
            weights = weights if weights.shape[0] == returned.shape[0] else None
        self._factors = None if self._softmaxes else _plain_factors(arguments_before, returned)
        if self._factors is None:
            self._factors = factors_of_messages(again, arguments_before, returned, weights, self._heads)
        if self._factors is None and not self._softmaxes:
            # A layer without attention, whose message is another function of its source: it counts as it is.
            self._factors = returned.new_ones(returned.shape[0], 1)
        self._unclear = None if self._factors is not None else "its messages are no multiples of neighbours' features"
        return messages

    def _edges_first(self, value: Any, dims: int | None = None) -> Any:
        """Return a value of messages, of this many dimensions, with their edges along the first one."""
        if not isinstance(value, Tensor) or value.dim() == 0 or dims not in (None, value.dim()):
            return value
        return value.movedim(self._conv.node_dim % value.dim(), 0)

    def _edges_back(self, value: Any, dims: int) -> Any:
        """Undo `_edges_first`."""
        if not isinstance(value, Tensor) or dims in (0, 1) or value.dim() != dims:
            return value
        return value.movedim(0, self._conv.node_dim % dims)

    def aggregate(self, aggregate: Callable[[Tensor], Tensor], messages: Tensor, index: Tensor) -> Tensor:
        """Return the aggregated messages, and read the factor of each sum."""
        returned = aggregate(messages)
        if not self._softmaxes and _is_plain(self._conv) and type(self._conv.aggr_module) is MeanAggregation:
            assert self._factors is not None
            count = index.bincount(minlength=returned.shape[0]).clamp(min=1)
            self._factors = self._factors / count.to(self._factors.dtype)[index].unsqueeze(1)
            return returned
        is_plain = type(self._conv).aggregate is MessagePassing.aggregate
        if self._unclear or (is_plain and type(self._conv.aggr_module) is SumAggregation):
            return returned
        assert self._factors is not None
        messages, sums = self._edges_first(messages), self._edges_first(returned)
        dims = messages.dim()
        factors = factors_of_sums(
            lambda inputs: self._edges_first(aggregate(self._edges_back(inputs, dims))),
            messages,
            sums,
            index,
            self._factors.shape[1],
        )
        if factors is not None:
            self._factors = self._factors * factors.index_select(0, index)
        elif self._softmaxes:
            self._unclear = "it does not add up its messages"
        else:
            self._factors = self._factors * shares_of_aggregation(messages, sums, index)
        return returned


def factors_of_messages(
    message: Callable[[dict[str, Any]], Tensor],
    arguments: dict[str, Any],
    returned: Tensor,
    softmax: Tensor | None,
    heads: int,
) -> Tensor | None:
    """Return the factor of the source features in each message, [edges, heads]; None if there is no such factor.

    Args:
        message: Calls the convolution's `message` with some arguments replaced; the softmax weights stay the same.
        arguments: The arguments of the real call.
        returned: The messages of the real call, [edges, ...].
        softmax: The weights of the softmax, [edges, heads]; None if it has not one weight per edge and head.
        heads: Number of heads.
    """
    edges = returned.shape[0]
    if edges == 0:
        return returned.new_zeros(0, heads)
    if returned.numel() % (edges * heads):
        return None
    messages = returned.reshape(edges, heads, -1)
    sources = {
        name: value
        for name, value in arguments.items()
        if name.endswith("_j") and isinstance(value, Tensor) and value.is_floating_point() and value.shape[0] == edges
    }
    for name, value in sources.items():
        values = _by_head(value, messages)
        if values is None:
            continue
        signs = _signs(value)
        base = message({name: torch.zeros_like(value)}).reshape(messages.shape)
        slope = message({name: signs}).reshape(messages.shape) - base
        signs_by_head = _by_head(signs, messages)
        assert signs_by_head is not None
        factor = (slope * signs_by_head).mean(dim=-1)
        expected = base + factor.unsqueeze(-1) * values
        if bool(factor.any()) and same(expected, messages, floor=0.0):
            # Prefer the weights of the softmax: they have no rounding errors.
            return softmax if softmax is not None and same(factor, softmax, floor=0.0) else factor
    if softmax is not None and sources and _is_common_function(message, sources, softmax, messages.shape):
        return softmax
    return None


def _plain_factors(arguments: dict[str, Any], returned: Tensor) -> Tensor | None:
    """Return the factors, [edges, 1], of messages that are their sources, times one weight per edge if there is one.

    None if they are not. Such messages (GCN, SAGE, GIN) are found without further calls of `message`.
    """
    edges = returned.shape[0]
    sources = [value for name, value in arguments.items() if name.endswith("_j") and isinstance(value, Tensor)]
    weights = [value for name, value in arguments.items() if isinstance(value, Tensor) and value.shape == (edges,)]
    others = [value for value in weights if value.is_floating_point()]
    if len(sources) != 1 or len(others) > 1 or edges == 0 or sources[0].shape != returned.shape:
        return None
    if not returned.is_floating_point() or returned.dim() < 2 or not bool(sources[0].any()):
        return None
    if not others:
        return returned.new_ones(edges, 1) if torch.equal(sources[0], returned) else None
    weight = others[0].view(-1, *[1] * (returned.dim() - 1))
    return others[0].unsqueeze(1).to(returned.dtype) if torch.equal(weight * sources[0], returned) else None


def factors_of_sums(
    aggregate: Callable[[Tensor], Tensor], messages: Tensor, returned: Tensor, index: Tensor, heads: int
) -> Tensor | None:
    """Return the factor between each node's aggregation and the sum of its messages, [nodes, heads]; None if none.

    Args:
        aggregate: Aggregates other messages of the same edges.
        messages: The messages, [edges, ...].
        returned: The aggregated messages, [nodes, ...].
        index: The destination of each edge.
        heads: Number of heads.
    """
    if returned.shape[1:] != messages.shape[1:] or returned[:1].numel() % heads:
        return None
    nodes = returned.shape[0]
    count = torch.zeros(nodes, dtype=messages.dtype, device=index.device)
    count.index_add_(0, index, torch.ones_like(index, dtype=count.dtype))
    ones = aggregate(torch.ones_like(messages)).reshape(nodes, heads, -1)
    factor = ones.mean(dim=-1) / count.clamp(min=1).unsqueeze(1)
    sums = messages.new_zeros(nodes, *messages.shape[1:]).index_add_(0, index, messages).reshape(nodes, heads, -1)
    return factor if same(factor.unsqueeze(-1) * sums, returned.reshape(sums.shape), floor=0.0) else None


def shares_of_aggregation(messages: Tensor, returned: Tensor, index: Tensor) -> Tensor:
    """Return the share of each message in an aggregation that is no sum, [edges, 1].

    For a maximum or minimum, it is the share of the channels in which the message is taken; ties are split. For any
    other aggregation, all messages of a node have equal shares.

    Args:
        messages: The messages, [edges, ...].
        returned: The aggregated messages, [nodes, ...].
        index: The destination of each edge.
    """
    if returned.shape[1:] == messages.shape[1:]:
        is_taken = (messages == returned.index_select(0, index)).reshape(messages.shape[0], -1).to(messages.dtype)
        count = is_taken.new_zeros(returned.shape[0], is_taken.shape[1]).index_add_(0, index, is_taken)
        if bool((count.index_select(0, index) > 0).all()):
            return (is_taken / count.index_select(0, index)).mean(dim=1, keepdim=True)
    return 1 / index.bincount(minlength=returned.shape[0])[index].to(messages.dtype).unsqueeze(1)


def warn_unread(where: str, what: str) -> None:
    """Warn that the weights of a softmax are used, because those of the messages are unknown."""
    warnings.warn(
        f"The weights of the messages of {where} could not be read: {what}. The weights of its softmax are used "
        "instead.",
        stacklevel=2,
    )


def _by_head(value: Tensor, messages: Tensor) -> Tensor | None:
    """Reshape the features of each edge to [edges, heads or 1, channels]; None if they do not fit the messages."""
    edges, _, channels = messages.shape
    if value.numel() == messages.numel():
        return value.reshape(messages.shape)
    return value.reshape(edges, 1, channels) if value.numel() == edges * channels else None


def _signs(value: Tensor) -> Tensor:
    """Return random features 1 and -1 of the same shape; multiplication by them is exact."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(0, 2, value.shape, generator=generator) * 2 - 1).to(value)


def _is_common_function(
    message: Callable[[dict[str, Any]], Tensor], sources: dict[str, Tensor], softmax: Tensor, shape: torch.Size
) -> bool:
    """Whether messages are the softmax weights times one function of the source, the same for all edges."""
    equal_sources = {name: _signs(value[:1]).expand_as(value).clone() for name, value in sources.items()}
    messages = message(equal_sources).reshape(shape)
    weights = softmax.unsqueeze(-1)
    common = (weights * messages).sum(dim=0) / weights.square().sum(dim=0)
    return bool(messages.any()) and same(weights * common, messages, floor=0.0)


NOTHING = Mix({})


@dataclass
class LayerRecord:
    """One recorded call of an attention convolution: its inputs, weights and output.

    Attributes:
        conv: The convolution.
        name: Name of the convolution in the model, such as `convs.0`.
        features: The input features: a tensor, a pair for sources and destinations, or a dict by node type.
        given_edges: The edges that the convolution was called with: a tensor, or a dict by edge type.
        bipartite: Whether sources and destinations have different features.
        scores: The scores before the last softmax.
        weights: The weights returned by each softmax call.
        factors: The weights with which messages are multiplied, [edges, heads]; None if they are `weights`, or if they
            could not be read.
        unclear: Why the weights of the messages could not be read; None if they could.
        edges: The edges of each propagation.
        sums: The aggregated messages of each propagation.
        relation: The relation of each edge, if there is one softmax per relation.
        output: The node embeddings that the convolution returned.
        mix: The calls that directly produced the features of the sources, with their factors; also those over all
            nodes, if they are recorded.
        destination_calls: Indices of the calls that directly produced the features of the destinations.
        uses: Indices of the calls that directly produced any argument, and of the calls inside this one.
        is_readout: Whether it sends messages from nodes to rows that are no nodes, such as graphs. It is then no layer.
        is_step: Whether it is one of several steps of a call; its features are then those that it passes on, and its
            output the sums of its messages, but for the last, whose output is that of the call.
    """

    conv: MessagePassing
    name: str = ""
    features: Any = None
    given_edges: Any = None
    bipartite: bool = False
    scores: Tensor | None = None
    weights: list[Tensor] = field(default_factory=list)
    factors: Tensor | None = None
    unclear: str | None = None
    edges: list[Any] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    relation: Tensor | None = None
    output: Any = None
    mix: Mix = NOTHING
    destination_calls: Marks = NONE
    uses: Marks = NONE
    is_readout: bool = False
    is_step: bool = False

    @property
    def softmaxes(self) -> int:
        """Number of softmax calls."""
        return len(self.weights)


class LayerRecords(list[LayerRecord]):
    """One record per call of an attention convolution, in the order of calls, and the provenance of their outputs.

    Attributes:
        provenance: Traces which call feeds which; None if this is not traced.
        everywhere: The calls that attend over all nodes; None if they are not recorded. What reads one of them then
            reads the layers along edges that feed it.
    """

    def __init__(self, provenance: Combination | None = None, everywhere: GlobalRecords | None = None) -> None:
        super().__init__()
        self.provenance = provenance
        self.everywhere = everywhere

    def local(self, factors: Factors) -> Factors:
        """Return the layers along edges behind some calls, with their factors."""
        if all(self.is_layer(call) for call in factors):
            return factors
        return total_of(
            {call: factor} if self.is_layer(call) else times_of(self.local(self._feeding(call)), factor)
            for call, factor in factors.items()
        )

    def is_layer(self, call: int) -> bool:
        """Whether a call is a layer along edges: neither one over all nodes nor a readout."""
        return call < FIRST_MARK and not self[call].is_readout

    def _feeding(self, call: int) -> Factors:
        """Return the calls that directly feed a call that is no layer, with their factors."""
        if call < FIRST_MARK:
            return self[call].mix.factors
        assert self.everywhere is not None
        return self.everywhere.feeds[call]

    def mix(self, value: Any) -> Mix:
        """Return the layers along edges that directly produced a value, with their factors."""
        assert self.provenance is not None
        mix = self.provenance.mix(value)
        return Mix(self.local(mix.factors), is_fixed=mix.is_fixed)

    def marks(self, value: Any) -> Marks:
        """Return the layers along edges that directly produced a value."""
        marks = NONE if self.provenance is None else self.provenance.marks(value)
        return NONE.union(*({mark} if self.is_layer(mark) else self._used_by(mark) for mark in marks))

    def _used_by(self, call: int) -> Marks:
        """Return the layers along edges that feed a call that is no layer."""
        if call < FIRST_MARK:
            return self[call].uses
        assert self.everywhere is not None
        return self.everywhere.uses[call]

    @cached_property
    def nonlinear(self) -> dict[frozenset[int], str]:
        """For each pair of layers along edges that a nonlinear operation combined, the name of the operation."""
        assert self.provenance is not None
        names: dict[frozenset[int], str] = {}
        for pair, name in self.provenance.nonlinear.items():
            for calls in product(*(self.local({call: 1.0}) for call in pair)):
                if len(set(calls)) == 2:
                    names.setdefault(frozenset(calls), name)
        return names


@contextmanager
def record_layers(
    model: nn.Module,
    follow: bool = True,
    alter: Alter | None = None,
    attention_only: bool = False,
    everywhere: GlobalRecords | None = None,
    num_nodes: int | None = None,
) -> Iterator[LayerRecords]:
    """While open, collect one `LayerRecord` per call of a message-passing layer of `model`, in the order of calls.

    Args:
        model: The model.
        follow: Also trace which call feeds which; costs some microseconds per torch operation.
        alter: Called as `alter(call, scores, softmax)`. The convolutions use the weights that it returns, but the
            records have the weights of the softmax. Only for convolutions for which `is_known` is true.
        attention_only: Refuse a model if a layer has no attention.
        everywhere: Also records the calls that attend over all nodes; only with `follow`.
        num_nodes: Number of nodes of a graph of one type, to tell layers from readouts; None takes all for layers.
    """
    recorder = _Recorder(Combination() if follow else None, alter, everywhere, num_nodes)
    with ExitStack() as stack:
        for conv in stack.enter_context(instrument(model, recorder, attention_only)).convs:
            if alter is not None and not is_known(conv):
                raise UnsupportedModelError(
                    "Expected convolutions that weigh messages by what their softmax returns (GATConv, GATv2Conv, "
                    f"SuperGATConv, TransformerConv) where attention is altered, but got {type(conv).__name__}."
                )
        if recorder.provenance is not None:
            stack.enter_context(recorder.provenance)
            _combine_in_recurrent_modules(model, recorder.provenance, stack)
        if everywhere is not None:
            everywhere.layers, everywhere.provenance = recorder.records, recorder.provenance
            stack.enter_context(watch_global(model, everywhere))
        yield recorder.records


def _combine_in_recurrent_modules(model: nn.Module, provenance: Combination, stack: ExitStack) -> None:
    """Until the stack is closed, take each call of a recurrent module or cell of torch for one nonlinear function.

    Its gates work in place on parts of tensors, so that its operations do not show which input goes where.
    """

    def begin(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        paused.append(not provenance.is_paused)
        if paused[-1]:
            provenance.pause()

    def end(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        if paused and paused.pop():
            provenance.resume()
            provenance.combine(type(module).__name__, (inputs, keywords), output)

    paused: list[bool] = []
    for module in model.modules():
        if isinstance(module, RECURRENT):
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(end, with_kwargs=True, always_call=True).remove)


Alter = Callable[[LayerCall, Tensor, Softmax], Tensor]
"""Called as `alter(call, scores, softmax)`; returns the weights that a convolution uses."""


class _Recorder(Watcher):
    """Fills the records."""

    def __init__(
        self,
        provenance: Combination | None,
        alter: Alter | None = None,
        everywhere: GlobalRecords | None = None,
        num_nodes: int | None = None,
    ) -> None:
        self._num_nodes = num_nodes
        self.provenance = provenance
        self.alter = alter
        self.records = LayerRecords(provenance, everywhere)
        self._running: list[_Running] = []

    def begin(self, call: LayerCall) -> None:
        """Open the record of a call: its features, its edges and the earlier calls that feed it."""
        running = _Running(call, None if is_known(call.conv) else WeightReader(call.conv))
        if call.is_inner:
            self.records[self._running[-1].call.number].uses |= {call.number}
        self._add(call, call.features, *sides_of(call.features), (call.args, call.kwargs))
        self.records[call.number].is_readout = self._num_nodes is not None and call.pools(self._num_nodes)
        self._running.append(running)
        if self.provenance is not None:
            if makes_steps(call.conv):
                running.before = self.provenance.nonlinear.copy(), self.provenance.blurred
            else:
                running.pause(self.provenance)

    def _add(self, call: LayerCall, features: Any, sources: Any, destinations: Any, arguments: Any) -> None:
        """Add the record of a step that reads these features and arguments."""
        record = LayerRecord(call.conv, call.name, features, call.given_edges, _two_node_sets(features))
        if self.provenance is not None:
            record.mix = self.provenance.mix(sources)
            record.destination_calls = self.records.marks(destinations)
            record.uses |= self.records.marks(arguments)
        self.records.append(record)

    def propagate(self, call: LayerCall, arguments: dict[str, Any]) -> None:
        """Note the edges of a step; open its record if it is not the first of the call."""
        running = self._running[-1]
        if call.number == len(self.records):
            self._next_step(running, arguments)
        record = self.records[call.number]
        record.edges.append(call.edges)
        if within_relations(call.conv):
            record.relation = arguments["edge_type"]
        if self.provenance is not None and running.before is not None:
            running.pause(self.provenance)

    def _next_step(self, running: _Running, arguments: dict[str, Any]) -> None:
        """Open the record of the next step of a running call, which passes these arguments to `propagate`."""
        call, before = running.call, self.records[-1]
        before.is_step = True
        sources, destinations = _node_arguments(call.conv, arguments)
        self._add(call, sources[0] if len(sources) == 1 else tuple(sources), sources, destinations, arguments)
        record = self.records[-1]
        record.is_step = True
        # Weights that were computed after the step before belong to this one; otherwise it uses the same.
        weights = running.weights or before.weights
        record.scores, record.weights = running.scores if running.weights else before.scores, list(weights)
        running.scores, running.weights = None, []
        if running.reader is not None:
            before.factors, before.unclear = running.reader.result()
            running.reader = WeightReader(call.conv, weights)

    def message(self, call: LayerCall, message: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
        reader = self._running[-1].reader
        return message(**arguments) if reader is None else reader.message(message, arguments)

    def aggregate(self, call: LayerCall, aggregate: Aggregate, messages: Tensor, index: Tensor) -> Tensor:
        reader = self._running[-1].reader
        return aggregate(messages) if reader is None else reader.aggregate(aggregate, messages, index)

    def sums(self, call: LayerCall, sums: Tensor) -> None:
        record, running = self.records[call.number], self._running[-1]
        record.sums.append(sums)
        if within_relations(call.conv) and is_known(call.conv):
            # There was one softmax per relation; the convolution has merged their weights.
            record.weights = [call.conv._alpha]
        if running.before is not None and self.provenance is not None:
            record.output = sums
            self.provenance.mark(sums, call.number)
            running.resume(self.provenance)

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        """Record the scores and weights of a softmax call, and return the weights that the convolution uses."""
        running = self._running[-1]
        reader, record = running.reader, self.records[call.number]
        if reader is not None and makes_steps(call.conv) and len(record.sums) and not reader.is_probing:
            running.scores = scores  # of the next step, if there is one
            running.weights.append(softmax(scores))
            return running.weights[-1] if self.alter is None else self.alter(call, scores, softmax)
        weights = softmax(scores) if reader is None else reader.softmax(scores, softmax)
        if reader is not None and reader.is_probing:
            return weights
        record.scores = scores
        record.weights.append(weights)
        return weights if self.alter is None else self.alter(call, scores, softmax)

    def end(self, call: LayerCall, output: Any) -> None:
        """Close the record of a call: store the output, and mark the output as a result of this call."""
        # With `return_attention_weights`, a PyG convolution returns a tuple that starts with the node embeddings.
        record = self.records[call.number]
        record.output = output[0] if isinstance(output, tuple) else output
        running = self._running.pop()
        if running.reader is not None:
            record.factors, record.unclear = running.reader.result()
        if self.provenance is None:
            return
        if not record.is_step:
            if running.before is not None:  # one step: what happens inside does not matter
                self.provenance.nonlinear, self.provenance.blurred = running.before
            self.provenance.mark(output, call.number)
        running.resume(self.provenance)


@dataclass
class _Running:
    """A running call.

    Attributes:
        call: The call.
        reader: Reads the weights of the messages of the current step; None if they are those of the softmax.
        before: For a call that may make several steps: what the provenance had recorded when the call began.
        scores: The scores of a softmax after the current step.
        weights: The weights of softmaxes after the current step.
        has_paused: Whether this call has paused the provenance.
    """

    call: LayerCall
    reader: WeightReader | None
    before: tuple[dict[frozenset[int], str], bool] | None = None
    scores: Tensor | None = None
    weights: list[Tensor] = field(default_factory=list)
    has_paused: bool = False

    def pause(self, provenance: Combination) -> None:
        """Do not trace the operations of this call, if they are traced."""
        if not provenance.is_paused:
            provenance.pause()
            self.has_paused = True

    def resume(self, provenance: Combination) -> None:
        """Trace operations again, if this call has paused it."""
        if self.has_paused:
            provenance.resume()
            self.has_paused = False


def _node_arguments(conv: MessagePassing, arguments: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the arguments of `propagate` that have one row per source, and those with one row per destination only."""
    names = {name for name in conv._user_args if name.endswith(("_i", "_j"))}
    sources, destinations = [], []
    for name, value in arguments.items():
        is_pair = isinstance(value, tuple | list)
        if f"{name}_j" in names:
            sources.append(value[0] if is_pair else value)
        if f"{name}_i" in names and (is_pair or f"{name}_j" not in names):
            destinations.append(value[-1] if is_pair else value)
    return sources, destinations


def sides_of(features: Any) -> tuple[Any, Any]:
    """Return the features of sources and the features of destinations."""
    if isinstance(features, tuple | list):
        return features[:1], features[1:]
    return features, ()


def _two_node_sets(features: Any) -> bool:
    """Whether sources and destinations have different features."""
    if not isinstance(features, tuple | list):
        return isinstance(features, dict)
    sides = [side for side in features if isinstance(side, Tensor)]
    return any(not _same(sides[0], side) for side in sides[1:])


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""

    return left is right or (
        left.data_ptr() == right.data_ptr() and left.shape == right.shape and left.stride() == right.stride()
    )
