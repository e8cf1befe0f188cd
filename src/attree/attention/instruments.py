"""The one way to run a model while its message-passing layers are watched or changed.

A `Watcher` is told of every call of a layer: when it begins, which edges it uses, its scores before softmax, its
messages, their sums and its output. It can replace scores, weights, messages and outputs. `instrument` attaches a
watcher to all layers of a model, which should be a stand-in (`attree.attention.stand_in`); a training step is watched
on the model itself. On exit all is detached, also after an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HEATConv,
    HGTConv,
    LGConv,
    MessagePassing,
    RGATConv,
    SAGEConv,
    SGConv,
    SuperGATConv,
    TransformerConv,
)
from torch_geometric.utils import add_self_loops, remove_self_loops
from torch_geometric.utils import softmax as pyg_softmax

from attree.attention.graph import plain
from attree.attention.softmax_hook import SoftmaxPatch, check_attention, message_passing
from attree.errors import UnsupportedModelError

KNOWN = (GATConv, GATv2Conv, SuperGATConv, TransformerConv, HGTConv, HANConv, HEATConv, RGATConv)
"""Convolutions that are known to weight messages by their softmax; their subclasses may not."""

PLAIN = (GCNConv, SAGEConv, GINConv, GraphConv, LGConv, SGConv)
"""Layers without attention whose messages are their sources, or these times an edge weight, in new memory."""

T = TypeVar("T")

Softmax = Callable[[Tensor], Tensor]
"""Turns the scores of a layer into weights."""

Aggregate = Callable[[Tensor], Tensor]
"""Turns the messages of a layer into one row per destination."""


@dataclass(eq=False)
class LayerCall:
    """One running call of a message-passing layer.

    A layer that passes messages several times a call (APPNP, TAGConv, RGCNConv) makes several *steps*. Each is numbered
    as a call of its own: the first has the number of the call, the others the numbers that follow.

    A layer passes its edges, with the self-loops that it adds, to `edge_updater` and `propagate`. If it calls its
    softmax earlier, in `forward`, its edges are those it was called with, with or without self-loops: the list with as
    many edges as scores. `propagate` must then get the same list.

    Attributes:
        conv: The layer.
        name: Name of the layer in the model, such as `convs.0`.
        number: Number of the current step in the run, counted from 0; a call inside another one has the higher number.
        args: The positional arguments of the call.
        kwargs: The arguments passed by name.
        is_inner: Whether the call is made inside the call of another layer.
        edges: The edges of the last `edge_updater` or `propagate` of this call; None before.
        has_attention: Whether the call has computed a softmax by now.
        num_steps: How many times the layer has passed messages by now.
    """

    conv: MessagePassing
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_inner: bool = False
    edges: Any = None
    has_attention: bool = False
    num_steps: int = 0
    _assumed: Tensor | None = field(default=None, repr=False)
    _relations: Tensor | None = field(default=None, repr=False)
    _num_softmaxes: int = 0

    @property
    def features(self) -> Any:
        """The node features: the first argument. A tensor, a pair for sources and destinations, or a dict by type."""
        if self.args:
            return self.args[0]
        return self.kwargs.get(next(iter(signature(self.conv.forward).parameters), "x"))

    @property
    def given_edges(self) -> Any:
        """The edges that the layer was called with: the first [2, E] id tensor, or dict of such; None if none."""
        for value in (*self.args, *self.kwargs.values()):
            if is_edge_index(value) or (isinstance(value, dict) and any(map(is_edge_index, value.values()))):
                return value
        return None

    @property
    def has_two_node_sets(self) -> bool:
        """Whether sources and destinations have separate numbers, as with different node types."""
        return isinstance(self.features, tuple | list | dict)

    def pools(self, num_nodes: int) -> bool:
        """Whether messages go from all nodes of a graph of one type to other rows, as in a readout by attention.

        Its edges lead from nodes to graphs: they are no edges of the data.
        """
        features = self.features
        sides = features if isinstance(features, tuple | list) else ()
        if len(sides) != 2 or not all(isinstance(side, Tensor) and side.dim() for side in sides):
            return False
        return sides[0].shape[0] == num_nodes != sides[1].shape[0]

    def scored_edges(self, num_scores: int) -> Tensor | None:
        """Return the edges that the layer is scoring; None if no list has as many edges as scores."""
        if self.edges is not None:
            edges: Tensor = self.edges
            return edges if edges.shape[1] == num_scores else None
        for edges in self._possible_edges():
            if edges.shape[1] == num_scores:
                self._assumed = edges
                return edges
        return None

    def _possible_edges(self) -> Iterator[Tensor]:
        edges, features = plain(self.given_edges), self.features
        features = features[0] if isinstance(features, tuple | list) else features
        num_nodes = features.shape[0] if isinstance(features, Tensor) else None
        if isinstance(edges, Tensor):
            yield edges
            yield add_self_loops(remove_self_loops(edges)[0], num_nodes=num_nodes)[0]
            yield add_self_loops(edges, num_nodes=num_nodes)[0]

    def next_relation(self) -> Tensor | None:
        """Return a mask of the edges of the next relation, if the layer has one softmax per relation; else None.

        RGATConv calls its softmaxes in the order of relations, so this is called once for each of them.
        """
        if self._relations is None:
            return None
        self._num_softmaxes += 1
        return self._relations == self._num_softmaxes - 1

    def use_edges(self, edges: Any, arguments: dict[str, Any]) -> None:
        """Note the edges that the layer passes to `edge_updater` or `propagate`; raise if its softmax used others."""
        edges, assumed, self._assumed = plain(edges), self._assumed, None
        if assumed is not None and not (isinstance(edges, Tensor) and torch.equal(assumed, edges)):
            raise UnsupportedModelError(
                f"Expected {type(self.conv).__name__}, which calls its softmax before it passes messages, to pass them "
                "along the edges that it was given, with or without self-loops, but it passes them along others."
            )
        self.edges = edges
        if within_relations(self.conv):
            self._relations, self._num_softmaxes = arguments["edge_type"], 0


class Watcher:
    """Sees every call of a layer, and can change it. The methods here change nothing; override those that are needed.

    Only overridden methods cost anything in the run.
    """

    _instrument: Instrument | None = None

    def one_pass(self, function: Callable[[], T]) -> T:
        """Call a function that runs the watched model once; its calls of layers are numbered from 0."""
        return function() if self._instrument is None else self._instrument.run(function)

    def begin(self, call: LayerCall) -> None:
        """Called before a layer runs."""

    def propagate(self, call: LayerCall, arguments: dict[str, Any]) -> None:
        """Called before the layer passes messages along `call.edges`; `arguments` are those of its `propagate`."""

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        """Called in place of each softmax of the layer; returns the weights that the layer uses."""
        return softmax(scores)

    def edge_update(self, call: LayerCall, edge_update: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Called in place of the layer's `edge_update`; returns what it computes for each edge, such as attention."""
        return edge_update(**arguments)

    def message(self, call: LayerCall, message: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
        """Called in place of the layer's `message`; returns the messages along `call.edges`."""
        return message(**arguments)

    def aggregate(self, call: LayerCall, aggregate: Aggregate, messages: Tensor, index: Tensor) -> Tensor:
        """Called in place of the layer's `aggregate`; `index` is the destination of each message."""
        return aggregate(messages)

    def messages(self, call: LayerCall, messages: Tensor) -> Tensor | None:
        """Called with the messages along `call.edges`; returns messages to use instead, or None."""

    def sums(self, call: LayerCall, sums: Tensor) -> Tensor | None:
        """Called with the aggregated messages; returns other ones to use instead, or None."""

    def end(self, call: LayerCall, output: Any) -> Any:
        """Called after the layer has run; returns an output to use instead, or None."""


class Instrument:
    """A model whose layers are watched; made by `instrument`.

    Attributes:
        convs: The layers, in registration order.
    """

    def __init__(self, model: nn.Module, watcher: Watcher, attention_only: bool = False) -> None:
        self.convs = message_passing(model)
        self._attention_only = attention_only
        self._names = {conv: _path(name) for name, conv in model.named_modules()}
        self._watcher = watcher
        self._open: list[LayerCall] = []
        self._num_calls = 0

    def run(self, function: Callable[[], T]) -> T:
        """Call a function that runs the model; its calls of layers are numbered from 0."""
        self._open, self._num_calls = [], 0
        return function()

    def attach(self, stack: ExitStack) -> None:
        """Attach the watcher to all layers until the stack is closed."""
        self._watcher._instrument = self
        overridden = {name for name in vars(Watcher) if getattr(type(self._watcher), name) is not vars(Watcher)[name]}
        patched: dict[MessagePassing, dict[str, Any]] = {conv: {} for conv in self.convs}
        if "softmax" in overridden:
            patched = {conv: SoftmaxPatch(conv, self._softmax(conv)).attributes() for conv in self.convs}
            if self._attention_only:
                check_attention(patched)
        for conv, attributes in patched.items():
            handles = [
                conv.register_forward_pre_hook(self._begin, with_kwargs=True),
                conv.register_forward_hook(self._end, always_call=True),
            ]
            in_place_of: dict[str, Callable[..., Any]] = {
                "edge_update": self._edge_update,
                "message": self._message,
                "aggregate": self._aggregate,
            }
            for name in overridden & in_place_of.keys():
                # The layer's own method may be replaced already, by one with another softmax.
                attributes[name] = partial(in_place_of[name], conv, attributes.get(name, getattr(conv, name)))
            if overridden & {"propagate", "softmax", "messages", "sums", *in_place_of}:
                handles.append(conv.register_edge_update_forward_pre_hook(self._see_edges))
            if overridden & {"propagate", "softmax", "messages", "sums", *in_place_of} or makes_steps(conv):
                handles.append(conv.register_propagate_forward_pre_hook(self._propagate))
            if "messages" in overridden:
                handles.append(conv.register_message_forward_hook(self._messages))
            if "sums" in overridden:
                handles.append(conv.register_propagate_forward_hook(self._sums))
            for handle in handles:
                stack.callback(handle.remove)
            for name, value in attributes.items():
                stack.callback(_restore, conv, name, name in vars(conv), vars(conv).get(name))
                vars(conv)[name] = value

    def _running(self, conv: MessagePassing) -> LayerCall:
        """Return the innermost running call, which must be a call of this layer."""
        if not self._open or self._open[-1].conv is not conv:
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to be called as a module, `conv(...)`, but a method of it was called, "
                "which hooks do not see."
            )
        return self._open[-1]

    def _begin(self, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = LayerCall(conv, self._names[conv], self._num_calls, args, kwargs, bool(self._open))
        self._num_calls += 1
        self._open.append(call)
        self._watcher.begin(call)

    def _see_edges(self, conv: MessagePassing, inputs: Any) -> None:
        self._running(conv).use_edges(inputs[0], inputs[-1])

    def _propagate(self, conv: MessagePassing, inputs: Any) -> None:
        call = self._running(conv)
        call.use_edges(inputs[0], inputs[-1])
        call.num_steps += 1
        if call.num_steps > 1 and makes_steps(conv):
            call.number, self._num_calls = self._num_calls, self._num_calls + 1
        self._watcher.propagate(call, inputs[-1])

    def _softmax(self, conv: MessagePassing) -> Callable[..., Tensor]:
        def softmax(src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            call = self._running(conv)
            call.has_attention = True
            return self._watcher.softmax(call, src, lambda scores: pyg_softmax(scores, *args, **kwargs))

        return softmax

    def _edge_update(self, conv: MessagePassing, edge_update: Callable[..., Any], **arguments: Any) -> Any:
        return self._watcher.edge_update(self._running(conv), edge_update, arguments)

    def _message(self, conv: MessagePassing, message: Callable[..., Tensor], **arguments: Any) -> Tensor:
        return self._watcher.message(self._running(conv), message, arguments)

    def _aggregate(
        self, conv: MessagePassing, aggregate: Callable[..., Tensor], messages: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        index = kwargs["index"] if "index" in kwargs else args[0]
        call = self._running(conv)
        return self._watcher.aggregate(call, lambda inputs: aggregate(inputs, *args, **kwargs), messages, index)

    def _messages(self, conv: MessagePassing, inputs: Any, messages: Tensor) -> Tensor | None:
        return self._watcher.messages(self._running(conv), messages)

    def _sums(self, conv: MessagePassing, inputs: Any, sums: Tensor) -> Tensor | None:
        return self._watcher.sums(self._running(conv), sums)

    def _end(self, conv: MessagePassing, inputs: Any, output: Any) -> Any:
        if not self._open or self._open[-1].conv is not conv:
            return None  # an exception ended calls inside this one
        call = self._open.pop()
        return None if output is None else self._watcher.end(call, output)


@contextmanager
def instrument(model: nn.Module, watcher: Watcher, attention_only: bool = False) -> Iterator[Instrument]:
    """While open, `watcher` sees every call of the message-passing layers of `model`.

    Args:
        model: The model; what is patched and hooked is visible to everyone who uses it, so pass a stand-in.
        watcher: The watcher.
        attention_only: Refuse a model if a layer has no attention.

    Raises:
        UnsupportedModelError: If there are no message-passing layers, or if `attention_only` and one has no softmax.
    """
    instrumented = Instrument(model, watcher, attention_only)
    with ExitStack() as stack:
        instrumented.attach(stack)
        yield instrumented


SoftmaxHook = Callable[[MessagePassing, Tensor, Softmax], Tensor]
"""Called as `hook(conv, scores, softmax)` in place of the softmax; returns the weights that the convolution uses."""


class _SoftmaxWatcher(Watcher):
    """Passes every softmax on to a function."""

    def __init__(self, hook: SoftmaxHook) -> None:
        self._hook = hook

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        return self._hook(call.conv, scores, softmax)


@contextmanager
def hook_softmax(model: nn.Module, hook: SoftmaxHook) -> Iterator[list[MessagePassing]]:
    """While open, every attention softmax of `model` goes through `hook`; returns the attention convolutions.

    Args:
        model: A model whose message passing is done by PyG attention convolutions. It is changed while this is open.
        hook: Gets the convolution, its scores before softmax, [E'] or [E', heads], and the softmax.
    """
    with instrument(model, _SoftmaxWatcher(hook), attention_only=True) as instrumented:
        yield instrumented.convs


def within_relations(conv: MessagePassing) -> bool:
    """Whether a convolution has one softmax per relation, over the edges of that relation only."""
    return isinstance(conv, RGATConv) and conv.attention_mechanism == "within-relation"


def makes_steps(conv: MessagePassing) -> bool:
    """Whether a layer may pass messages several times a call, each time from nodes to nodes.

    Layers that are known do so once, and HANConv once for each relation, which it combines by attention.
    """
    return type(conv) not in (*KNOWN, *PLAIN) or getattr(conv, "K", 1) > 1


def is_edge_index(value: Any) -> bool:
    """Whether a value is an edge list: ids of shape [2, E]."""
    fits = isinstance(value, Tensor) and value.layout == torch.strided and value.dim() == 2 and value.shape[0] == 2
    return fits and value.dtype == torch.int64


def _restore(conv: MessagePassing, name: str, had: bool, value: Any) -> None:
    """Restore an attribute of an instance: remove it, or set its value from before."""
    if had:
        vars(conv)[name] = value
    else:
        vars(conv).pop(name, None)


def _path(name: str) -> str:
    """Return the name of a submodule without the parts that `torch.compile` adds."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
