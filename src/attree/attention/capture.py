"""Capture what a network attended to: the weights of every layer, aligned with one self-looped edge list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.looped_graph import LoopedGraph
from attree.attention.softmax_tap import attention_convs, tap_softmax
from attree.errors import UnsupportedModelError, expect


@dataclass(frozen=True)
class Attention:
    """Attention weights of every layer on one graph, first layer first.

    Attributes:
        graph: The edge list that the weights are aligned with.
        weights: Per layer [num_edges, heads]; 0 on self-loops that the layer does not use.
        present: Per layer, which edges the layer uses [num_edges]; None if it uses all, as GAT-like layers do.
        output: What the model returned in the pass that was captured.
        embedding: What the last of the layers returned, [num_nodes, channels].
    """

    graph: LoopedGraph
    weights: tuple[Tensor, ...]
    present: tuple[Tensor | None, ...]
    output: Any = None
    embedding: Tensor | None = None

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
    def from_weights(cls, graph: LoopedGraph, weights: Sequence[Tensor]) -> Attention:
        """Wrap weights that are at hand: one tensor a layer, [num_edges] or [num_edges, heads], using all edges."""
        columns = tuple(weight.unsqueeze(-1) if weight.dim() == 1 else weight for weight in weights)
        return cls(graph, columns, (None,) * len(columns))

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
    graph: LoopedGraph | None = None,
    **kwargs: Any,
) -> Attention:
    """Run `model(x, edge_index, *args, **kwargs)` in eval mode without gradients and return its attention.

    Works on any model whose message passing is done by PyG convolutions that use PyG's softmax (GATConv, GATv2Conv,
    SuperGATConv, TransformerConv and others). The model is left as it was found: modes of all submodules, hooks,
    gradients, also after an exception.

    Args:
        model: The model.
        x: Node features; their number gives the number of nodes.
        edge_index: The graph's edges [2, E].
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand; saves building it again.
        **kwargs: Further keyword arguments of the model.
    """
    num_nodes = x.shape[0]
    if graph is None:
        graph = LoopedGraph(edge_index, num_nodes)
    else:
        expect(graph.matches(edge_index, num_nodes), "graph", "the looped graph of `edge_index`", "another graph")
    with evaluating(model), torch.no_grad(), record_layers(model) as layers:
        output = model(x, edge_index, *args, **kwargs)
    return align_layers(layers, graph, output)


@dataclass
class LayerRecord:
    """What one call of one attention convolution used."""

    conv: MessagePassing
    bipartite: bool = False
    softmaxes: int = 0
    scores: Tensor | None = None
    weights: Tensor | None = None
    edge_index: Tensor | None = None
    output: Any = None


@contextmanager
def record_layers(model: nn.Module) -> Iterator[list[LayerRecord]]:
    """While open, collect one `LayerRecord` per call of an attention convolution of `model`, in the order of calls."""
    layers: list[LayerRecord] = []
    open_calls: dict[MessagePassing, LayerRecord] = {}

    def begin(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        open_calls[conv] = LayerRecord(conv, bipartite=_two_node_sets(args[0] if args else kwargs.get("x")))
        layers.append(open_calls[conv])

    def see_edges(conv: MessagePassing, inputs: Any) -> None:
        open_calls[conv].edge_index = inputs[0]

    def see_weights(conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        weights = softmax(scores)
        open_calls[conv].scores, open_calls[conv].weights = scores, weights
        open_calls[conv].softmaxes += 1
        return weights

    def end(conv: MessagePassing, inputs: Any, output: Any) -> None:
        # Asked for its attention, a PyG convolution returns a tuple that starts with the node embeddings.
        open_calls[conv].output = output[0] if isinstance(output, tuple) else output

    with ExitStack() as stack:
        for conv in attention_convs(model):
            for handle in (
                conv.register_forward_pre_hook(begin, with_kwargs=True),
                conv.register_propagate_forward_pre_hook(see_edges),
                conv.register_forward_hook(end),
            ):
                stack.callback(handle.remove)
        stack.enter_context(tap_softmax(model, see_weights))
        yield layers


def align_layers(layers: Sequence[LayerRecord], graph: LoopedGraph, output: Any = None) -> Attention:
    """Bring recorded layers onto the edges of `graph`.

    Raises:
        UnsupportedModelError: If a layer did not run on exactly the graph's edges, or not with one weight for each.
    """
    if not layers:
        raise UnsupportedModelError("Expected the forward pass to call attention convolutions, but it called none.")
    aligned = [_align_layer(number, layer, graph) for number, layer in enumerate(layers, start=1)]
    weights, present = zip(*aligned, strict=True)
    return Attention(graph, weights, present, output, layers[-1].output)


def _align_layer(number: int, layer: LayerRecord, graph: LoopedGraph) -> tuple[Tensor, Tensor | None]:
    """One layer's weights on the graph's edges, and which of those edges it used (None: all)."""
    where = f"layer {number} ({type(layer.conv).__name__})"
    edge_index, weights = layer.edge_index, layer.weights
    if layer.conv.flow != "source_to_target":
        raise UnsupportedModelError(f"Expected flow 'source_to_target' in {where}, but got {layer.conv.flow!r}.")
    if layer.bipartite:
        raise UnsupportedModelError(f"Expected {where} to map nodes to the same nodes, but it has two node sets.")
    if isinstance(edge_index, Tensor) and edge_index.numel() == 0 and weights is None:
        # Without a single edge, GATConv does not even call softmax.
        weights = torch.zeros(0, getattr(layer.conv, "heads", 1), device=graph.device)
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided or weights is None:
        raise UnsupportedModelError(f"Expected {where} to use edge_index as a [2, E] tensor and softmax attention.")
    if layer.softmaxes > 1 or weights.shape[0] != edge_index.shape[1]:
        # RGATConv "within-relation" does this: one softmax for each relation, over its edges alone.
        raise UnsupportedModelError(
            f"Expected {where} to call softmax once, with a score for each of its {edge_index.shape[1]} edges, but "
            f"the last of {layer.softmaxes} calls had {weights.shape[0]} scores."
        )
    weights = weights.detach()
    weights = weights.unsqueeze(1) if weights.dim() == 1 else weights.flatten(1)
    if torch.equal(edge_index, graph.edge_index):
        return weights, None

    proper = edge_index[0] != edge_index[1]
    if not torch.equal(edge_index[:, proper], graph.edge_index[:, : graph.num_proper_edges]):
        raise UnsupportedModelError(
            f"Expected {where} to run on the edges it was called with, in their order, but it ran on others."
        )
    on_graph = weights.new_zeros(graph.num_edges, weights.shape[1])
    on_graph[: graph.num_proper_edges] = weights[proper]
    loops = graph.num_proper_edges + edge_index[0, ~proper]
    on_graph.index_add_(0, loops, weights[~proper])
    used = torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)
    used[graph.num_proper_edges :] = False
    used[loops] = True
    return on_graph, None if bool(used.all()) else used


def _two_node_sets(x: Any) -> bool:
    """Whether features given to a convolution are those of sources and of other destinations."""
    return isinstance(x, tuple) and all(isinstance(side, Tensor) for side in x) and len(x[0]) != len(x[-1])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode; on exit give every submodule the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
