"""One recorded forward pass, with each convolution computed and stored by its algebra.

A stand-in of the model runs, with copies of its weights in the exact dtype and another `forward` of each convolution.

SGFormer's attention stands beside its GCN and reads only the features. Exact updates then take its recorded output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention
from attree.attention.global_attention_calls import GlobalCall, GlobalModuleCall, GlobalWatcher, watch_global
from attree.attention.global_weight_matrices import KernelWeights
from attree.attention.graph import Graph
from attree.attention.instruments import is_edge_index
from attree.attention.marked_tensors import tensors_in
from attree.attention.softmax_hook import SoftmaxPatch, message_passing
from attree.attention.stand_ins import copied, eval_mode, run_eagerly, stand_in
from attree.errors import UnsupportedModelError
from attree.faithfulness.exact.attention_update import LayerTrace, project, trace_layer
from attree.faithfulness.exact.call_arguments import (
    ConvArguments,
    LayerEdges,
    MessageArguments,
    given_edges,
    given_weights,
)
from attree.faithfulness.exact.convolution_algebra import ALGEBRAS
from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.faithfulness.exact.lazy_features import LazyRows, Store, compact_features
from attree.faithfulness.exact.lazy_sums import LazySums
from attree.faithfulness.exact.message_trace import MessageTrace, trace_messages
from attree.faithfulness.exact.node_tables import NodeNumbers, NodeTables
from attree.faithfulness.wide_floats import WideFloats
from attree.subject import ModelCall, Part, Subject
from attree.subject.arguments import Kind
from attree.subject.graph_part import take_index
from attree.subject.head import check_output
from attree.subject.model_call import NotRowwiseError
from attree.subject.output_selection import WithoutSelection
from attree.subject.target_roots import OutputLevel
from attree.tensors.function_modes import SwitchedMode
from attree.tensors.precision import exact_dtype


def edge_free_modules(subject: Subject) -> frozenset[str]:
    """Return the names of the modules over all nodes of one graph, if none of them depends on edges.

    The trace says that no layer along edges feeds them; two passes without a half of the edges each must not change
    what they read.
    """
    try:
        trace = subject.global_trace
    except UnsupportedModelError:
        return frozenset()
    if trace is None or subject.level == "graph" or subject.outputs.nodes is not None:
        return frozenset()
    for layer, step in enumerate(trace.steps):
        later_steps = [trace.steps[later] for later, _ in trace.wiring.feeds[layer]]
        if isinstance(step, int) and any(isinstance(later, GlobalCall) for later in later_steps):
            return frozenset()
    # Rows of several edges run at once: a matrix of all pairs of them would not fit into memory.
    if any(call.nodes.shape[0] != 1 or not isinstance(call.weights, KernelWeights) for call in trace.calls):
        return frozenset()
    count = subject.call.edge_index.shape[1]
    halves = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(subject.device).tensor_split(2)
    usual = _inputs(subject, halves[0][:0])
    for half in halves:
        without = _inputs(subject, half)
        if len(without) != len(usual) or not all(map(torch.equal, without, usual)):
            return frozenset()
    return frozenset(call.name for call in trace.calls)


@torch.no_grad()
def _inputs(subject: Subject, columns: Tensor) -> list[Tensor]:
    """Return what the modules over all nodes read without some edges."""
    watcher, call = _Inputs(), subject.call.without_edges(columns) if columns.numel() else subject.call
    with eval_mode(subject.model), watch_global(subject.model, watcher):
        call.run()
    return watcher.inputs


class _Inputs(GlobalWatcher):
    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def begin(self, call: GlobalModuleCall) -> None:
        self.inputs.extend(tensor.clone() for tensor in tensors_in((call.args, call.kwargs)))


class RecordedOutputs:
    """Records the outputs of modules in a pass over all nodes, and returns their rows in passes over some rows.

    Attributes:
        rows: The node of each row of the next pass; None for all nodes, which records.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self._outputs: dict[str, Tensor] = {}

    def hook(self, name: str, output: Any) -> Any:
        """Return the output to use for a call of the module of this name."""
        dense = output[0] if isinstance(output, tuple) else output
        if self.rows is None:
            self._outputs[name] = dense.detach().clone()
            return None
        recorded = self._outputs[name]
        # In place, so that whoever follows the rows through the model still sees where they come from.
        rows = dense.clone().copy_(recorded.index_select(1, self.rows))
        return (rows, *output[1:]) if isinstance(output, tuple) else rows


Handler = Callable[[MessagePassing, tuple[Any, ...], dict[str, Any]], Any]
"""Called as `handler(conv, args, kwargs)` in place of the forward of a convolution with attention, or the `propagate`
of a layer without; returns what these would return."""

Around = Callable[[MessagePassing, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called as `around(conv, forward, args, kwargs)` for each layer without attention, whose `forward` it may run."""

Layer = LayerTrace | MessageTrace
"""The trace of one call: of a convolution with attention, or of the `propagate` of a layer without."""


class RowModel:
    """A stand-in of a model with a copy of its current weights, whose convolutions are replaced.

    Args:
        model: The model.
        dtype: The exact dtype.
        edge_free: Names of its modules over all nodes whose outputs do not depend on edges.
        graph: The graph, for a model that holds tables or makes tensors with one row per node; None for others.
        selection: The context that undoes the selection of the nodes whose outputs it returns; None if it has none.

    Raises:
        NotRowwiseError: If one of its attention convolutions has no known algebra.

    Attributes:
        convs: All message-passing layers of the model.
        forward_arguments: The arguments of the last call of each layer without attention.
        context: The context that makes narrow floats wide; None for none.
        tables: The tables of nodes that it holds; None unless the graph is given.
        numbers: What it makes for each node; None unless the graph is given.
        selection: The context that undoes the selection of nodes; None for none.
        links: The arguments about edges on rows, if the model has one output per edge: layers get none of them.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        edge_free: Collection[str] = (),
        graph: Graph | None = None,
        selection: WithoutSelection | None = None,
    ) -> None:
        self.model = stand_in(model, partial(copied, dtype=dtype))
        tensors = (*self.model.parameters(), *self.model.buffers())
        self.tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.tables = None if graph is None else NodeTables(self.model, graph)
        self.numbers = None if graph is None else NodeNumbers(graph)
        self.selection = selection
        self.links: list[Tensor] = []
        self.everywhere = RecordedOutputs()
        for name in edge_free:
            hook = partial(self._everywhere, name)
            self.model.get_submodule(name).register_forward_hook(hook)
        self.convs = message_passing(self.model)
        if not self.convs:
            raise NotRowwiseError("it has no layers that send messages along edges")
        for conv in self.convs:
            if type(conv) in ALGEBRAS and "forward" not in vars(conv):
                vars(conv)["forward"] = partial(self._answer, conv)
            elif "forward" in vars(conv) or "propagate" in vars(conv) or computes_softmax(conv):
                raise NotRowwiseError(f"the arithmetic of its layer {type(conv).__name__} is not known")
            else:
                vars(conv)["propagate"] = partial(self._answer, conv)
                vars(conv)["forward"] = partial(self._forward, conv)
        # The own code of a layer without attention may make float32 tensors.
        makes_floats = graph is not None or any("propagate" in vars(conv) for conv in self.convs)
        self.context = WideFloats() if makes_floats and dtype == torch.float64 else None
        self.forward_arguments: dict[MessagePassing, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._handler: Handler | None = None
        self._around: Around | None = None

    def cut(self, rows: Tensor | None, store: Store) -> None:
        """Prepare the next pass, on some nodes; None for a pass over all nodes."""
        self.links = []
        self.everywhere.rows = None if rows is None else rows.clone()  # not the numbers that the call itself reads
        if self.tables is not None:
            self.tables.cut(rows, store)
        if self.numbers is not None:
            self.numbers.start(rows)
        if self.selection is not None:
            self.selection.start(rows is None)

    @torch.no_grad()
    def __call__(self, call: ModelCall, handler: Handler, around: Around | None = None) -> Any:
        """Run a call of the model with `handler` in place of each convolution or `propagate`."""
        self._handler, self._around, self.forward_arguments = handler, around, {}
        with ExitStack() as contexts:
            contexts.enter_context(run_eagerly())
            for mode in self._modes(is_layer=True):
                contexts.enter_context(mode)
            return call.on_model(self.model).run()

    def _modes(self, is_layer: bool) -> list[SwitchedMode]:
        """Return the contexts of the model's own code, with or without the one for code of layers."""
        modes = (self.context if is_layer else None, self.numbers, self.selection)
        return [mode for mode in modes if mode is not None]

    def _everywhere(self, name: str, module: nn.Module, args: Any, output: Any) -> Any:
        return self.everywhere.hook(name, output)

    def _forward(self, conv: MessagePassing, *args: Any, **kwargs: Any) -> Any:
        self.forward_arguments[conv] = args, kwargs
        if self.links:
            args, kwargs = torch.utils._pytree.tree_map_only(Tensor, self._without_links, (args, kwargs))
        forward = partial(type(conv).forward, conv)
        # What a layer makes or selects for its edges is no table and no selection of nodes.
        with _switched(self._modes(is_layer=False), False):
            return forward(*args, **kwargs) if self._around is None else self._around(conv, forward, args, kwargs)

    def _without_links(self, value: Tensor) -> Tensor:
        """Return an argument of a layer, without its columns or rows if it belongs to links."""
        if not any(value is links for links in self.links):
            return value
        return value[:, :0] if is_edge_index(value) else value[:0]

    def _answer(self, conv: MessagePassing, *args: Any, **kwargs: Any) -> Any:
        assert self._handler is not None
        with self.in_model(False):
            return self._handler(conv, args, kwargs)

    def in_model(self, is_active: bool = True) -> AbstractContextManager[None]:
        """Return the context for code of the model that the handler calls, or for the handler's code."""
        if is_active:  # messages make no tables and select no nodes
            return _switched([] if self.context is None else [self.context], True)
        return _switched(self._modes(is_layer=True), False)


def _switched(modes: Sequence[SwitchedMode], is_active: bool) -> AbstractContextManager[None]:
    """Return the context in which some contexts are switched on or off."""
    if len(modes) < 2:
        return modes[0].switched(is_active) if modes else nullcontext()
    return _all_switched(modes, is_active)


@contextmanager
def _all_switched(modes: Sequence[SwitchedMode], is_active: bool) -> Iterator[None]:
    with ExitStack() as contexts:
        for mode in modes:
            contexts.enter_context(mode.switched(is_active))
        yield


Arguments = ConvArguments | MessageArguments
"""The arguments of one call, of either kind."""

Watcher = Callable[[Layer, Arguments, Tensor], None]
"""Called as `watcher(trace, arguments, output)` after each call of a convolution."""


class PreparedFeatures:
    """Floating-point arguments of a call, prepared once because they do not depend on the weights."""

    def __init__(self, call: ModelCall) -> None:
        self._prepared: dict[int, tuple[Tensor, Tensor]] = {}
        values = [
            part for value in call.values for part in (value.values() if isinstance(value, Mapping) else (value,))
        ]
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0:
                whole = value.detach()
                whole = whole if whole.dtype.itemsize >= 4 else whole.float()
                self._prepared[id(value)] = whole, compact_features(whole)

    def lazy(self, value: Any, dtype: torch.dtype, store: Store) -> LazyRows | None:
        """Return an argument as lazy rows; None if it is not a floating-point tensor."""
        if id(value) not in self._prepared:
            return None
        whole, compact = self._prepared[id(value)]
        return LazyRows(whole, None, dtype, store, id(value), compact)


@dataclass(frozen=True)
class Recording:
    """One recorded forward pass.

    Attributes:
        model: The model with the weights of the recorded pass.
        graph: The graph with self-loops.
        layers: The trace of each call, in order.
        call: The recorded call of the model.
        output: The output, in the most exact dtype of the device; of all nodes, if the model selects some of them.
        attention: The attention weights; None if some layers have no attention.
        predicts_edges: Whether the model returns one row for each edge that it runs on.
    """

    model: RowModel
    graph: Graph
    layers: list[Layer]
    call: ModelCall
    output: Tensor
    attention: Attention | None
    predicts_edges: bool
    _features: PreparedFeatures
    _store: Store

    @property
    def passes_edges(self) -> bool:
        """Whether the model gets all edges on rows: only layers with attention read them, and these are replaced."""
        has_messages = any(isinstance(layer, MessageTrace) for layer in self.layers)
        return self.graph.types is None and not has_messages and self.model.tables is None

    def call_on(self, part: Part, lazy: bool = True, links: Tensor | None = None) -> ModelCall:
        """Return the recorded call of the model, on the rows of a part of the graph instead of all nodes.

        Args:
            part: The part. On a heterogeneous graph, its queried links are numbered within their node types.
            lazy: Look up features when they are read, not at once.
            links: The queried links, as numbers of output rows.
        """
        dtype = self.output.dtype

        def take(value: Tensor, index: Tensor | None) -> Tensor:
            rows = self._features.lazy(value, dtype, self._store)
            if rows is None:
                return take_index(value, index)
            rows = rows if index is None else rows.at(index)
            return rows if lazy else rows.read()

        self.model.cut(part.node, self._store)
        if self.predicts_edges and part.queries is not None:
            # Layers on rows do not read edges: these are only read by what follows them.
            call = self.call.on(replace(part, edge_index=part.queries, edge=links), take)
            self.model.links = [*call.of_kind(Kind.EDGES), *call.of_kind(Kind.EDGE)]
            return call
        if self.passes_edges:
            return self.call.on(part, take)
        # Layers on rows do not read edges, and node numbers differ within types, so pass no edges.
        none = part.node.new_empty(0)
        if self.graph.types is None:
            return self.call.on(replace(part, edge_index=none.expand(2, 0), edge=none), take)
        call = self.call.on(Part(part.node, none.expand(2, 0), none), take)
        return call.changed(lambda kind, value: part.queries if kind is Kind.IDS else value)


class Recorder:
    """Records forward passes of one call.

    Args:
        call: The call of the model.
        graph: The graph with self-loops.
        memory: Bytes of working memory, in addition to the stored results.
        edge_free: Names of modules over all nodes whose outputs do not depend on edges.
        outputs: What the rows of the output belong to.
    """

    def __init__(
        self, call: ModelCall, graph: Graph, memory: int, edge_free: Collection[str], outputs: OutputLevel
    ) -> None:
        self.call = call
        self._outputs = outputs
        self._edge_free = edge_free
        self._features = PreparedFeatures(call)
        self._graph = graph
        self._memory = memory
        self._dtype = exact_dtype(graph.device)

    def weights(self, has_tables: bool = False) -> RowModel:
        """Return a copy of the model's current weights.

        Args:
            has_tables: Whether the model holds tables or makes tensors with one row per node.

        Raises:
            NotRowwiseError: If one of its convolutions has no known algebra.
        """
        nodes, selection = self._outputs.nodes, None
        if nodes is not None:
            selection = WithoutSelection(nodes, len(self._graph.nodes(self._outputs.node_type)))
        graph = self._graph if has_tables else None
        return RowModel(self.call.user_model, self._dtype, self._edge_free, graph, selection)

    def record(self, model: RowModel, watcher: Watcher | None = None) -> Recording:
        """Run the model and record the pass.

        Raises:
            NotRowwiseError: If one of its convolutions cannot be computed row by row.
        """
        store = Store(model.tensors)
        layers: list[Layer] = []
        edges: list[LayerEdges] = []

        all_edges = LayerGraph(self._graph)

        def propagate(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            """Return the aggregated messages of a layer without attention, and record them."""
            arguments = MessageArguments.read(conv, args, kwargs, self._graph.types is not None)
            of_layer = model.forward_arguments.get(conv, ((), {}))
            layer = trace_messages(
                conv,
                arguments,
                all_edges,
                given_edges(*of_layer),
                given_weights(conv, *of_layer),
                self._memory,
                store,
                model.in_model,
                len(layers),
            )
            layers.append(layer)
            if watcher is not None:
                watcher(layer, arguments, layer.output)
            return layer.output.copy() if isinstance(layer.output, LazySums) else layer.output.clone()

        def answer(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Return the output of a convolution, computed by its algebra, and record the layer."""
            if type(conv) not in ALGEBRAS:
                return propagate(conv, args, kwargs)
            algebra = ALGEBRAS[type(conv)](conv, self._dtype)
            arguments = ConvArguments.read(algebra, args, kwargs)
            edges.append(LayerEdges.of(algebra, arguments, all_edges, len(layers)))
            features = [x.compact if isinstance(x, LazyRows) else x for x in arguments.inputs]
            states = project(algebra, edges[-1].graph, features)
            layer = trace_layer(algebra, states, edges[-1], self._memory)
            layers.append(layer)
            out = algebra.finish(layer.aggregated, layer.states.root)
            if watcher is not None:
                watcher(layer, arguments, out)
            # Later operations may change the output in place; the recorded values must not change.
            shared = out.untyped_storage().data_ptr() == layer.aggregated.untyped_storage().data_ptr()
            return arguments.answer(by_type(out.clone() if shared else out, layer), layer.weights, self._graph)

        def around(conv: MessagePassing, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            """Run a layer without attention and note what it is given, if it passes messages once."""
            tensors = [tensor for tensor in tensors_in((args, kwargs)) if not isinstance(tensor, LazyRows)]
            first, versions = len(layers), [tensor._version for tensor in tensors]
            output = forward(*args, **kwargs)
            is_unchanged = versions == [tensor._version for tensor in tensors]
            layer = layers[first] if len(layers) == first + 1 else None
            if isinstance(layer, MessageTrace) and layer.conv is conv and is_unchanged and self._graph.types is None:
                layer.forward_arguments = layer.in_lazy_rows((args, kwargs))
            return output

        def whole(kind: Kind, value: Any) -> Any:
            if kind is Kind.EDGES:
                return self._graph.original_edge_index if self._graph.types is None else self._graph.typed_edges
            if isinstance(value, Mapping):
                return {key: whole(kind, rows) for key, rows in value.items()}
            lazy = self._features.lazy(value, self._dtype, store)
            return value if lazy is None else lazy

        model.cut(None, store)
        output = model(self.call.changed(whole), answer, around)
        if model.context is not None and not model.context.has_widened:
            model.context = None  # the context takes time, and the model does not need it
        if model.numbers is not None and not model.numbers.is_needed:
            model.numbers = None
        if not layers:
            raise NotRowwiseError("it calls no message-passing layer")
        output = output.read() if isinstance(output, LazyRows) else output
        check_output(output)
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        output = output.to(self._dtype)
        attention = self._attention(layers, edges, output)
        predicts_edges = self._outputs.ends is not None and not self.call.of_kind(Kind.IDS)
        return Recording(
            model, self._graph, layers, self.call, output, attention, predicts_edges, self._features, store
        )

    def _attention(self, layers: list[Layer], edges: list[LayerEdges], output: Tensor) -> Attention | None:
        """Return the attention of all calls; None if some layers have none."""
        traces = [layer for layer in layers if isinstance(layer, LayerTrace)]
        if len(traces) < len(layers):
            return None
        features = self.call.x if self.call.has_features else output
        dtype = features.dtype if features.is_floating_point() else torch.get_default_dtype()
        weights = tuple(trace.graph.on_graph(trace.weights.to(dtype)) for trace in traces)
        typed = self._graph.types is not None
        embedding = None if typed else traces[-1].algebra.finish(traces[-1].aggregated, traces[-1].states.root)
        return Attention(self._graph, weights, tuple(edge.present for edge in edges), output, embedding)


def has_layers_without_attention(model: nn.Module) -> bool:
    """Whether a model has message-passing layers that the engine runs without an algebra."""
    return any(type(conv) not in ALGEBRAS and not computes_softmax(conv) for conv in message_passing(model))


def computes_softmax(conv: MessagePassing) -> bool:
    """Whether the code of a layer leads to PyG's softmax, so that it may have attention."""
    return bool(SoftmaxPatch(conv, lambda scores, *_, **__: scores).attributes())


def read_arguments(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Read the arguments of a recorded call when it is made again on rows."""
    if isinstance(layer, MessageTrace):
        return MessageArguments.read(layer.conv, args, kwargs, layer.graph.blocks is not None)
    return ConvArguments.read(layer.algebra, args, kwargs)


def by_type(out: Tensor, layer: Layer) -> list[Tensor]:
    """Split a layer's output for all its destinations into the tensors that it returns: one, or one per type."""
    blocks, types = layer.graph.blocks, layer.graph.graph.types
    if blocks is None or types is None or len(blocks.targets) == 1:
        return [out]
    parts = [types.nodes(blocks.inputs[number]) for number in blocks.targets]
    return [out[part.start : part.stop] for part in parts]
