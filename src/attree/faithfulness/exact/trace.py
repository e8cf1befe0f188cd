"""One recorded call of an attention convolution, with everything that updates of single rows need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.faithfulness.exact.algebra import LayerAlgebra, States
from attree.faithfulness.exact.conv_arguments import LayerEdges
from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape
from attree.faithfulness.exact.lazy_rows import weighted_sums
from attree.tensors.limits import chunk_bounds
from attree.tensors.ragged import take_rows

CHUNK_BYTES = 64 * 2**20
"""Maximum bytes of entries that are computed at a time; larger chunks are no faster."""


@dataclass(frozen=True)
class LayerTrace:
    """Results of one layer.

    Attributes:
        algebra: The layer's arithmetic.
        graph: The edges that the layer runs on.
        states: Projections of every node.
        edge: Projections of every edge; None if the layer has no edge features.
        shift: Term added to scores, see `LayerEdges`; None if there is none.
        weights: The attention, [num_edges, heads].
        log_norm: Log of each softmax's denominator, [num_nodes, heads]: weight = exp(score - log_norm); 0 for nodes
            without entering edges.
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
    def conv(self) -> MessagePassing:
        """The convolution."""
        return self.algebra.conv

    @property
    def shape(self) -> LayerShape:
        """Properties that determine the size of the layer's work."""
        return LayerShape(self.algebra.heads, self.algebra.channels, self.by_edge)

    @property
    def input_types(self) -> tuple[str, ...] | None:
        """The node type of each features tensor; None for a graph of one type."""
        return None if self.graph.blocks is None else self.graph.blocks.inputs

    @property
    def by_edge(self) -> bool:
        """Whether the layer needs the edge of each entry, not only its source."""
        return self.edge is not None or self.shift is not None

    def edges_at(self, edges: Tensor | None) -> Tensor | None:
        """Return the projections of some edges."""
        return None if self.edge is None or edges is None else take_rows(self.edge, edges)

    def value(self, value: Tensor, edge: Tensor | None) -> Tensor:
        """Return the values to sum for entries, from their sources' values and the projections of their edges."""
        return value if edge is None or not self.algebra.edge_in_value else self.algebra.value(value, edge)

    def project(self, inputs: Sequence[Tensor]) -> States:
        """Return states from the layer's input features, of all nodes or of some."""
        return project(self.algebra, self.graph, inputs)

    @cached_property
    def output(self) -> Tensor:
        """Output of the layer, [num_nodes, out]; read it only while the model is open."""
        return self.algebra.finish(self.aggregated, self.states.root)


def project(algebra: LayerAlgebra, graph: LayerGraph, inputs: Sequence[Tensor]) -> States:
    """Return states of a layer from its input features, of all nodes or of some."""
    blocks = graph.blocks
    if blocks is None:
        return algebra.project(inputs[0])
    sources = [(kind, inputs[number]) for kind, number in zip(blocks.relations, blocks.sources, strict=True)]
    return algebra.project_types(sources, [(blocks.inputs[number], inputs[number]) for number in blocks.targets])


def trace_layer(algebra: LayerAlgebra, states: States, edges: LayerEdges, memory: int) -> LayerTrace:
    """Compute a layer row by row, as many rows at a time as fit into `memory` bytes.

    Args:
        algebra: The layer's arithmetic.
        states: Projections of all nodes.
        edges: The layer's edges.
        memory: Bytes of working memory, in addition to the stored results.
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
        row, edge_ids = (node if begin == 0 else node - begin), entering[first:last]
        at_edges = trace.edges_at(edge_ids)
        scores = algebra.score(take_rows(states.source, source), take_rows(states.target, node), at_edges)
        if edges.shift is not None:
            scores += take_rows(edges.shift, edge_ids)
        part, norm = row_softmax(scores, row, end - begin)
        weights.index_copy_(0, edge_ids, part)
        log_norm[begin:end] = norm
        trace.aggregated[begin:end] = sum_entries(trace, ptr[begin : end + 1] - first, row, source, part, at_edges)
    return trace


def sum_entries(
    layer: LayerTrace, ptr: Tensor, row: Tensor, source: Tensor, weights: Tensor, edge: Tensor | None
) -> Tensor:
    """Return weighted sums of recorded values, [rows, heads, channels].

    Args:
        layer: The layer.
        ptr: The entries of row r are `ptr[r]:ptr[r + 1]`.
        row: The row of each entry.
        source: The source node of each entry.
        weights: The weight of each entry, [entries, heads].
        edge: The projection of each entry's edge; None if the layer has no edge features.
    """
    values = layer.states.value
    if edge is None or not layer.algebra.edge_in_value:
        return weighted_sums(ptr, row, source, weights, values)
    entries = layer.value(take_rows(values, source), edge) * weights.unsqueeze(-1)
    return values.new_zeros(ptr.numel() - 1, *values.shape[1:]).index_add_(0, row, entries)


def row_softmax(score: Tensor, row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the softmax over each row's entries, and the logs of its denominators [num_rows, heads].

    A row without entries, or with all scores -inf, gets zeros.
    """
    peak = score.new_full((num_rows, score.shape[1]), -torch.inf)
    peak.scatter_reduce_(0, row.unsqueeze(-1).expand_as(score), score, "amax")
    peak.masked_fill_(peak.isinf(), 0.0)
    raised = (score - take_rows(peak, row)).exp_()
    norm = torch.zeros_like(peak).index_add_(0, row, raised)
    norm.masked_fill_(norm == 0, 1.0)
    return raised.div_(take_rows(norm, row)), norm.log().add_(peak)
