"""Record every call of an attention convolution in one forward pass: inputs, weights, output and earlier calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.combination import Combination
from attree.attention.instruments import Aggregate, LayerCall, Softmax, Watcher, instrument, within_relations
from attree.attention.message_weights import WeightReader, is_known
from attree.attention.mix import Mix
from attree.attention.provenance import NONE, Marks
from attree.errors import UnsupportedModelError

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
        mix: The calls that directly produced the features of the sources, with their factors.
        destination_calls: Indices of the calls that directly produced the features of the destinations.
        uses: Indices of the calls that directly produced any argument, and of the calls inside this one.
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

    @property
    def softmaxes(self) -> int:
        """Number of softmax calls."""
        return len(self.weights)


class LayerRecords(list[LayerRecord]):
    """One record per call of an attention convolution, in the order of calls, and the provenance of their outputs."""

    def __init__(self, provenance: Combination | None = None) -> None:
        super().__init__()
        self.provenance = provenance


@contextmanager
def record_layers(
    model: nn.Module, follow: bool = True, alter: Alter | None = None, attention_only: bool = False
) -> Iterator[LayerRecords]:
    """While open, collect one `LayerRecord` per call of a message-passing layer of `model`, in the order of calls.

    Args:
        model: The model.
        follow: Also trace which call feeds which; costs some microseconds per torch operation.
        alter: Called as `alter(call, scores, softmax)`. The convolutions use the weights that it returns, but the
            records have the weights of the softmax. Only for convolutions for which `is_known` is true.
        attention_only: Refuse a model if a layer has no attention.
    """
    recorder = _Recorder(Combination() if follow else None, alter)
    with ExitStack() as stack:
        for conv in stack.enter_context(instrument(model, recorder, attention_only)).convs:
            if alter is not None and not is_known(conv):
                raise UnsupportedModelError(
                    "Expected convolutions that weigh messages by what their softmax returns (GATConv, GATv2Conv, "
                    f"SuperGATConv, TransformerConv) where attention is altered, but got {type(conv).__name__}."
                )
        if recorder.provenance is not None:
            stack.enter_context(recorder.provenance)
        yield recorder.records


Alter = Callable[[LayerCall, Tensor, Softmax], Tensor]
"""Called as `alter(call, scores, softmax)`; returns the weights that a convolution uses."""


class _Recorder(Watcher):
    """Fills the records."""

    def __init__(self, provenance: Combination | None, alter: Alter | None = None) -> None:
        self.provenance = provenance
        self.alter = alter
        self.records = LayerRecords(provenance)
        self._outer: list[tuple[int, WeightReader | None]] = []

    def begin(self, call: LayerCall) -> None:
        """Open the record of a call: its features, its edges and the earlier calls that feed it."""
        features = call.features
        record = LayerRecord(call.conv, call.name, features, call.given_edges, _two_node_sets(features))
        if call.is_inner:
            self.records[self._outer[-1][0]].uses |= {call.number}
        if self.provenance is not None:
            sources, destinations = sides_of(features)
            record.mix = self.provenance.mix(sources)
            record.destination_calls = self.provenance.marks(destinations)
            record.uses |= self.provenance.marks((call.args, call.kwargs))
            self.provenance.pause()
        self.records.append(record)
        self._outer.append((call.number, None if is_known(call.conv) else WeightReader(call.conv)))

    def propagate(self, call: LayerCall, arguments: dict[str, Any]) -> None:
        record = self.records[call.number]
        record.edges.append(call.edges)
        if within_relations(call.conv):
            record.relation = arguments["edge_type"]

    def message(self, call: LayerCall, message: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
        reader = self._outer[-1][1]
        return message(**arguments) if reader is None else reader.message(message, arguments)

    def aggregate(self, call: LayerCall, aggregate: Aggregate, messages: Tensor, index: Tensor) -> Tensor:
        reader = self._outer[-1][1]
        return aggregate(messages) if reader is None else reader.aggregate(aggregate, messages, index)

    def sums(self, call: LayerCall, sums: Tensor) -> None:
        record = self.records[call.number]
        record.sums.append(sums)
        if within_relations(call.conv) and is_known(call.conv):
            # There was one softmax per relation; the convolution has merged their weights.
            record.weights = [call.conv._alpha]

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        """Record the scores and weights of a softmax call, and return the weights that the convolution uses."""
        reader = self._outer[-1][1]
        weights = softmax(scores) if reader is None else reader.softmax(scores, softmax)
        if reader is not None and reader.is_probing:
            return weights
        record = self.records[call.number]
        record.scores = scores
        record.weights.append(weights)
        return weights if self.alter is None else self.alter(call, scores, softmax)

    def end(self, call: LayerCall, output: Any) -> None:
        """Close the record of a call: store the output, and mark the output as a result of this call."""
        # With `return_attention_weights`, a PyG convolution returns a tuple that starts with the node embeddings.
        record = self.records[call.number]
        record.output = output[0] if isinstance(output, tuple) else output
        reader = self._outer.pop()[1]
        if reader is not None:
            record.factors, record.unclear = reader.result()
        if self.provenance is not None:
            self.provenance.mark(output, call.number)
            if not call.is_inner:
                self.provenance.resume()


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
