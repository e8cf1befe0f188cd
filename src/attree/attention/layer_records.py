"""Record every call of a convolution in one forward pass: inputs, weights of its messages, output, earlier calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.branch_factors import Combination, Factors, Mix, times_of, total_of
from attree.attention.global_attention_calls import FIRST_MARK, GlobalRecords, watch_global
from attree.attention.instruments import (
    Aggregate,
    LayerCall,
    Softmax,
    Watcher,
    instrument,
    makes_steps,
    within_relations,
)
from attree.attention.marked_tensors import NONE, Marks
from attree.attention.message_factors import WeightReader, is_known
from attree.errors import UnsupportedModelError
from attree.tensors.arrays import is_same_view

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""Recurrent modules and cells of torch (GRU, LSTM, GRUCell and others)."""


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
    return any(not is_same_view(sides[0], side) for side in sides[1:])
