"""One recorded call of an attention convolution: everything that updates of single rows need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attree.faithfulness.exact.algebra import LayerAlgebra, States
from attree.faithfulness.exact.conv_arguments import LayerEdges
from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.faithfulness.exact.lazy_rows import weighted_sums
from attree.tensors.limits import chunk_bounds
from attree.tensors.ragged import take_rows

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
