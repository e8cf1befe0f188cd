"""Capture what a network attended to: the weights of every layer, aligned with one edge list, and what feeds what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.alignment import Aligned, align_call, as_layers, check_nodes, ends_of
from attree.attention.eager import eval_mode
from attree.attention.find_calls import check_calls, find_calls, reaching
from attree.attention.graph import Graph
from attree.attention.inplace_messages import inplace_messages
from attree.attention.layer_records import LayerRecord, LayerRecords, record_layers
from attree.attention.softmax_hook import message_passing
from attree.attention.wiring import CallGraph, Wiring
from attree.errors import AttreeError, ModelRunError, UnsupportedModelError, expect, expect_bool, expect_instance

__all__ = [
    "Attention",
    "LayerRecord",
    "capture_attention",
    "capture_run",
    "eval_mode",
    "record_layers",
]


@dataclass(frozen=True)
class Attention:
    """Attention weights of every layer on one graph, first layer first.

    A layer is one call of a convolution, or several side by side on other types of edges. Its weights are the entries
    of the matrix that flows pass: where calls are averaged or weighed, times what they are weighed by.

    Attributes:
        graph: The edge list that the weights are aligned with.
        weights: Per layer [num_edges, heads]; 0 on edges that the layer does not use.
        present: Per layer, which edges the layer uses [num_edges]; None if it uses all, as GAT-like layers do.
        output: The model's output in the captured pass.
        embedding: What the last of the layers returned, [num_nodes, channels], if that is one tensor.
        wiring: Which calls of convolutions, in their order in the pass, the layers are, and what feeds what; None if
            the layers are all calls, and each feeds the next.
        activation: The function that the output is the outcome of (`sigmoid`, `softmax`, `log_softmax`,
            `log_sigmoid`), where this was seen.
        even: Per layer, what the weights would be if every softmax weighed its edges alike, [num_edges]; None where
            that is 1 by the number of used edges that enter the same node.
        softmax: Per layer, the number of the softmax that weighs each edge, [num_edges]. None where one softmax weighs
            all edges that enter a node, or where several weigh the same edge.
    """

    graph: Graph
    weights: tuple[Tensor, ...]
    present: tuple[Tensor | None, ...]
    output: Any = None
    embedding: Tensor | None = None
    wiring: Wiring | None = None
    activation: str | None = None
    even: tuple[Tensor | None, ...] | None = None
    softmax: tuple[Tensor | None, ...] | None = None

    def __post_init__(self) -> None:
        expect(len(self.weights) > 0, "weights", "one tensor a layer, at least one", "none")
        expect(
            len(self.present) == len(self.weights),
            "present",
            f"{len(self.weights)} entries",
            len(self.present),
        )
        for layer, weight in enumerate(self.weights):
            expect(
                weight.dim() == 2 and weight.shape[0] == self.graph.num_edges and weight.shape[1] > 0,
                f"weights[{layer}]",
                f"of shape [{self.graph.num_edges}, heads], heads >= 1",
                tuple(weight.shape),
            )

    @classmethod
    def from_weights(cls, graph: Graph, weights: Sequence[Tensor]) -> Attention:
        """Wrap weights that are at hand: one tensor a layer, [num_edges] or [num_edges, heads], using all edges."""
        columns = tuple(weight.unsqueeze(-1) if weight.dim() == 1 else weight for weight in weights)
        return cls(graph, columns, (None,) * len(columns))

    def wired(self, wiring: Wiring) -> Attention:
        """Keep only the layers of a wiring; this attention must list all calls of a pass."""
        calls = [Aligned(self.weights[call], self.present[call]) for call in wiring.calls]
        embedding = self.embedding if wiring.calls[-1] == len(self.weights) - 1 else None
        return replace(_of_layers(calls, wiring, self.graph), output=self.output, embedding=embedding)

    @property
    def calls(self) -> tuple[int, ...] | None:
        """Indices of the convolution calls that belong to a layer, in the order of the pass; None if all do."""
        return None if self.wiring is None else self.wiring.calls

    @cached_property
    def layout(self) -> Wiring:
        """What feeds what: `wiring`, or a chain of all layers."""
        return Wiring.chain(range(len(self.weights))) if self.wiring is None else self.wiring

    @property
    def num_layers(self) -> int:
        """Height of the computation tree: the number of layers on the longest path from the input to the output."""
        return self.layout.depth

    def check_chain(self) -> None:
        """Raise unless each layer feeds only the next one."""
        if not self.layout.is_chain:
            raise UnsupportedModelError(
                "Expected a network whose attention layers form a chain, but got one with branches: GAtt scores its "
                "edges, but single flows cannot be listed."
            )

    def per_edge(self, heads: Sequence[int] | None = None) -> list[Tensor]:
        """One weight per edge and layer: the mean over heads, or the chosen head of each layer.

        Args:
            heads: The head to read in each layer; None averages all heads.
        """
        if heads is None:
            return [weight.mean(dim=1) for weight in self.weights]
        layers = len(self.weights)
        expect(len(heads) == layers, "heads", f"{layers} integers, one a layer", list(heads))
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
    SuperGATConv, TransformerConv, HGTConv, HANConv and others). Which call feeds which is followed through the pass:
    calls that do not matter for the output are left out, and branches have the factors with which they are added,
    averaged or weighted. Compiled models run eagerly. The model is left as it was found: modes of all submodules,
    hooks, gradients, also after an exception.

    Args:
        model: The model.
        x: Node features, or ids of nodes; their number gives the number of nodes. Of a heterogeneous graph, a dict by
            node type.
        edge_index: The graph's edges [2, E]; of a heterogeneous graph, a dict by edge type.
        *args: Further positional arguments of the model.
        graph: The graph of `edge_index`, if at hand; saves building it again.
        wiring: `Attention.wiring` of an earlier pass of the model, which saves finding it again.
        grad: Keep the weights differentiable with respect to the model's parameters and inputs, so that they, or GAtt
            scores computed from them, can be part of a loss.
        **kwargs: Further keyword arguments of the model.

    Raises:
        UnsupportedModelError: If the model's attention is not that of one computation tree on this graph.

    >>> from torch_geometric.nn import GAT
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> attention = capture_attention(GAT(8, 16, 2, out_channels=3, heads=2), x, edge_index)
    >>> [tuple(weights.shape) for weights in attention.weights]  # a layer each: 3 edges and 3 self-loops, 2 heads
    [(6, 2), (6, 2)]
    """
    check_model(model)
    expect_instance(graph, "graph", Graph, optional=True)
    expect_instance(wiring, "wiring", Wiring, optional=True)
    expect_bool(grad, "grad")
    expect(not (grad and torch.is_inference_mode_enabled()), "grad", "False in inference mode", grad)
    made = graph_of(x, edge_index)
    if graph is None:
        graph = made
    else:
        same = graph.matches(made.original_edge_index, made.num_nodes)
        expect(same, "graph", "the looped graph of `edge_index`", "another graph")
    return capture_run(model, lambda: model(x, edge_index, *args, **kwargs), graph, wiring, grad)


def capture_run(
    model: nn.Module, run: Callable[[], Any], graph: Graph, wiring: Wiring | None = None, grad: bool = False
) -> Attention:
    """Like `capture_attention`, for a call of any form.

    Args:
        model: The model.
        run: Calls it on `graph`.
        graph: The graph.
        wiring: `Attention.wiring` of an earlier pass of the model.
        grad: Keep the weights differentiable.
    """
    message_passing(model)  # what has none may not even have an eval mode
    known = wiring is not None and wiring.is_fixed
    with eval_mode(model), inplace_messages(model), torch.no_grad():
        with torch.set_grad_enabled(grad), record_layers(model, follow=not known) as records:
            output = _run(model, run)
        if not records:
            raise UnsupportedModelError("Expected the forward pass to call attention convolutions, but it called none.")
        found: CallGraph | None = None
        if not known:
            for call in sorted(reaching(records, output)):
                check_nodes(records, call, graph)
            found = check_calls(model, run, records, find_calls(records, output, graph), output)
        with torch.set_grad_enabled(grad):
            return _aligned(records, graph, output, found, wiring, grad)


def attention_of_pass(records: LayerRecords, graph: Graph, output: Any, grad: bool = False) -> Attention:
    """The attention of a pass that cannot be repeated, such as a training step; it was recorded with `follow=True`.

    Args:
        records: What `record_layers` collected.
        graph: The graph that the pass ran on.
        output: What was computed: the layers are the calls that it depends on.
        grad: Keep the gradients of the weights, if the pass had them.

    Raises:
        UnsupportedModelError: If the layers are not those of one computation tree on this graph.
    """
    for call in sorted(reaching(records, output)):
        check_nodes(records, call, graph)
    return _aligned(records, graph, output, find_calls(records, output, graph), None, grad)


def _aligned(
    records: LayerRecords, graph: Graph, output: Any, found: CallGraph | None, wiring: Wiring | None, grad: bool
) -> Attention:
    """The recorded calls as layers on the edges of a graph."""
    used = wiring.calls if wiring is not None and found is None else tuple(found.calls if found is not None else ())
    expect(max(used) < len(records), "wiring", f"one of the {len(records)} calls made", f"one of call {max(used)}")
    calls = [align_call(records, call, graph, grad) for call in used]
    if found is not None:
        wiring = found.wiring(ends_of(calls, graph))
    assert wiring is not None
    last = records[wiring.calls[-1]].output
    attention = _of_layers(calls, wiring, graph)
    activation = None if records.provenance is None else records.provenance.activation(output)
    embedding = last if isinstance(last, Tensor) else None
    return replace(attention, output=output, embedding=embedding, activation=activation)


def _of_layers(calls: Sequence[Aligned], wiring: Wiring, graph: Graph) -> Attention:
    layers = as_layers(calls, wiring, graph)
    even = tuple(layer.even for layer in layers)
    softmax = tuple(layer.softmax for layer in layers)
    return Attention(
        graph,
        tuple(layer.weights for layer in layers),
        tuple(layer.present for layer in layers),
        wiring=wiring,
        even=None if all(one is None for one in even) else even,
        softmax=None if all(one is None for one in softmax) else softmax,
    )


def _run(model: nn.Module, run: Callable[[], Any]) -> Any:
    """Call the model. If its forward raises, for example on features of the wrong width, say so in a sentence."""
    try:
        return run()
    except Exception as error:
        if isinstance(error, AttreeError | torch.OutOfMemoryError):
            raise
        raise ModelRunError(
            f"Expected argument `x` and the others to fit {type(model).__name__}, but its forward raised "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def check_model(model: Any) -> None:
    """Raise unless `model` is a module. A dict of weights from a checkpoint does not say what is computed with them."""
    hint = " (weights alone: build the model and call `model.load_state_dict`)" if isinstance(model, Mapping) else ""
    expect(isinstance(model, nn.Module), "model", f"a torch.nn.Module{hint}", type(model).__name__)


def graph_of(x: Any, edge_index: Any) -> Graph:
    """The graph of a call; if the arguments are dicts by type, the union of the types."""
    if isinstance(x, Mapping) or isinstance(edge_index, Mapping):
        expect(isinstance(edge_index, Mapping), "edge_index", "a dict by edge type, as `x` is one", _kind(edge_index))
        expect(isinstance(x, Mapping), "x", "a dict by node type, as `edge_index` is one", _kind(x))
        for node_type, rows in x.items():
            expect(isinstance(rows, Tensor) and rows.dim() >= 1, f"x[{node_type!r}]", "one row a node", _kind(rows))
        known = set(x)
        for kind in edge_index:
            fits = isinstance(kind, tuple) and len(kind) == 3 and kind[0] in known and kind[2] in known
            expect(fits, "edge_index", f"a dict by (source, relation, destination) among {sorted(known)}", kind)
        return Graph.of_types(edge_index, {node_type: rows.shape[0] for node_type, rows in x.items()})
    expect(isinstance(x, Tensor) and x.dim() >= 1, "x", "a tensor with one row a node", _kind(x))
    return Graph(edge_index, x.shape[0])


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
