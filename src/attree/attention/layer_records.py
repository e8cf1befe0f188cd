"""Record every call of an attention convolution in one forward pass: inputs, weights, output and earlier calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, RGATConv

from attree.attention.combination import Combination
from attree.attention.message_weights import WeightReader, is_known, read_weights
from attree.attention.mix import Mix
from attree.attention.provenance import NONE, Marks
from attree.attention.softmax_hook import SoftmaxHook, hook_softmax
from attree.errors import UnsupportedModelError

NOTHING = Mix({})


@dataclass
class LayerRecord:
    """One recorded call of an attention convolution: its inputs, weights and output.

    Attributes:
        conv: The convolution.
        name: Name of the convolution in the model, such as `convs.0`.
        features: The input features: a tensor, a pair for sources and destinations, or a dict by node type.
        given: The edges that the convolution was called with: a tensor, or a dict by edge type.
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
    given: Any = None
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
def record_layers(model: nn.Module, follow: bool = True, alter: SoftmaxHook | None = None) -> Iterator[LayerRecords]:
    """While open, collect one `LayerRecord` per call of an attention convolution of `model`, in the order of calls.

    Args:
        model: The model.
        follow: Also trace which call feeds which; costs some microseconds per torch operation.
        alter: Called as `alter(conv, scores, softmax)`. The convolutions use the weights that it returns, but the
            records have the weights of the softmax. Only for convolutions for which `is_known` is true.
    """
    recorder = _Recorder(Combination() if follow else None, alter)
    names = {conv: _path(name) for name, conv in model.named_modules()}
    with ExitStack() as stack:
        for conv in stack.enter_context(hook_softmax(model, recorder.see_weights)):
            for handle in (
                conv.register_forward_pre_hook(recorder.begin(names[conv]), with_kwargs=True),
                conv.register_propagate_forward_pre_hook(recorder.see_edges),
                conv.register_propagate_forward_hook(recorder.see_sums),
                conv.register_forward_hook(recorder.end),
            ):
                stack.callback(handle.remove)
            if not is_known(conv):
                if alter is not None:
                    raise UnsupportedModelError(
                        "Expected convolutions that weigh messages by what their softmax returns (GATConv, GATv2Conv, "
                        f"SuperGATConv, TransformerConv) where attention is altered, but got {type(conv).__name__}."
                    )
                recorder.readers[conv] = stack.enter_context(read_weights(conv))
        if recorder.provenance is not None:
            stack.enter_context(recorder.provenance)
        yield recorder.records


class _Recorder:
    """Hooks that fill the records."""

    def __init__(self, provenance: Combination | None, alter: SoftmaxHook | None = None) -> None:
        self.provenance = provenance
        self.alter = alter
        self.records = LayerRecords(provenance)
        self.readers: dict[MessagePassing, WeightReader] = {}
        self._open: list[int] = []

    def begin(self, name: str) -> Callable[..., None]:
        """Return the hook that opens a record for each call of the attention convolution `name`."""

        def begin(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            """Open the record of this call: its features, its edges and the earlier calls that feed this call."""
            features = features_of(conv, args, kwargs)
            record = LayerRecord(conv, name, features, edges_of(args, kwargs), _two_node_sets(features))
            number = len(self.records)
            if self._open:
                self.records[self._open[-1]].uses |= {number}
            if self.provenance is not None:
                sources, destinations = sides_of(features)
                record.mix = self.provenance.mix(sources)
                record.destination_calls = self.provenance.marks(destinations)
                record.uses |= self.provenance.marks((args, kwargs))
                self.provenance.pause()
            if conv in self.readers:
                self.readers[conv].begin()
            self.records.append(record)
            self._open.append(number)

        return begin

    def _now(self, conv: MessagePassing) -> LayerRecord:
        """Return the record of the innermost running call, which must be a call of this convolution."""
        if not self._open or self.records[self._open[-1]].conv is not conv:
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to be called as a module, `conv(...)`, but a method of it was called, "
                "which hooks do not see."
            )
        return self.records[self._open[-1]]

    def see_edges(self, conv: MessagePassing, inputs: Any) -> None:
        self._now(conv).edges.append(inputs[0])

    def see_sums(self, conv: MessagePassing, inputs: Any, output: Any) -> None:
        record = self._now(conv)
        record.sums.append(output)
        if isinstance(conv, RGATConv) and within_relations(conv) and is_known(conv):
            # There was one softmax per relation; the convolution has merged their weights.
            record.weights, record.relation = [conv._alpha], inputs[-1]["edge_type"]

    def see_weights(self, conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Record the scores and weights of a softmax call, and return the weights that the convolution uses."""
        reader = self.readers.get(conv)
        weights = softmax(scores) if reader is None else reader.softmax(scores, softmax)
        if reader is not None and reader.is_probing:
            return weights
        record = self._now(conv)
        record.scores = scores
        record.weights.append(weights)
        return weights if self.alter is None else self.alter(conv, scores, softmax)

    def end(self, conv: MessagePassing, inputs: Any, output: Any) -> None:
        """Close the record of a convolution's call: store the output, and mark the output as a result of this call."""
        # With `return_attention_weights`, a PyG convolution returns a tuple that starts with the node embeddings.
        record = self._now(conv)
        record.output = output[0] if isinstance(output, tuple) else output
        if conv in self.readers:
            record.factors, record.unclear = self.readers[conv].result()
        number = self._open.pop()
        if self.provenance is not None:
            self.provenance.mark(output, number)
            if not self._open:
                self.provenance.resume()


def within_relations(conv: MessagePassing) -> bool:
    """Whether a convolution has one softmax per relation, over the edges of that relation only."""
    return isinstance(conv, RGATConv) and conv.attention_mechanism == "within-relation"


def features_of(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the node features among the arguments of a convolution: the first argument."""
    return args[0] if args else kwargs.get(next(iter(signature(conv.forward).parameters), "x"))


def edges_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the edges among the arguments of a convolution: the first [2, E] id tensor, or dict of such; or None."""
    for value in (*args, *kwargs.values()):
        if _are_edges(value) or (isinstance(value, dict) and any(_are_edges(one) for one in value.values())):
            return value
    return None


def _are_edges(value: Any) -> bool:
    fits = isinstance(value, Tensor) and value.layout == torch.strided and value.dim() == 2 and value.shape[0] == 2
    return fits and value.dtype == torch.int64


def sides_of(features: Any) -> tuple[Any, Any]:
    """Return the features of sources and the features of destinations."""
    if isinstance(features, tuple | list):
        return features[:1], features[1:]
    return features, ()


def _path(name: str) -> str:
    """Return the name of a submodule without the parts that `torch.compile` adds."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _two_node_sets(features: Any) -> bool:
    """Whether sources and destinations have different features."""
    if not isinstance(features, tuple | list):
        return isinstance(features, dict)
    sides = [side for side in features if isinstance(side, Tensor)]
    return any(not _same(sides[0], side) for side in sides[1:])


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""

    return one is other or (
        one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
    )
