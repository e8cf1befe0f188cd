"""Capture the attention of a network: the weights of every layer on one edge list, and which layer feeds which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.alignment import Aligned, align_call, as_layers, check_nodes, ends_of, even_weights
from attree.attention.global_attention_calls import GlobalRecords
from attree.attention.graph import Graph
from attree.attention.layer_records import LayerRecords, record_layers
from attree.attention.marked_tensors import Provenance
from attree.attention.message_edges import MessageGraph
from attree.attention.softmax_hook import check_dense, check_registered, message_passing, no_python_code
from attree.attention.stand_ins import eval_mode, inplace_messages, stand_in
from attree.attention.wiring import CALLED_NONE, OUTPUT, CallGraph, Wiring, check_calls, find_calls, reaching
from attree.errors import AttreeError, ModelRunError, UnsupportedModelError, expect, expect_bool, expect_instance


@dataclass(frozen=True)
class Untraced:
    """Why the layers of a pass form no computation tree that can be walked, and what is known of them all the same.

    Attributes:
        reason: The error that says why.
        hops: Number of layers on the longest path from the input to the output, if all layers run on the nodes and
            edges of the data. None if some run on others, as after a pooling of nodes, or if there are no layers.
    """

    reason: UnsupportedModelError
    hops: int | None = None


@dataclass(frozen=True)
class Attention:
    """Attention weights of every layer on one graph, first layer first.

    A layer is one convolution call, or several calls side by side on different edge types. If the calls are averaged or
    weighted, the weights of the layer include these factors.

    Attributes:
        graph: The graph whose edges the weights are aligned with.
        weights: Per layer, the attention weights, [num_edges, heads]; 0 on edges that the layer does not use.
        present: Per layer, a mask of the edges that the layer uses, [num_edges]; None if it uses all.
        output: The output of the model in the captured pass.
        embedding: The output of the last layer, [num_nodes, channels], if it is one tensor.
        wiring: Which convolution calls are layers, and which layer feeds which; None if every call is a layer that
            feeds the next one.
        activation: The last function of the model, if it is `sigmoid`, `softmax`, `log_softmax` or `log_sigmoid`.
        uniform_weights: Per layer, the weights if every softmax gave all its edges the same weight, [num_edges]; None
            if this is 1 / n for the n used edges that enter a node.
        softmax: Per layer, the number of the softmax that weighs each edge, [num_edges]; None if one softmax weighs
            all edges that enter a node, or if several weigh the same edge.
        attends: Per layer, whether it has attention; None if all have. The weights of a layer without attention are the
            fixed factors of its messages: 1 in a sum, 1 / n in a mean of n, the normalisation of a GCN.
        untraced: Why the layers form no computation tree; None if they do. Otherwise there are no weights to read (all
            are 0), and `check_tree` raises.
        of_messages: The same attention on the graph of all messages, if some have other ends than an edge of `graph`.
            The weight of an edge is then the sum over the messages that come from it.
    """

    graph: Graph
    weights: tuple[Tensor, ...]
    present: tuple[Tensor | None, ...]
    output: Any = None
    embedding: Tensor | None = None
    wiring: Wiring | None = None
    activation: str | None = None
    uniform_weights: tuple[Tensor | None, ...] | None = None
    softmax: tuple[Tensor | None, ...] | None = None
    attends: tuple[bool, ...] | None = None
    untraced: Untraced | None = None
    of_messages: Attention | None = None

    def __post_init__(self) -> None:
        layers, edges = len(self.weights), self.graph.num_edges
        expect(layers > 0, "weights", "one tensor per layer, at least one", "none")
        expect(len(self.present) == layers, "present", f"{layers} entries", len(self.present))
        for layer, weight in enumerate(self.weights):
            fits = weight.dim() == 2 and weight.shape[0] == edges and weight.shape[1] > 0
            expect(fits, f"weights[{layer}]", f"of shape [{edges}, heads], heads >= 1", tuple(weight.shape))

    @classmethod
    def from_weights(cls, graph: Graph, weights: Sequence[Tensor]) -> Attention:
        """Return attention with given weights: one [num_edges] or [num_edges, heads] tensor per layer, on all edges."""
        columns = tuple(weight.unsqueeze(-1) if weight.dim() == 1 else weight for weight in weights)
        return cls(graph, columns, (None,) * len(columns))

    def wired(self, wiring: Wiring) -> Attention:
        """Return the attention of a wiring's layers; this attention must list all convolution calls of a pass."""
        calls = [Aligned(self.weights[call], self.present[call]) for call in wiring.calls]
        embedding = self.embedding if wiring.calls[-1] == len(self.weights) - 1 else None
        return replace(_of_layers(calls, wiring, self.graph), output=self.output, embedding=embedding)

    @property
    def walked(self) -> Attention:
        """The attention that flows follow: on the graph of all messages."""
        return self if self.of_messages is None else self.of_messages

    @property
    def calls(self) -> tuple[int, ...] | None:
        """Indices of the convolution calls that belong to a layer, in the order of the pass; None if all do."""
        return None if self.wiring is None else self.wiring.calls

    @cached_property
    def layout(self) -> Wiring:
        """Which layer feeds which: `wiring`, or a chain of all layers."""
        return Wiring.chain(range(len(self.weights))) if self.wiring is None else self.wiring

    @property
    def num_layers(self) -> int:
        """Height of the computation tree: the number of layers on the longest path from the input to the output."""
        return self.layout.depth

    @property
    def has_attention(self) -> bool:
        """Whether any layer has attention."""
        return self.attends is None or any(self.attends)

    @property
    def runs_on_data(self) -> bool:
        """Whether all layers run on the nodes and edges of the data."""
        return self.untraced is None or self.untraced.hops is not None

    def check_tree(self) -> None:
        """Raise if the layers form no computation tree that can be walked; the message says why."""
        if self.untraced is not None:
            raise UnsupportedModelError(f"{self.untraced.reason} (Method `occlusion` needs no computation tree.)")

    def check_chain(self) -> None:
        """Raise unless each layer feeds only the next one."""
        self.check_tree()
        if not self.layout.is_chain:
            raise UnsupportedModelError(
                "Expected a network whose attention layers form a chain, but got one with branches: GAtt scores its "
                "edges, but single flows cannot be listed."
            )

    def per_edge(self, heads: Sequence[int] | None = None) -> list[Tensor]:
        """Return one weight per edge and layer: the mean over heads, or the chosen head of each layer.

        Args:
            heads: The head to read in each layer; None averages all heads.
        """
        self.check_tree()
        if heads is None:
            return [weight.mean(dim=1) for weight in self.weights]
        layers = len(self.weights)
        expect(len(heads) == layers, "heads", f"{layers} integers, one per layer", list(heads))
        for head, weight in zip(heads, self.weights, strict=True):
            expect(0 <= head < weight.shape[1], "heads", f"head numbers in [0, {weight.shape[1]})", head)
        return [weight[:, head] for head, weight in zip(heads, self.weights, strict=True)]


def capture_attention(
    model: nn.Module,
    x: Any,
    edge_index: Any,
    *args: Any,
    graph: Graph | None = None,
    wiring: Wiring | None = None,
    grad: bool = False,
    **kwargs: Any,
) -> Attention:
    """Run `model(x, edge_index, *args, **kwargs)` in eval mode and return its attention, by default without gradients.

    Works on any model whose message passing is done by PyG convolutions that use PyG's softmax (GATConv, GATv2Conv,
    SuperGATConv, TransformerConv, HGTConv, HANConv and others). The pass is traced to find which call feeds which.
    Calls that do not affect the output are left out. Branches get the factors with which they are added, averaged or
    weighted. Compiled models run eagerly. The model itself is not touched: a stand-in runs.

    Args:
        model: The model.
        x: Node features or node ids, one row per node; for a heterogeneous graph, a dict by node type.
        edge_index: The edges, [2, E]; for a heterogeneous graph, a dict by edge type.
        *args: Further positional arguments of the model.
        graph: The graph of `edge_index`, if it was built already.
        wiring: `Attention.wiring` of an earlier pass of the model; saves the search for it.
        grad: Keep the weights differentiable with respect to the model's parameters and inputs, so that they, or GAtt
            scores computed from them, can be part of a loss.
        **kwargs: Further keyword arguments of the model.

    Raises:
        UnsupportedModelError: If the attention of the model does not form one computation tree on this graph.

    >>> from torch_geometric.nn import GAT
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> attention = capture_attention(GAT(8, 16, 2, out_channels=3, heads=2), x, edge_index)
    >>> [tuple(weights.shape) for weights in attention.weights]  # per layer: 3 edges and 3 self-loops, 2 heads
    [(6, 2), (6, 2)]
    """
    check_model(model)
    expect_instance(graph, "graph", Graph, optional=True)
    expect_instance(wiring, "wiring", Wiring, optional=True)
    expect_bool(grad, "grad")
    expect(not (grad and torch.is_inference_mode_enabled()), "grad", "False in inference mode", grad)
    graph_of_call = graph_of(x, edge_index)
    if graph is None:
        graph = graph_of_call
    else:
        same = graph.matches(graph_of_call.original_edge_index, graph_of_call.num_nodes)
        expect(same, "graph", "the graph of `edge_index`", "another graph")
    private = stand_in(model)
    named = [("x", x), ("edge_index", edge_index), *(("", value) for value in args), *kwargs.items()]
    arguments = describe_arguments(named)
    return capture_run(private, lambda: private(x, edge_index, *args, **kwargs), graph, wiring, grad, arguments)


def capture_run(
    model: nn.Module,
    run: Callable[[], Any],
    graph: Graph,
    wiring: Wiring | None = None,
    grad: bool = False,
    arguments: str = "",
    everywhere: GlobalRecords | None = None,
) -> Attention:
    """Like `capture_attention`, for a function that calls the model.

    Args:
        model: The model.
        run: Calls the model on `graph`.
        graph: The graph.
        wiring: `Attention.wiring` of an earlier pass of the model.
        grad: Keep the weights differentiable.
        arguments: The arguments of the call in words, for messages.
        everywhere: Also records the calls that attend over all nodes.
    """
    check_dense(model)
    has_layers = bool(message_passing(model))  # raises if there is nothing to hook: it may not even have an eval mode
    is_wired = wiring is not None and wiring.is_fixed
    with eval_mode(model), inplace_messages(model), torch.no_grad():
        follow = not is_wired or everywhere is not None
        num_nodes = graph.num_nodes if graph.types is None else None
        with torch.set_grad_enabled(grad), record_layers(model, follow, None, False, everywhere, num_nodes) as records:
            output = _run(model, run, arguments)
        if everywhere is not None:
            assert records.provenance is not None
            everywhere.feeds[OUTPUT] = dict(records.provenance.mix(output).factors)
        if not records:
            if has_layers:
                raise UnsupportedModelError(CALLED_NONE)
            return _without_edges(graph, output)
        call_graph: CallGraph | None = None
        if not is_wired:
            for call in sorted(reaching(records, output)):
                check_nodes(records, call, graph)
            call_graph = check_calls(model, run, records, find_calls(records, output, graph), output)
        with torch.set_grad_enabled(grad):
            return _aligned(records, graph, output, call_graph, wiring, grad)


def without_tree(
    model: nn.Module, run: Callable[[], Any], inputs: Any, graph: Graph, reason: UnsupportedModelError
) -> Attention:
    """Return what a pass says of a model whose layers form no computation tree: its output and its last function.

    Args:
        model: The model.
        run: Calls the model on `graph`.
        inputs: The arguments of the call.
        graph: The graph.
        reason: The error that says why the layers form no tree.

    Raises:
        UnsupportedModelError: That error, if the pass calls no layer of the model, but perhaps another model.
    """
    layers = [module for module in model.modules() if isinstance(module, MessagePassing)] or [*model.modules()]
    called: list[nn.Module] = []
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(lambda module, _: called.append(module)).remove)
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.no_grad())
        provenance = stack.enter_context(Provenance())
        provenance.mark(inputs, 0)
        output = run()
    if not called:
        raise reason
    calls = _calls_on_data(model, run, graph)
    used = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
    used[graph.position] = True
    hops = None
    if calls is not None:
        hops, aligned = calls
        for call in aligned:
            of_call = torch.ones_like(graph.walked.source, dtype=torch.bool) if call.present is None else call.present
            if isinstance(graph.walked, MessageGraph):
                owners = graph.walked.owner[of_call]
                of_call = torch.zeros_like(used).index_fill_(0, owners[owners >= 0], True)
            used |= of_call
    depth, none = 1 if hops is None else hops, torch.zeros(graph.num_edges, 1, device=graph.device)
    has_attention = calls is not None and any(call.has_attention for call in calls[1])
    return Attention(
        graph,
        (none.to(output.dtype) if isinstance(output, Tensor) and output.is_floating_point() else none,) * depth,
        (None if bool(used.all()) else used,) * depth,
        output,
        activation=provenance.activation(output),
        attends=(has_attention,) * depth,
        untraced=Untraced(reason, hops),
    )


def _calls_on_data(model: nn.Module, run: Callable[[], Any], graph: Graph) -> tuple[int, list[Aligned]] | None:
    """Return the length of the longest path of calls from the input to the output, and all calls aligned with a graph.

    None if some calls do not run on the nodes and edges of the graph, or if layers are missing.
    """
    try:
        check_dense(model)
        num_nodes = graph.num_nodes if graph.types is None else None
        with eval_mode(model), torch.no_grad(), record_layers(model, num_nodes=num_nodes) as records:
            output = run()
        calls = sorted(reaching(records, output))
        if not calls:
            return None
        for call in calls:
            check_nodes(records, call, graph)
        aligned = [align_call(records, call, graph) for call in calls]
    except UnsupportedModelError:
        return None
    depths: dict[int, int] = {}
    for call in calls:
        depths[call] = 1 + max((depths[before] for before in records[call].uses if before in depths), default=0)
    return max(depths.values()), aligned


def attention_of_pass(records: LayerRecords, graph: Graph, output: Any, grad: bool = False) -> Attention:
    """Return the attention of a pass that cannot be repeated, such as a training step; recorded with `follow=True`.

    Args:
        records: The records of `record_layers`.
        graph: The graph of the pass.
        output: The output of the pass; the layers are the calls that it depends on.
        grad: Keep the gradients of the weights, if the pass had them.

    Raises:
        UnsupportedModelError: If the layers do not form one computation tree on this graph.
    """
    for call in sorted(reaching(records, output)):
        check_nodes(records, call, graph)
    return _aligned(records, graph, output, find_calls(records, output, graph), None, grad)


def _aligned(
    records: LayerRecords, graph: Graph, output: Any, call_graph: CallGraph | None, wiring: Wiring | None, grad: bool
) -> Attention:
    """Return the recorded calls as layers, aligned with the edges of a graph."""
    used: Sequence[int] = () if wiring is None else wiring.calls
    used = used if call_graph is None else call_graph.calls
    expect(max(used) < len(records), "wiring", f"one of the {len(records)} calls made", f"one of call {max(used)}")
    calls = [align_call(records, call, graph, grad) for call in used]
    if call_graph is not None:
        wiring = call_graph.wiring(ends_of(calls, graph))
    assert wiring is not None
    last = records[wiring.calls[-1]].output
    attention = _of_layers(calls, wiring, graph.walked)
    if isinstance(graph.walked, MessageGraph):
        attention = _on_data(attention, graph, graph.walked.owner)
    activation = None if records.provenance is None else records.provenance.activation(output)
    embedding = last if isinstance(last, Tensor) else None
    return replace(attention, output=output, embedding=embedding, activation=activation)


def _on_data(attention: Attention, graph: Graph, owner: Tensor) -> Attention:
    """Return attention on the messages of a graph as attention on its edges: the sum over the messages of an edge."""
    is_owned = owner >= 0

    def total(values: Tensor) -> Tensor:
        sums = values.new_zeros(graph.num_edges, *values.shape[1:])
        return sums.index_add_(0, owner[is_owned], values[is_owned])

    ones = torch.ones_like(owner)
    present = (total(ones if mask is None else mask.long()) > 0 for mask in attention.present)
    uniform_weights = attention.uniform_weights or (None,) * len(attention.weights)
    parts = zip(attention.weights, attention.present, uniform_weights, strict=True)
    even = (total(even_weights(Aligned(*part), attention.graph)) for part in parts)
    return replace(
        attention,
        graph=graph,
        weights=tuple(map(total, attention.weights)),
        present=tuple(None if bool(mask.all()) else mask for mask in present),
        uniform_weights=tuple(even),
        softmax=None,
        of_messages=attention,
    )


def _without_edges(graph: Graph, output: Any) -> Attention:
    """Return the attention of a model that only attends over all nodes: one layer that uses no edge."""
    weights, unused = torch.zeros(graph.num_edges, 1), torch.zeros(graph.num_edges, dtype=torch.bool)
    wiring = Wiring(((),), ((),), ((),), (0.0,))
    present = unused.to(graph.device)
    return Attention(graph, (weights.to(graph.device),), (present,), output, wiring=wiring, attends=(False,))


def _of_layers(calls: Sequence[Aligned], wiring: Wiring, graph: Graph) -> Attention:
    """Return the attention of a forward pass on a graph: the aligned calls of convolutions, as layers with weights."""
    layers = as_layers(calls, wiring, graph)
    uniform = tuple(layer.uniform_weights for layer in layers)
    softmax = tuple(layer.softmax for layer in layers)
    attends = tuple(layer.has_attention for layer in layers)
    return Attention(
        graph,
        tuple(layer.weights for layer in layers),
        tuple(layer.present for layer in layers),
        wiring=wiring,
        uniform_weights=None if all(values is None for values in uniform) else uniform,
        softmax=None if all(values is None for values in softmax) else softmax,
        attends=None if all(attends) else attends,
    )


def _run(model: nn.Module, run: Callable[[], Any], arguments: str) -> Any:
    """Call the model. If its forward raises, raise an error that says what it raised, and where."""
    try:
        return run()
    except Exception as error:
        if isinstance(error, AttreeError | torch.OutOfMemoryError):
            raise
        raise ModelRunError(
            f"Expected {type(model).__name__}.forward to run on these arguments, but it raised "
            f"{type(error).__name__}{_where_raised(error)}: {' '.join(str(error).split())}"
            + (f" The arguments were {arguments}." if arguments else "")
        ) from error


def describe_arguments(named: Iterable[tuple[str, Any]]) -> str:
    """Return the names, shapes and types of arguments in words."""
    texts = []
    for name, value in named:
        kind = type(value).__name__
        if isinstance(value, Tensor):
            kind = f"{list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
        texts.append(f"`{name}` {kind}" if name else kind)
    return ", ".join(texts)


def _where_raised(error: Exception) -> str:
    """Return the line of the user's code that raised an error: the last one outside of installed packages."""
    installed = ("site-packages", "dist-packages", str(Path(__file__).parents[1]))
    frames = [
        frame for frame in extract_tb(error.__traceback__) if not any(part in frame.filename for part in installed)
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def check_model(model: Any) -> None:
    """Raise unless `model` is a module. A dict of weights from a checkpoint does not say what is computed with them."""
    hint = " (weights alone: build the model and call `model.load_state_dict`)" if isinstance(model, Mapping) else ""
    expect(isinstance(model, nn.Module), "model", f"a torch.nn.Module{hint}", type(model).__name__)
    if isinstance(model, torch.jit.ScriptModule):
        raise no_python_code(model)
    check_registered(model)


def graph_of(x: Any, edge_index: Any) -> Graph:
    """Return the graph of a call; if the arguments are dicts by type, the union of the types."""
    if isinstance(x, Mapping) or isinstance(edge_index, Mapping):
        expect(isinstance(edge_index, Mapping), "edge_index", "a dict by edge type, as `x` is one", _kind(edge_index))
        expect(isinstance(x, Mapping), "x", "a dict by node type, as `edge_index` is one", _kind(x))
        for node_type, rows in x.items():
            expect(isinstance(rows, Tensor) and rows.dim() >= 1, f"x[{node_type!r}]", "one row per node", _kind(rows))
        node_types = set(x)
        for kind in edge_index:
            fits = isinstance(kind, tuple) and len(kind) == 3 and kind[0] in node_types and kind[2] in node_types
            expect(fits, "edge_index", f"a dict by (source, relation, destination) among {sorted(node_types)}", kind)
        return Graph.of_types(edge_index, {node_type: rows.shape[0] for node_type, rows in x.items()})
    expect(isinstance(x, Tensor) and x.dim() >= 1, "x", "a tensor with one row per node", _kind(x))

    return Graph(edge_index, x.shape[0])


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
