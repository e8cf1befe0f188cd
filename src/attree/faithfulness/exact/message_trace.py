"""One recorded call of `propagate` of a layer without attention, with everything that updates of single rows need.

The aggregated messages of node j are, in order of how cheaply single rows can be updated:

- a *sum* of messages m(x_i, e_ij) that do not depend on j, or their *mean* over the edges that enter j. A changed entry
  is one message less and one more. If the messages are multiples w_ij x_i, they need no call of `message`.
- anything else (a maximum, messages that read both ends, several aggregations): the layer's own `propagate` runs on all
  edges that enter a changed row.

*Symmetric normalisation* (GCN): w_ij = c_ij / sqrt(d_i d_j), where d are sums of the weights c of entering edges.
Deleting an edge that enters j changes d_j, so all messages into and out of j.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from attree.attention.graph import Graph, edge_ids, find_type
from attree.faithfulness.exact.call_arguments import ABOUT_EDGES, MessageArguments, as_columns
from attree.faithfulness.exact.layer_graph import LayerGraph, LayerShape, one_relation
from attree.faithfulness.exact.lazy_features import LazyRows, Store, rows_of
from attree.faithfulness.exact.lazy_sums import LazySums, SumMatrix, Sums
from attree.subject.model_call import NotRowwiseError
from attree.tensors.arrays import expand, row_of, take_rows
from attree.tensors.memory import chunk_bounds
from attree.tensors.precision import same

CHUNK_BYTES = 64 * 2**20
"""Maximum bytes of messages that are computed at a time."""

PROBED = 64
"""Number of edges on which messages are compared with multiples of their sources."""

GOLDEN_RATIO = 0.6180339887498949
"""Multiples of it modulo 1 are spread evenly and without a pattern."""

Combination = Literal["sum", "mean", "other"]
"""How a layer combines the messages that enter a node."""

Features = Callable[[str], Tensor]
"""Returns the features of the sources of some edges, by the name that `propagate` gives them."""


@dataclass(frozen=True)
class Degrees:
    """Symmetric normalisation of the weights of edges.

    Attributes:
        changes: For each edge, the factor of all messages into and out of its destination when it is deleted.
        is_shared: Whether this factor is the same for all edges that enter a node, and 1 for self-loops.
    """

    changes: Tensor
    is_shared: bool

    @classmethod
    def of(cls, graph: Graph, weight: Tensor, degree: Tensor, loop: float) -> Degrees:
        """Return the changes of all edges.

        Args:
            graph: The graph.
            weight: The weight c of each edge before normalisation; 0 for edges that the layer does not have.
            degree: The sum of the weights that enter each node.
            loop: The weight of a self-loop that the layer adds again where one is deleted; 0 if it adds none.
        """
        lost = weight.clone()
        if loop:
            is_given = torch.zeros_like(weight, dtype=torch.bool)
            is_given[graph.position] = True
            loops = slice(graph.num_proper_edges, None)
            lost[loops] = torch.where(is_given[loops], weight[loops] - loop, 0.0)
        before = take_rows(degree, graph.destination)
        after = before - lost
        after = torch.where(after > before * torch.finfo(after.dtype).eps ** 0.75, after, torch.inf)
        changes = (before / after).sqrt()
        proper, end = changes[: graph.num_proper_edges], graph.destination[: graph.num_proper_edges]
        of_node = torch.empty_like(degree).index_copy_(0, end, proper)  # of any edge that enters the node
        loops_keep = bool((changes[graph.num_proper_edges :] == 1).all())
        return cls(changes, loops_keep and torch.equal(take_rows(of_node, end), proper))


class MessageTrace:
    """Results of one call of `propagate`.

    Args:
        conv: The layer.
        arguments: The arguments of the call, on all nodes and edges.
        graph: The edges of the call.
        column: For each edge of `graph`, its position in the edges of the call, -1 if the call does not have it; None
            if these are all edges in their order.
        memory: Bytes of working memory.
        store: The cache of the recorded pass.
        in_model: Returns the context in which the layer's own code runs.

    Attributes:
        forward_arguments: The recorded arguments of the layer's `forward`; None if they are not known.
    """

    by_edge = True

    def __init__(
        self,
        conv: MessagePassing,
        arguments: MessageArguments,
        graph: LayerGraph,
        column: Tensor | None,
        memory: int,
        store: Store,
        in_model: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.conv = conv
        self._store = store
        self.forward_arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._in_model = in_model
        self.graph = graph
        self.others = arguments.others
        self.nodes = {
            name: tuple(values if values is None or isinstance(values, LazyRows) else values.clone() for values in pair)
            for name, pair in arguments.nodes.items()
        }
        self._copies = {
            id(values): copy
            for name, pair in arguments.nodes.items()
            for values, copy in zip(pair, self.nodes[name], strict=True)
        }
        self._edge_index = arguments.edge_index
        self._edges = {
            name: values.read() if isinstance(values, LazyRows) else values for name, values in arguments.edges.items()
        }
        self._column = column
        self.present = None if column is None or bool((column >= 0).all()) else column >= 0
        self.degrees: Degrees | None = None
        self.adds_loops = False
        self.has_edge_weights = False
        self.combination = self._combination()
        self.factor = None if self.combination == "other" else self._factor()
        self.count = graph.entering.sizes if self.present is None else self._sum_of(self.present.long())
        lazy = self._sums_of_lazy_rows()
        self.output: Tensor = self._aggregated(memory) if lazy is None else lazy
        if self.output.shape[0] != graph.num_nodes:
            raise NotRowwiseError(f"{type(conv).__name__} does not aggregate messages node by node")

    @property
    def shape(self) -> LayerShape:
        """Properties that determine the size of the layer's work."""
        # Lazy sums of the model's input become narrow before they take memory.
        is_input = isinstance(self.output, LazySums) and isinstance(self.nodes[self.only_name][0], LazyRows)
        width = 1 if is_input else self.output.numel() // max(self.output.shape[0], 1)
        has_copies = self.lazy_values is not None and (self.degrees is None or self.degrees.is_shared)
        spreads = self.degrees is not None
        return LayerShape(1, max(width, 1), True, is_message=True, spreads=spreads, has_copies=has_copies)

    @property
    def input_types(self) -> tuple[str, ...] | None:
        """The node types of the two sides; None for a graph of one type."""
        return None if self.graph.blocks is None else self.graph.blocks.inputs

    def in_lazy_rows(self, arguments: Any) -> Any:
        """Return the arguments of the layer's `forward`, with node features as lazy rows that nobody changes."""
        copies, self._copies = self._copies, {}

        def as_lazy(tensor: Tensor) -> Tensor:
            if isinstance(tensor, LazyRows) or not (tensor.is_floating_point() and self._is_of_nodes(tensor)):
                return tensor
            copy = copies.get(id(tensor))
            copy = tensor.clone() if copy is None else copy
            return LazyRows(copy, None, tensor.dtype, self._store, ("given", id(copy)))

        return torch.utils._pytree.tree_map_only(Tensor, as_lazy, arguments)

    def _is_of_nodes(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0 and tensor.shape[0] == self.graph.num_nodes

    @cached_property
    def aggregated(self) -> Tensor:
        """The aggregated messages of every node, as an ordinary tensor."""
        return self.output.read() if isinstance(self.output, LazySums) else self.output

    @property
    def weights(self) -> None:
        """There is no attention."""
        return None

    def edge_values(self, name: str, edges: Tensor) -> Tensor:
        """Return the rows of an argument that belong to some edges of `graph`."""
        return take_rows(self._edges[name], edges if self._column is None else self._column[edges])

    def is_present(self, edges: Tensor) -> Tensor:
        """Whether the layer has each of some edges of `graph`."""
        return torch.ones_like(edges, dtype=torch.bool) if self.present is None else self.present[edges]

    def recorded(self, nodes: Tensor) -> Features:
        """Return the recorded features of some source nodes."""

        def take(name: str) -> Tensor:
            values = self.nodes[name][0]
            assert values is not None
            return rows_of(values, nodes) if isinstance(values, LazyRows) else take_rows(values, nodes)

        return take

    def messages(self, sources: Features, edges: Tensor) -> Tensor:
        """Return the messages of some edges, given the features of their sources; 0 for edges that are not present."""
        if self.factor is not None:
            values = sources(self.only_name)
            return values * as_columns(self.factor[edges], values)
        is_present = self.is_present(edges)
        safe = edges if self.present is None else torch.where(is_present, edges, self._first_present)
        arguments = {
            name: sources(name[:-2])
            if name[-2:] == "_j" and name[:-2] in self.nodes
            else self.edge_values(name, safe)
            if name in self._edges
            else self.others[name]
            for name in self._names
        }
        with self._in_model():
            messages: Tensor = self.conv.message(**arguments)
        return messages if self.present is None else messages.masked_fill(~as_columns(is_present, messages), 0.0)

    def propagate(
        self,
        row: Tensor,
        num_rows: int,
        sources: Features,
        targets: Features,
        edges: Tensor,
        silenced: Tensor | None = None,
        factor: float = 0.0,
    ) -> Tensor:
        """Run the layer's own `propagate` on some edges of `graph`, which must be present.

        Args:
            row: The row that each edge enters, ascending.
            num_rows: Number of rows.
            sources: Features of the source of each edge.
            targets: Features of each row.
            edges: The edges.
            silenced: Mask of the edges whose messages are multiplied by `factor`; None for none.
            factor: The factor.
        """
        arguments = {
            name: (None if pair[0] is None else sources(name), None if pair[1] is None else targets(name))
            for name, pair in self.nodes.items()
        }
        of_edges = {name: self.edge_values(name, edges) for name in self._edges}
        edge_index = torch.stack([torch.arange(edges.numel(), device=edges.device), row])
        handle = None
        if silenced is not None:
            mask = silenced

            def silence(_: Any, __: Any, messages: Tensor) -> Tensor:
                return torch.where(as_columns(mask, messages), messages * factor, messages)

            handle = self.conv.register_message_forward_hook(silence)
        try:
            with self._in_model():
                out: Tensor = type(self.conv).propagate(
                    self.conv, edge_index, size=(edges.numel(), num_rows), **arguments, **of_edges, **self.others
                )
        finally:
            if handle is not None:
                handle.remove()
        return out

    def check(self, count: int, most: int) -> None:
        """Raise unless the layer's own `propagate` gives the recorded rows of some nodes.

        Args:
            count: Number of nodes.
            most: Approximate number of edges that enter them.
        """
        graph = self.graph
        nodes = evenly_spaced(graph.num_nodes, min(count, graph.num_nodes), graph.device)
        total = graph.entering.sizes[nodes].cumsum(0)
        nodes = nodes[total <= max(int(total[0]), most)] if nodes.numel() else nodes
        rows, edges = self.entries(nodes)
        out = self.propagate(
            rows, nodes.numel(), self.recorded(graph.source[edges]), self.recorded_targets(nodes), edges
        )
        expected = rows_of(self.output, nodes)
        if not isinstance(out, Tensor) or out.shape != expected.shape or not same(out, expected, expected.dtype):
            raise NotRowwiseError(f"its layer {type(self.conv).__name__} does not aggregate messages node by node")

    def entries(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edges that enter some nodes, and for each the position of its node."""
        rows, place = expand(self.graph.entering.ptr, nodes)
        edges = self.graph.entering.items[place]
        if self.present is None:
            return rows, edges
        is_present = self.present[edges]
        return rows[is_present], edges[is_present]

    def recorded_targets(self, nodes: Tensor) -> Features:
        """Return the recorded features of some destination nodes."""

        def take(name: str) -> Tensor:
            values = self.nodes[name][1]
            assert values is not None
            return rows_of(values, nodes)

        return take

    @cached_property
    def _names(self) -> list[str]:
        return list(signature(self.conv.message).parameters)

    @cached_property
    def only_name(self) -> str:
        """The name of the features that messages read at their sources, if these are the only ones."""
        return next(name[:-2] for name in self._names if name[-2:] == "_j" and name[:-2] in self.nodes)

    @cached_property
    def _first_present(self) -> int:
        assert self.present is not None
        return int(self.present.byte().argmax())

    def _sum_of(self, values: Tensor) -> Tensor:
        """Return the sum of values of edges over the edges that enter each node."""
        return values.new_zeros(self.graph.num_nodes).index_add_(0, self.graph.destination, values)

    def _combination(self) -> Combination:
        """Return how messages are combined, as far as single entries can be updated."""
        conv, kind = self.conv, type(self.conv)
        inherited = kind.aggregate is MessagePassing.aggregate and kind.update is MessagePassing.update
        is_plain = inherited and not {"aggregate", "update", "message"} & set(vars(conv))
        reads_rows = any(
            name in ABOUT_EDGES or name[:-2] in ABOUT_EDGES or (name[-2:] == "_i" and name[:-2] in self.nodes)
            for name in self._names
        )
        are_plain = all(
            (name[-2:] == "_j" and name[:-2] in self.nodes) or name in self._edges or name in self.others
            for name in self._names
        )
        if not is_plain or reads_rows or not are_plain or self._edge_index.shape[1] == 0:
            return "other"
        aggregation = type(conv.aggr_module)
        return "sum" if aggregation is SumAggregation else "mean" if aggregation is MeanAggregation else "other"

    def _factor(self) -> Tensor | None:
        """Return w [num_edges] if each message is w x_j for the only features x that it reads; None if not."""
        names = [name for name in self._names if name[-2:] == "_j" and name[:-2] in self.nodes]
        values = self.nodes[names[0][:-2]][0] if len(names) == 1 else None
        if values is None or not values.is_floating_point():
            return None
        edges = evenly_spaced(self._edge_index.shape[1], PROBED, self.graph.device)
        probe = torch.arange(PROBED * values.shape[1:].numel(), dtype=values.dtype, device=self.graph.device)
        probe = probe.mul_(GOLDEN_RATIO).frac_().mul_(6).sub_(3).view(-1, *values.shape[1:])  # as good as random
        arguments = {
            name: probe if name == names[0] else self._edges[name][edges] if name in self._edges else self.others[name]
            for name in self._names
        }
        with self._in_model():
            messages = self.conv.message(**arguments)
        if not isinstance(messages, Tensor) or messages.shape != probe.shape:
            return None
        weights = [
            edge_weight for name, edge_weight in self._edges.items() if name in self._names and edge_weight.dim() == 1
        ]
        for weight in (None, *(edge_weight for edge_weight in weights if edge_weight.is_floating_point())):
            expected = probe if weight is None else probe * as_columns(weight[edges], probe)
            if torch.equal(messages, expected):
                self.has_edge_weights = weight is not None
                ones = probe.new_ones(self._edge_index.shape[1]) if weight is None else weight.to(probe.dtype)
                if self._column is None:
                    return ones
                return ones[self._column.clamp(min=0)].masked_fill(self._column < 0, 0.0)
        return None

    @cached_property
    def lazy_values(self) -> LazyRows | None:
        """The features that are added up, as lazy rows; None if messages are no multiples of them."""
        values = None if self.factor is None else self.nodes[self.only_name][0]
        if values is None or values.dim() != 2:
            return None
        if not isinstance(values, LazyRows):
            return LazyRows(values, None, values.dtype, self._store, ("sent", id(self)))
        return values if values.positions is None else None

    @cached_property
    def matrix(self) -> SumMatrix:
        """The weights of the recorded sums or means, if messages are multiples of their sources."""
        graph = self.graph
        assert self.factor is not None
        row = graph.entering_destination
        weight = self.factor[graph.entering.items]
        if self.combination == "mean":
            weight = weight / self.count.clamp(min=1)[row]
        return SumMatrix(graph.entering.ptr, row, graph.entering_source, weight)

    def _sums_of_lazy_rows(self) -> LazySums | None:
        """Return the sums or means of lazy rows, which are computed when they are read; None for other values."""
        values = self.lazy_values
        return None if values is None else LazySums((Sums(self.matrix, values),), self.graph.num_nodes)

    def _aggregated(self, memory: int) -> Tensor:
        """Return the aggregated messages of all nodes."""
        graph = self.graph
        if self.combination == "other":
            sizes = tuple(
                next((side.shape[0] for pair in self.nodes.values() if (side := pair[end]) is not None), None)
                for end in (0, 1)
            )
            arguments = {
                name: tuple(values.read() if isinstance(values, LazyRows) else values for values in pair)
                for name, pair in self.nodes.items()
            }
            size = (sizes[0], graph.num_nodes)
            with self._in_model():
                out: Tensor = type(self.conv).propagate(
                    self.conv, self._edge_index, size=size, **arguments, **self._edges, **self.others
                )
            return out
        if self.factor is not None:
            values = self.nodes[self.only_name][0]
            assert values is not None
            values = values.read() if isinstance(values, LazyRows) else values
            sums = self.matrix.times(values.reshape(values.shape[0], -1))
            return sums.view(graph.num_nodes, *values.shape[1:])
        sums = self._summed(memory)
        return sums if self.combination == "sum" else sums / as_columns(self.count.clamp(min=1), sums)

    def _summed(self, memory: int) -> Tensor:
        """Return the sums of messages, as many rows at a time as fit into memory."""
        graph = self.graph
        first = self.messages(self.recorded(graph.source[:1]), arange_like(graph.source[:1]))
        sums = first.new_zeros(graph.num_nodes, *first.shape[1:])
        ptr, entering = graph.entering
        per_entry = float(first.numel() * first.element_size() * 4 + 64)
        for begin, end in chunk_bounds(graph.entering.sizes * per_entry, min(memory, CHUNK_BYTES)):
            edges = entering[int(ptr[begin]) : int(ptr[end])]
            messages = self.messages(self.recorded(graph.source[edges]), edges)
            sums.index_add_(0, row_of(graph.entering.sizes[begin:end]) + begin, messages)
        return sums


def arange_like(values: Tensor) -> Tensor:
    """Return the positions of the rows of a tensor."""
    return torch.arange(values.shape[0], device=values.device)


def evenly_spaced(total: int, count: int, device: torch.device) -> Tensor:
    """Return `count` integers from 0 to `total` - 1, with repeats if there are more of them."""
    return torch.arange(count, device=device) * (total - 1) // max(count - 1, 1)


def trace_messages(
    conv: MessagePassing,
    arguments: MessageArguments,
    all_edges: LayerGraph,
    given_edges: Any,
    weights: Tensor | None,
    memory: int,
    store: Store,
    in_model: Callable[[], AbstractContextManager[None]],
    step: int,
) -> MessageTrace:
    """Record one call of `propagate`.

    Args:
        conv: The layer.
        arguments: The arguments of `propagate`.
        all_edges: All edges of the graph.
        given_edges: The edges that the layer was called with.
        weights: The edge weights that the layer was called with, if any.
        memory: Bytes of working memory, in addition to the stored results.
        store: The cache of the recorded pass.
        in_model: Returns the context in which the layer's own code runs.
        step: The number of this step in the pass.
    """
    graph, name = all_edges.graph, type(conv).__name__
    ids = edge_ids(graph, given_edges, arguments.edge_index, step)
    if ids is None:
        raise NotRowwiseError(f"{name} does not run on the edges of the model's graph")
    if ids.unique().numel() != ids.numel():
        raise NotRowwiseError(f"{name} runs on several self-loops of one node")
    if graph.types is None:
        sizes = {features.shape[0] for features in arguments.inputs}
        if sizes != {graph.num_nodes}:
            raise NotRowwiseError(f"{name} does not run on the nodes of the model's graph")
        column = torch.full((graph.num_edges,), -1, dtype=torch.int64, device=graph.device)
        column[ids] = torch.arange(ids.numel(), device=graph.device)
        trace = MessageTrace(conv, arguments, all_edges, column, memory, store, in_model)
        _note_loops(trace, graph, given_edges, weights, ids, arguments.edge_index)
        return trace
    kind = find_type(graph, given_edges)
    if kind is None:
        raise NotRowwiseError(f"{name} does not run on the edges of one relation")
    ends = (kind[0], kind[2])
    fits = all(
        features.shape[0] == len(graph.types.nodes(ends[side]))
        for features, side in zip(arguments.inputs, arguments.sides, strict=True)
    )
    if not fits:
        raise NotRowwiseError(f"{name} does not run on the nodes of the model's graph")
    trace = MessageTrace(conv, arguments, one_relation(graph, kind, ids, ends), None, memory, store, in_model)
    trace.adds_loops = bool((ids >= graph.num_proper_edges).any())
    return trace


def _note_loops(
    trace: MessageTrace, graph: Graph, given_edges: Any, weights: Tensor | None, ids: Tensor, edge_index: Tensor
) -> None:
    """Note whether a layer adds self-loops, and whether it normalises its weights by degrees."""
    is_given = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
    is_given[graph.position] = True
    trace.adds_loops = bool(getattr(trace.conv, "add_self_loops", False)) or bool((~is_given[ids]).any())
    factor = trace.factor
    if factor is None or not isinstance(given_edges, Tensor):
        return
    fills = (1.0, 2.0) if trace.adds_loops and getattr(trace.conv, "improved", False) else (float(trace.adds_loops),)
    for fill in fills:
        trace.degrees = trace.degrees or _degrees(trace, graph, given_edges, weights, fill)


def _degrees(
    trace: MessageTrace, graph: Graph, given_edges: Tensor, weights: Tensor | None, fill: float
) -> Degrees | None:
    """Return the degrees that normalise the weights of a layer; None if it does not normalise weights this way.

    Args:
        trace: The call.
        graph: The graph.
        given_edges: The edges that the layer was called with.
        weights: The edge weights that it was called with, if any.
        fill: The weight of self-loops that the layer adds.
    """
    factor = trace.factor
    assert factor is not None
    raw = factor.new_full((graph.num_edges,), fill)
    raw[: graph.num_proper_edges] = 1.0
    if weights is None:
        raw[graph.position] = 1.0
    elif given_edges.shape[1] == weights.shape[0] == graph.position.numel():
        raw[graph.position] = (weights.read() if isinstance(weights, LazyRows) else weights).to(raw.dtype)
    else:
        return None
    if trace.present is not None:
        raw = raw.masked_fill(~trace.present, 0.0)
    is_passed_on = weights is not None and torch.equal(factor, raw)
    if not trace.has_edge_weights or is_passed_on or bool((raw < 0).any()):
        return None
    degree = raw.new_zeros(graph.num_nodes).index_add_(0, graph.destination, raw)
    scale = degree.rsqrt().masked_fill(degree == 0, 0.0)
    if same(scale[graph.source] * raw * scale[graph.destination], factor, factor.dtype):
        return Degrees.of(graph, raw, degree, fill)
    return None
