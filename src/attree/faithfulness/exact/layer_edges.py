"""Which edges of the looped graph a convolution scores when it is called, how often, and with which features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from attree.attention.graph import Graph
from attree.faithfulness.exact.algebra import LayerAlgebra
from attree.faithfulness.exact.refusal import CannotTakeApartError

_signature = cache(signature)


@dataclass(frozen=True)
class ConvArguments:
    """What a convolution was called with.

    Attributes:
        x: Node features.
        edge_index: Edges.
        features: Edge features, if it takes any.
        wants_weights: Whether it is asked to return its attention too.
    """

    x: Tensor
    edge_index: Tensor
    features: Tensor | None
    wants_weights: bool = False

    @classmethod
    def read(cls, algebra: LayerAlgebra, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConvArguments:
        """Name the arguments of a call; those that an algebra knows nothing of are refused."""
        name = type(algebra.conv).__name__
        given = _signature(type(algebra.conv).forward).bind(algebra.conv, *args, **kwargs).arguments
        given.pop("self", None)
        x, edge_index = given.pop("x", None), given.pop("edge_index", None)
        features = None if algebra.edge_argument is None else given.pop(algebra.edge_argument, None)
        wants_weights = isinstance(given.pop("return_attention_weights", None), bool)
        others = [key for key, value in given.items() if value is not None and key not in algebra.ignored_arguments]
        if others:
            raise CannotTakeApartError(f"{name} is called with `{others[0]}`")
        if not isinstance(x, Tensor) or not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            raise CannotTakeApartError(f"{name} is not called with one tensor of features and one of edges")
        if isinstance(edge_index, EdgeIndex):
            edge_index = edge_index.as_tensor()
        return cls(x, edge_index, features, wants_weights)

    def answer(self, out: Tensor, weights: Tensor, graph: Graph) -> Any:
        """What the convolution returns: its output, and its edges and attention if it is asked for them.

        Args:
            out: The output.
            weights: The attention, [num_edges, heads].
            graph: The looped graph.
        """
        if not self.wants_weights:
            return out
        return out, (graph.edge_index, weights.clone())


@dataclass(frozen=True)
class LayerEdges:
    """The looped graph's edges as one layer has them.

    Attributes:
        shift: What is added to each edge's score, [num_edges, 1]: the log of how often the layer has the edge, -inf if
            never; None if it has each once. Only self-loops can be there never or several times.
        features: Edge features, [num_edges, channels]; None if the layer sees none.
    """

    shift: Tensor | None = None
    features: Tensor | None = None

    @property
    def present(self) -> Tensor | None:
        """Which edges the layer has, [num_edges]; None if all."""
        if self.shift is None or not bool(self.shift.isneginf().any()):
            return None
        return ~self.shift.isneginf().view(-1)

    @classmethod
    def of(cls, algebra: LayerAlgebra, call: ConvArguments, graph: Graph) -> LayerEdges:
        """Bring the edges that a convolution uses onto those of the graph."""
        if algebra.conv.flow != "source_to_target":
            raise CannotTakeApartError(f"{type(algebra.conv).__name__} has flow {algebra.conv.flow!r}")
        adds_loops = getattr(algebra.conv, "add_self_loops", False)
        if adds_loops and call.features is None and call.edge_index is graph.original_edge_index:
            return cls()
        features = call.features
        if features is not None:
            features = (features.unsqueeze(-1) if features.dim() == 1 else features).to(algebra.dtype)
        edge_index, features = algebra.edges_used(call.edge_index, features, graph.num_nodes)
        proper = edge_index[0] != edge_index[1]
        if not torch.equal(edge_index[:, proper], graph.edge_index[:, : graph.num_proper_edges]):
            raise CannotTakeApartError(f"{type(algebra.conv).__name__} runs on other edges than the model is given")
        if torch.equal(edge_index, graph.edge_index):
            return cls(None, features)
        loops = graph.num_proper_edges + edge_index[0, ~proper]
        count = torch.zeros(graph.num_edges, dtype=algebra.dtype, device=graph.device)
        count[: graph.num_proper_edges] = 1
        count.index_add_(0, loops, torch.ones_like(loops, dtype=algebra.dtype))
        shift = None if bool((count == 1).all()) else count.log().unsqueeze(-1)
        return cls(shift, None if features is None else _on_graph(features, proper, loops, graph, algebra))


def _on_graph(features: Tensor, proper: Tensor, loops: Tensor, graph: Graph, algebra: LayerAlgebra) -> Tensor:
    """Edge features in the graph's order; a node's self-loops must agree, as they are one edge of the graph."""
    out = features.new_zeros(graph.num_edges, features.shape[1])
    out[: graph.num_proper_edges] = features[proper]
    out[loops] = features[~proper]
    if not torch.equal(out[loops], features[~proper]):
        raise CannotTakeApartError(
            f"{type(algebra.conv).__name__} has several self-loops at one node, of different edge features"
        )
    return out
