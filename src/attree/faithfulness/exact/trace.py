"""One call of an attention convolution: its arguments, its edges, and everything that updates of single rows need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from attree.attention.graph import Graph
from attree.faithfulness.exact.algebra import LayerAlgebra, States
from attree.faithfulness.exact.lazy_rows import weighted_sums
from attree.subject.locality import NotRowwiseError
from attree.tensors.memory import chunk_bounds
from attree.tensors.ragged import take_rows

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
            raise NotRowwiseError(f"{name} is called with `{others[0]}`")
        if not isinstance(x, Tensor) or not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            raise NotRowwiseError(f"{name} is not called with one tensor of features and one of edges")
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
            raise NotRowwiseError(f"{type(algebra.conv).__name__} has flow {algebra.conv.flow!r}")
        adds_loops = getattr(algebra.conv, "add_self_loops", False)
        if adds_loops and call.features is None and call.edge_index is graph.original_edge_index:
            return cls()
        features = call.features
        if features is not None:
            features = (features.unsqueeze(-1) if features.dim() == 1 else features).to(algebra.dtype)
        edge_index, features = algebra.edges_used(call.edge_index, features, graph.num_nodes)
        proper = edge_index[0] != edge_index[1]
        if not torch.equal(edge_index[:, proper], graph.edge_index[:, : graph.num_proper_edges]):
            raise NotRowwiseError(f"{type(algebra.conv).__name__} runs on other edges than the model is given")
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
        raise NotRowwiseError(
            f"{type(algebra.conv).__name__} has several self-loops at one node, of different edge features"
        )
    return out


CHUNK_BYTES = 64 * 2**20
"""Bytes of entries that a layer's rows are computed in at a time, at most: larger chunks are no faster."""


@dataclass(frozen=True)
class LayerTrace:
    """What one layer computed.

    Attributes:
        algebra: The layer's arithmetic.
        states: Its projections of every node.
        edge: Its projections of every edge; None if it sees no edge features.
        shift: What is added to scores, see `LayerEdges`; None if nothing.
        weights: Its attention, [num_edges, heads].
        log_norm: Log of each softmax's denominator, [num_nodes, heads]: weight = exp(score - log_norm); 0 where no
            edge enters.
        aggregated: Weighted sums, [num_nodes, heads, channels].
    """

    algebra: LayerAlgebra
    states: States
    edge: Tensor | None
    shift: Tensor | None
    weights: Tensor
    log_norm: Tensor
    aggregated: Tensor

    @property
    def by_edge(self) -> bool:
        """Whether entries must be known by their edge, not by their source alone."""
        return self.edge is not None or self.shift is not None

    def edges_at(self, edges: Tensor | None) -> Tensor | None:
        """The projections of some edges."""
        return None if self.edge is None or edges is None else take_rows(self.edge, edges)

    def value(self, value: Tensor, edge: Tensor | None) -> Tensor:
        """What is summed for entries, from the values of their sources and the projections of their edges."""
        return value if edge is None or not self.algebra.edge_in_value else self.algebra.value(value, edge)

    @cached_property
    def output(self) -> Tensor:
        """What the layer returned, [num_nodes, out]; to be asked for while the model is open."""
        return self.algebra.finish(self.aggregated, self.states.root)


def trace_layer(algebra: LayerAlgebra, h: Tensor, edges: LayerEdges, graph: Graph, memory: int) -> LayerTrace:
    """Compute a layer row by row, as many rows at a time as `memory` bytes hold.

    Args:
        algebra: The layer's arithmetic.
        h: Features of all nodes.
        edges: The edges as the layer has them.
        graph: The looped graph.
        memory: Bytes of working memory beyond what is kept.
    """
    states = algebra.project(h)
    edge = None if edges.features is None else algebra.project_edges(edges.features)
    weights = states.value.new_empty(graph.num_edges, algebra.heads)
    log_norm = states.value.new_empty(graph.num_nodes, algebra.heads)
    trace = LayerTrace(algebra, states, edge, edges.shift, weights, log_norm, torch.empty_like(states.value))
    ptr, entering = graph.entering
    width = algebra.heads * algebra.channels
    for begin, end in chunk_bounds(graph.entering.sizes * float(width * 8 * 3 + 64), min(memory, CHUNK_BYTES)):
        first, last = int(ptr[begin]), int(ptr[end])
        node, source = graph.entering_destination[first:last], graph.entering_source[first:last]
        row, chosen = (node if begin == 0 else node - begin), entering[first:last]
        at_edges = trace.edges_at(chosen)
        scores = algebra.score(take_rows(states.source, source), take_rows(states.target, node), at_edges)
        if edges.shift is not None:
            scores += take_rows(edges.shift, chosen)
        part, norm = row_softmax(scores, row, end - begin)
        weights.index_copy_(0, chosen, part)
        log_norm[begin:end] = norm
        trace.aggregated[begin:end] = sum_entries(trace, ptr[begin : end + 1] - first, row, source, part, at_edges)
    return trace


def sum_entries(
    layer: LayerTrace, ptr: Tensor, row: Tensor, source: Tensor, weights: Tensor, edge: Tensor | None
) -> Tensor:
    """Weighted sums [rows, heads, channels] of recorded values.

    Args:
        layer: The layer.
        ptr: Row r's entries are `ptr[r]:ptr[r + 1]`.
        row: The row of each entry.
        source: The node that each entry comes from.
        weights: The weight of each entry, [entries, heads].
        edge: The projection of each entry's edge; None if the layer sees no edge features.
    """
    values = layer.states.value
    if edge is None or not layer.algebra.edge_in_value:
        return weighted_sums(ptr, row, source, weights, values)
    entries = layer.value(take_rows(values, source), edge) * weights.unsqueeze(-1)
    return values.new_zeros(ptr.numel() - 1, *values.shape[1:]).index_add_(0, row, entries)


def row_softmax(score: Tensor, row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Softmax over each row's entries, and the logs of its denominators [num_rows, heads].

    A row without entries, or whose every score is -inf, gets zeros.
    """
    peak = score.new_full((num_rows, score.shape[1]), -torch.inf)
    peak.scatter_reduce_(0, row.unsqueeze(-1).expand_as(score), score, "amax")
    peak.masked_fill_(peak.isinf(), 0.0)
    raised = (score - take_rows(peak, row)).exp_()
    norm = torch.zeros_like(peak).index_add_(0, row, raised)
    norm.masked_fill_(norm == 0, 1.0)
    return raised.div_(take_rows(norm, row)), norm.log().add_(peak)
