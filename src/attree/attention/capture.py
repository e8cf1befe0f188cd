"""Capture what a network attended to: the weights of every layer, aligned with one self-looped edge list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.alignment import align_layer
from attree.attention.chain import check_chain, find_chain
from attree.attention.eager import eval_mode
from attree.attention.graph import Graph
from attree.attention.inplace_messages import inplace_messages
from attree.attention.recording import LayerRecord, Records, record_layers
from attree.attention.softmax_hook import message_passing
from attree.errors import (
    AttreeError,
    ModelRunError,
    UnsupportedModelError,
    expect,
    expect_bool,
    expect_instance,
    expect_ints,
)

__all__ = [
    "Attention",
    "LayerRecord",
    "align_layers",
    "capture_attention",
    "capture_run",
    "check_features",
    "eval_mode",
    "record_layers",
]


@dataclass(frozen=True)
class Attention:
    """Attention weights of every layer on one graph, first layer first.

    Attributes:
        graph: The edge list that the weights are aligned with.
        weights: Per layer [num_edges, heads]; 0 on self-loops that the layer does not use.
        present: Per layer, which edges the layer uses [num_edges]; None if it uses all, as GAT-like layers do.
        output: What the model returned in the pass that was captured.
        embedding: What the last of the layers returned, [num_nodes, channels].
        calls: Which calls of attention convolutions, in their order in the pass, the layers are; a later pass of the
            same model need not find out again.
        activation: The function that the output is the outcome of (`sigmoid`, `softmax`, `log_softmax`,
            `log_sigmoid`), where this was seen.
    """

    graph: Graph
    weights: tuple[Tensor, ...]
    present: tuple[Tensor | None, ...]
    output: Any = None
    embedding: Tensor | None = None
    calls: tuple[int, ...] | None = None
    activation: str | None = None

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

    def only(self, calls: Sequence[int]) -> Attention:
        """The attention of some of the calls that this one lists all of."""
        if list(calls) == list(range(len(self.weights))):
            return replace(self, calls=tuple(calls))
        embedding = self.embedding if calls[-1] == len(self.weights) - 1 else None
        weights, present = tuple(self.weights[call] for call in calls), tuple(self.present[call] for call in calls)
        return replace(self, weights=weights, present=present, embedding=embedding, calls=tuple(calls))

    @property
    def num_layers(self) -> int:
        """Number of attention layers."""
        return len(self.weights)

    def per_edge(self, heads: Sequence[int] | None = None) -> list[Tensor]:
        """One weight per edge and layer: the mean over heads, or the chosen head of each layer.

        Args:
            heads: The head to read in each layer; None averages all heads.
        """
        if heads is None:
            return [weight.mean(dim=1) for weight in self.weights]
        expect(len(heads) == self.num_layers, "heads", f"{self.num_layers} integers, one a layer", list(heads))
        for head, weight in zip(heads, self.weights, strict=True):
            expect(0 <= head < weight.shape[1], "heads", f"head numbers in [0, {weight.shape[1]})", head)
        return [weight[:, head] for head, weight in zip(heads, self.weights, strict=True)]


def capture_attention(
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    *args: Any,
    graph: Graph | None = None,
    calls: Sequence[int] | None = None,
    grad: bool = False,
    **kwargs: Any,
) -> Attention:
    """Run `model(x, edge_index, *args, **kwargs)` in eval mode and return its attention, by default without gradients.

    Works on any model whose message passing is done by PyG convolutions that use PyG's softmax (GATConv, GATv2Conv,
    SuperGATConv, TransformerConv and others), one working on what the one before returned. Which call feeds which is
    followed through the pass: skips are fine, calls that do not matter for the output are left out, and branches side
    by side are refused. Compiled models run eagerly. The model is left as it was found: modes of all submodules,
    hooks, gradients, also after an exception.

    Args:
        model: The model.
        x: Node features, or ids of nodes; their number gives the number of nodes.
        edge_index: The graph's edges [2, E].
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand; saves building it again.
        calls: `Attention.calls` of an earlier pass of the model, which saves finding them again.
        grad: Keep the weights differentiable with respect to the model's parameters and inputs, so that they, or GAtt
            scores computed from them, can be part of a loss.
        **kwargs: Further keyword arguments of the model.

    Raises:
        UnsupportedModelError: If the model's attention is not that of one computation tree on this graph.
    """
    check_model(model)
    check_features(x, edge_index)
    expect_instance(graph, "graph", Graph, optional=True)
    expect_bool(grad, "grad")
    expect(not (grad and torch.is_inference_mode_enabled()), "grad", "False in inference mode", grad)
    if calls is not None:
        calls = expect_ints(calls, "calls", "numbers of calls")
    num_nodes = x.shape[0]
    if graph is None:
        graph = Graph(edge_index, num_nodes)
    else:
        expect(graph.matches(edge_index, num_nodes), "graph", "the looped graph of `edge_index`", "another graph")
    return capture_run(model, lambda: model(x, edge_index, *args, **kwargs), graph, calls, grad)


def capture_run(
    model: nn.Module,
    run: Callable[[], Any],
    graph: Graph,
    calls: Sequence[int] | None = None,
    grad: bool = False,
) -> Attention:
    """As `capture_attention`, for a call of any form.

    Args:
        model: The model.
        run: Calls it on `graph`.
        graph: The looped graph.
        calls: `Attention.calls` of an earlier pass of the model.
        grad: Keep the weights differentiable.
    """
    message_passing(model)  # what has none may not even have an eval mode
    with eval_mode(model), inplace_messages(model), torch.no_grad():
        with torch.set_grad_enabled(grad):
            with record_layers(model, follow=calls is None) as records:
                output = _run(model, run)
            attention = align_layers(records, graph, output, calls, grad)
        if calls is None and attention.calls is not None:
            check_chain(model, run, records, attention.calls, output)
    return attention


def _run(model: nn.Module, run: Callable[[], Any]) -> Any:
    """Call the model; what its forward raises, as by features of another width than it takes, is said in a sentence."""
    try:
        return run()
    except Exception as error:
        if isinstance(error, AttreeError | torch.OutOfMemoryError):
            raise
        raise ModelRunError(
            f"Expected argument `x` and the others to fit {type(model).__name__}, but its forward raised "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def align_layers(
    records: Records, graph: Graph, output: Any = None, calls: Sequence[int] | None = None, grad: bool = False
) -> Attention:
    """Bring the recorded layers of what the model returned onto the edges of `graph`.

    Args:
        records: What `record_layers` collected in one pass.
        graph: The looped graph that the model ran on.
        output: What the model returned.
        calls: Which of the records are the layers, if known; they are found if the calls were followed, and all are
            taken otherwise.
        grad: Keep the gradients of the weights, if the pass recorded them.

    Raises:
        UnsupportedModelError: If the layers are no chain, or one did not run on exactly the graph's nodes and edges,
            with one weight for each edge.
    """
    if not records:
        raise UnsupportedModelError("Expected the forward pass to call attention convolutions, but it called none.")
    if calls is None:
        calls = range(len(records)) if records.provenance is None else find_chain(records, output)
    expect(len(calls) > 0 and max(calls) < len(records), "calls", f"among the {len(records)} calls made", list(calls))
    aligned = [align_layer(records, call, graph, grad) for call in calls]
    weights, present = zip(*aligned, strict=True)
    activation = None if records.provenance is None else records.provenance.activation(output)
    return Attention(graph, weights, present, output, records[calls[-1]].output, tuple(calls), activation)


def check_model(model: Any) -> None:
    """Raise unless `model` is one: weights alone, as in a checkpoint, do not say what is computed with them."""
    hint = " (weights alone: build the model and call `model.load_state_dict`)" if isinstance(model, Mapping) else ""
    expect(isinstance(model, nn.Module), "model", f"a torch.nn.Module{hint}", type(model).__name__)


def check_features(x: Any, edge_index: Any) -> None:
    """Raise unless `x` and `edge_index` are those of a graph with one kind of node and edge."""
    if isinstance(x, dict) or isinstance(edge_index, dict):
        raise UnsupportedModelError("Expected a graph with one kind of node and edge, but got a heterogeneous one.")
    expect(isinstance(x, Tensor) and x.dim() >= 1, "x", "a tensor with one row a node", _kind(x))


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
