"""One call of an attention convolution: its arguments, its edges, and everything that updates of single rows need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from attree.attention.edge_ids import edge_ids, find_type
from attree.attention.graph import Graph
from attree.faithfulness.exact.algebra import LayerAlgebra, States
from attree.faithfulness.exact.layer_graph import LayerGraph, all_relations, one_relation
from attree.faithfulness.exact.lazy_rows import weighted_sums
from attree.subject.locality import NotRowwiseError
from attree.tensors.memory import chunk_bounds
from attree.tensors.ragged import take_rows

_signature = cache(signature)


@dataclass(frozen=True)
class ConvArguments:
    """What a convolution was called with.

    Attributes:
        inputs: Features of nodes: one tensor; of a heterogeneous graph, those of sources and of destinations, or those
            of each type.
        edge_index: Edges; of several relations at once, a dict.
        features: Edge features, if it takes any.
        wants_weights: Whether it is asked to return its attention too.
        types: The type of each of the inputs, where it is given a dict.
        returned: The types whose rows it returns, where it is given a dict.
    """

    inputs: tuple[Tensor, ...]
    edge_index: Any
    features: Tensor | None = None
    wants_weights: bool = False
    types: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def x(self) -> Tensor:
        """Node features, where they are one tensor."""
        return self.inputs[0]

    @classmethod
    def read(cls, algebra: LayerAlgebra, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConvArguments:
        """Name the arguments of a call; those that an algebra knows nothing of are refused."""
        name = type(algebra.conv).__name__
        given = _signature(type(algebra.conv).forward).bind(algebra.conv, *args, **kwargs).arguments
        given.pop("self", None)
        if "x_dict" in given and "edge_index_dict" in given:
            rows, edges = given["x_dict"], given["edge_index_dict"]
            if not all(isinstance(one, Tensor) for one in rows.values()):
                raise NotRowwiseError(f"{name} is called with a type that has no features")
            returned = tuple(kind for kind in rows if kind in algebra.conv.dst_node_types)
            return cls(tuple(rows.values()), edges, types=tuple(rows), returned=returned)
        x, edge_index = given.pop("x", None), given.pop("edge_index", None)
        features = None if algebra.edge_argument is None else given.pop(algebra.edge_argument, None)
        wants_weights = isinstance(given.pop("return_attention_weights", None), bool)
        others = [key for key, value in given.items() if value is not None and key not in algebra.ignored_arguments]
        if others:
            raise NotRowwiseError(f"{name} is called with `{others[0]}`")
        inputs = tuple(x) if isinstance(x, list | tuple) else (x,)
        if len(inputs) == 2 and inputs[0] is inputs[1]:
            inputs = inputs[:1]
        fit = all(isinstance(one, Tensor) for one in inputs) and len(inputs) in (1, 2)
        if not fit or not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            raise NotRowwiseError(f"{name} is not called with features and edges that are tensors")
        if isinstance(edge_index, EdgeIndex):
            edge_index = edge_index.as_tensor()
        return cls(inputs, edge_index, features, wants_weights)

    def answer(self, outputs: Sequence[Tensor], weights: Tensor, graph: Graph) -> Any:
        """What the convolution returns: its output, and its edges and attention if it is asked for them.

        Args:
            outputs: The output, or that of each type that messages go to.
            weights: The attention, [num_edges, heads].
            graph: The looped graph.
        """
        if self.types:
            return {kind: out for kind, out in zip(self.types, outputs, strict=True) if kind in self.returned}
        if not self.wants_weights:
            return outputs[0]
        return outputs[0], (graph.edge_index, weights.clone())


@dataclass(frozen=True)
class LayerEdges:
    """The edges that one layer runs on.

    Attributes:
        graph: The edges, numbered for the layer.
        shift: What is added to each edge's score, [num_edges, 1]: the log of how often the layer has the edge, -inf if
            never; None if it has each once. Only self-loops can be there never or several times.
        features: Edge features, [num_edges, channels]; None if the layer sees none.
    """

    graph: LayerGraph
    shift: Tensor | None = None
    features: Tensor | None = None

    @property
    def present(self) -> Tensor | None:
        """Which edges of the looped graph the layer has, [num_edges]; None if all."""
        if self.graph.edge is not None:
            return self.graph.present
        if self.shift is None or not bool(self.shift.isneginf().any()):
            return None
        return ~self.shift.isneginf().view(-1)

    @classmethod
    def of(cls, algebra: LayerAlgebra, call: ConvArguments, whole: LayerGraph) -> LayerEdges:
        """Bring the edges that a convolution uses onto those of the graph.

        Args:
            algebra: The convolution's arithmetic.
            call: What it is called with.
            whole: All edges of the graph.
        """
        graph, name = whole.graph, type(algebra.conv).__name__
        if algebra.conv.flow != "source_to_target":
            raise NotRowwiseError(f"{name} has flow {algebra.conv.flow!r}")
        if graph.types is not None:
            return cls._of_types(algebra, call, graph)
        if len(call.inputs) != 1 or call.x.shape[0] != graph.num_nodes or call.x.dim() != 2:
            raise NotRowwiseError(f"{name} runs on other nodes than the model is given")
        adds_loops = getattr(algebra.conv, "add_self_loops", False)
        if adds_loops and call.features is None and call.edge_index is graph.original_edge_index:
            return cls(whole)
        edge_index, features = algebra.edges_used(call.edge_index, _columns(call, algebra), graph.num_nodes)
        proper = edge_index[0] != edge_index[1]
        if not torch.equal(edge_index[:, proper], graph.edge_index[:, : graph.num_proper_edges]):
            raise NotRowwiseError(f"{name} runs on other edges than the model is given")
        if torch.equal(edge_index, graph.edge_index):
            return cls(whole, None, features)
        loops = graph.num_proper_edges + edge_index[0, ~proper]
        count = torch.zeros(graph.num_edges, dtype=algebra.dtype, device=graph.device)
        count[: graph.num_proper_edges] = 1
        count.index_add_(0, loops, torch.ones_like(loops, dtype=algebra.dtype))
        shift = None if bool((count == 1).all()) else count.log().unsqueeze(-1)
        return cls(whole, shift, None if features is None else _on_graph(features, proper, loops, graph, algebra))

    @classmethod
    def _of_types(cls, algebra: LayerAlgebra, call: ConvArguments, graph: Graph) -> LayerEdges:
        """The edges of one relation, or of several in one call."""
        types, name = graph.types, type(algebra.conv).__name__
        assert types is not None
        if call.wants_weights:
            raise NotRowwiseError(f"{name} is asked for its attention")
        if call.types:
            kinds = {kind: find_type(graph, edges) for kind, edges in call.edge_index.items()}
            known = call.types == types.node_types and all(kind == found for kind, found in kinds.items())
            if not known or any(
                x.dim() != 2 or x.shape[0] != len(types.nodes(kind))
                for kind, x in zip(call.types, call.inputs, strict=True)
            ):
                raise NotRowwiseError(f"{name} runs on other nodes or edges than the model is given")
            return cls(all_relations(graph, tuple(kinds), call.types))
        kind = find_type(graph, call.edge_index)
        if kind is None:
            raise NotRowwiseError(f"{name} runs on other edges than those of one relation")
        ends = (kind[0], kind[2])[-len(call.inputs) :]
        sizes = [len(types.nodes(end)) for end in ends]
        if len(call.inputs) == 1 and kind[0] != kind[2]:
            raise NotRowwiseError(f"{name} is given features of one type for a relation of two")
        if any(x.dim() != 2 or x.shape[0] != size for x, size in zip(call.inputs, sizes, strict=True)):
            raise NotRowwiseError(f"{name} runs on other nodes than the model is given")
        used, features = algebra.edges_used(call.edge_index, _columns(call, algebra), min(sizes))
        ids = edge_ids(graph, call.edge_index, used)
        if ids is None or ids.unique().numel() != ids.numel():
            raise NotRowwiseError(f"{name} runs on other edges than those of one relation, each once")
        return cls(one_relation(graph, kind, ids, ends), None, features)


def _columns(call: ConvArguments, algebra: LayerAlgebra) -> Tensor | None:
    """Edge features with one row an edge."""
    features = call.features
    if features is None:
        return None
    return (features.unsqueeze(-1) if features.dim() == 1 else features).to(algebra.dtype)


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
        graph: The edges that it runs on.
        states: Its projections of every node.
        edge: Its projections of every edge; None if it sees no edge features.
        shift: What is added to scores, see `LayerEdges`; None if nothing.
        weights: Its attention, [num_edges, heads].
        log_norm: Log of each softmax's denominator, [num_nodes, heads]: weight = exp(score - log_norm); 0 where no
            edge enters.
        aggregated: Weighted sums, [num_nodes, heads, channels].
    """

    algebra: LayerAlgebra
    graph: LayerGraph
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

    def project(self, inputs: Sequence[Tensor]) -> States:
        """States from the features that the layer is given, of all nodes or of some."""
        return project(self.algebra, self.graph, inputs)

    @cached_property
    def output(self) -> Tensor:
        """What the layer returned, [num_nodes, out]; to be asked for while the model is open."""
        return self.algebra.finish(self.aggregated, self.states.root)


def project(algebra: LayerAlgebra, graph: LayerGraph, inputs: Sequence[Tensor]) -> States:
    """States of a layer from the features that it is given, of all nodes or of some."""
    blocks = graph.blocks
    if blocks is None:
        return algebra.project(inputs[0])
    sources = [(kind, inputs[number]) for kind, number in zip(blocks.relations, blocks.sources, strict=True)]
    return algebra.project_types(sources, [(blocks.inputs[number], inputs[number]) for number in blocks.targets])


def trace_layer(algebra: LayerAlgebra, states: States, edges: LayerEdges, memory: int) -> LayerTrace:
    """Compute a layer row by row, as many rows at a time as `memory` bytes hold.

    Args:
        algebra: The layer's arithmetic.
        states: Its projections of all nodes.
        edges: The edges as the layer has them.
        memory: Bytes of working memory beyond what is kept.
    """
    graph = edges.graph
    edge = None if edges.features is None else algebra.project_edges(edges.features)
    weights = states.value.new_empty(graph.num_edges, algebra.heads)
    log_norm = states.value.new_empty(graph.num_nodes, algebra.heads)
    aggregated = states.value.new_empty(graph.num_nodes, *states.value.shape[1:])
    trace = LayerTrace(algebra, graph, states, edge, edges.shift, weights, log_norm, aggregated)
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
