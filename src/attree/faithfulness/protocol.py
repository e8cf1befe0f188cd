"""Reduction protocols as data, and forward passes of a model with edges reduced.

A protocol changes the score of a reduced edge before softmax and its weight after softmax, in every layer and head:

    score' = score_factor * score + score_shift,    weight' = weight_factor * softmax(scores)

In a layer without attention, the message of a reduced edge is multiplied by weight_factor.
A protocol with a shift of -inf deletes the edge: the model runs on the data without it. This is more than leaving the
softmaxes if the model also reads edges elsewhere, for degrees or means. A self-loop also leaves the softmaxes of layers
that add self-loops by themselves: these are no edges of the data, and such a layer would add a deleted one again.

To add a protocol, add a line to `attree.defaults.ALL_PROTOCOLS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, MessagePassing

from attree.attention.graph import EdgeType, Graph, find_type, owner_ids, plain
from attree.attention.instruments import LayerCall, Softmax, Watcher, instrument
from attree.attention.softmax_hook import message_passing
from attree.attention.stand_ins import eval_mode
from attree.defaults import ALL_PROTOCOLS, AUTHORS
from attree.errors import UnsupportedModelError, expect, expect_list, expect_name, expect_name_among, expect_number
from attree.subject import ModelCall


@dataclass(frozen=True)
class ReductionProtocol:
    """One way to reduce an edge's attention.

    Attributes:
        name: Name that users type and results show.
        meaning: What happens to the edge, in words.
        score_factor: Factor of the edge's score before softmax.
        score_shift: Term added to the score; -inf deletes the edge from the data.
        weight_factor: Factor of the edge's weight after softmax; the weights are not normalised again.
    """

    name: str
    meaning: str
    score_factor: float = 1.0
    score_shift: float = 0.0
    weight_factor: float = 1.0

    def __post_init__(self) -> None:
        expect_name(self.name, "name")
        expect(isinstance(self.meaning, str), "meaning", "a sentence", self.meaning)
        expect_number(self.score_factor, "score_factor")
        expect_number(self.weight_factor, "weight_factor")
        if self.score_shift != -math.inf:
            expect_number(self.score_shift, "score_shift")

    def __str__(self) -> str:
        return self.name

    @property
    def deletes(self) -> bool:
        """Whether the protocol deletes the edge from the data, for all parts of the model that read edges."""
        return self.score_shift == -math.inf

    @property
    def keeps_scores(self) -> bool:
        """Whether the protocol leaves scores before softmax unchanged."""
        return self.score_factor == 1.0 and self.score_shift == 0.0

    @property
    def keeps_weights(self) -> bool:
        """Whether the protocol leaves weights after softmax unchanged."""
        return self.weight_factor == 1.0

    def reduce_scores(self, scores: Tensor) -> Tensor:
        """Return the scores of reduced edges, given their original scores."""
        if self.score_factor == 0.0 or self.deletes:
            return scores.new_full((), self.score_shift).expand_as(scores)  # correct for infinite scores too
        return scores * self.score_factor + self.score_shift

    def reduce_weights(self, weights: Tensor) -> Tensor:
        """Return the weights of reduced edges, given their weights after softmax."""
        return weights if self.keeps_weights else weights * self.weight_factor


PROTOCOLS: dict[str, ReductionProtocol] = {
    name: ReductionProtocol(name, meaning, **fields) for name, (meaning, fields) in ALL_PROTOCOLS.items()
}
"""The protocols by name: the paper's text, the authors' code for GAT, and true edge removal."""


def protocol_names() -> list[str]:
    """Return all protocol names that users may type."""
    return [*PROTOCOLS, AUTHORS]


Protocols = str | ReductionProtocol | Iterable[str | ReductionProtocol]
"""Accepted values of `protocols`: a name, a protocol, or any number of these."""


def check_protocols(protocols: Protocols) -> list[str | ReductionProtocol]:
    """Return the protocols as a list; raise unless each is a known name or a `ReductionProtocol`."""
    accepted = f"names among {', '.join(protocol_names())}, or protocols"
    checked = expect_list(protocols, "protocols", (str, ReductionProtocol), accepted)
    for entry in checked:
        if isinstance(entry, str):
            expect_name_among(entry, "protocols", protocol_names(), "protocols")
    return checked


def resolve_protocols(protocols: Protocols, model: nn.Module) -> tuple[ReductionProtocol, ...]:
    """Return the protocols of given names, without duplicates (`weight` and `authors` can be the same).

    Raises:
        ArgumentError: Two different protocols have the same name, so their results could not be distinguished.
    """
    by_name: dict[str, ReductionProtocol] = {}
    for entry in check_protocols(protocols):
        protocol = resolve_protocol(entry, model)
        expect(
            by_name.get(protocol.name, protocol) == protocol, "protocols", "protocols of different names", protocol.name
        )
        by_name[protocol.name] = protocol
    return tuple(by_name.values())


def resolve_protocol(protocol: str | ReductionProtocol, model: nn.Module) -> ReductionProtocol:
    """Return the protocol of a name; `authors` is `weight` for GAT and `coefficient` otherwise, as in their code."""
    if isinstance(protocol, ReductionProtocol):
        return protocol
    expect(isinstance(protocol, str), "protocol", "a protocol or its name", protocol)
    expect_name_among(protocol, "protocol", protocol_names())
    if protocol == AUTHORS:
        is_gat = all(isinstance(conv, GATConv) for conv in message_passing(model))
        return PROTOCOLS["weight" if is_gat else "coefficient"]
    return PROTOCOLS[protocol]


def reduced_softmax(
    protocol: ReductionProtocol, scores: Tensor, reduced: Tensor, softmax: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return attention weights with some edges reduced.

    Args:
        protocol: The reduction protocol.
        scores: Scores before softmax, [edges] or [edges, heads].
        reduced: Positions of the reduced edges.
        softmax: The softmax over the edges that enter a node.
    """
    if not protocol.keeps_scores:
        scores = scores.index_copy(0, reduced, protocol.reduce_scores(scores[reduced]))
    weights = softmax(scores)
    if protocol.deletes:
        # If all edges that enter a node are removed, the node receives nothing; softmax would give 0 / 0.
        return weights.index_fill(0, reduced, 0.0)
    if protocol.keeps_weights:
        return weights
    return weights.index_copy(0, reduced, protocol.reduce_weights(weights[reduced]))


class ReducedRun(Watcher):
    """Runs a model with edges reduced; created by `reduced_run`.

    Args:
        protocol: The reduction protocol.
        deletes: Whether to delete edges from the data; otherwise they only leave the softmaxes.
    """

    def __init__(self, protocol: ReductionProtocol, deletes: bool) -> None:
        self.protocol = protocol
        self.deletes = deletes
        self._graph: Graph | None = None
        self._reduced: Tensor | None = None
        self._loops: dict[EdgeType, Tensor] = {}

    def __call__(self, call: ModelCall, graph: Graph, reduced: Tensor) -> Any:
        """Return the result of a call with edges reduced.

        Args:
            call: The call of the model.
            graph: The graph of the call.
            reduced: Ids of the reduced edges in `graph.edge_index`. Every copy of a self-loop is reduced; a layer may
                have none, one or several.
        """
        self._loops = {}
        if self.deletes and reduced.numel():
            call, graph, reduced = self._delete(call, graph, reduced)
        self._graph = graph
        self._reduced = None
        if reduced.numel():
            none = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
            self._reduced = none.index_fill(0, reduced, True)
        return self.one_pass(call.run)

    def columns(self, graph: Graph, edges: Tensor) -> Tensor:
        """Return the positions in the given edge list that are deleted with some edges of its graph."""
        if not self.deletes:
            return edges[:0]
        is_deleted = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device).index_fill(0, edges, True)
        return is_deleted[graph.position].nonzero().view(-1)

    def _delete(self, call: ModelCall, graph: Graph, edges: Tensor) -> tuple[ModelCall, Graph, Tensor]:
        """Return the call without some edges, its graph, and the ids of self-loops that must leave the softmaxes."""
        columns = self.columns(graph, edges)
        loops = edges[edges >= graph.num_proper_edges] - graph.num_proper_edges
        if graph.types is not None:
            self._loops = _typed_loops(graph, columns)
        call = call.without_edges(columns)
        if not loops.numel() and not self._loops:
            return call, graph, loops  # no softmax needs the graph
        graph = graph if not columns.numel() else call.graph
        return call, graph, loops + graph.num_proper_edges

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        """Compute the softmax of a layer with edges reduced."""
        relation = call.next_relation()
        if scores.shape[0] == 0 or not self.is_reducing or self._is_readout(call):
            return softmax(scores)
        edges = call.scored_edges(scores.shape[0] if relation is None else relation.numel())
        is_reduced = None if edges is None else self._reduced_in_layer(call, edges)
        if is_reduced is None:
            got = f"{scores.shape[0]} scores are not one for each" if edges is None else "its edges are others"
            raise UnsupportedModelError(
                f"Expected {type(call.conv).__name__} to apply its softmax to one score per edge of the graph it is "
                f"given, but {got}: the protocol `{self.protocol}` is not defined there."
            )
        is_reduced = is_reduced if relation is None else is_reduced[relation]
        return reduced_softmax(self.protocol, scores, is_reduced.nonzero().view(-1), softmax)

    def messages(self, call: LayerCall, messages: Tensor) -> Tensor | None:
        """Reduce the messages of a layer without attention: a weight of 0 is a message of 0."""
        factor = 0.0 if self.protocol.deletes else self.protocol.weight_factor
        if call.has_attention or factor == 1.0 or not self.is_reducing or messages.shape[call.conv.node_dim] == 0:
            return None
        if self._is_readout(call):
            return None
        is_reduced = self._reduced_in_layer(call, call.edges)
        if is_reduced is None or is_reduced.numel() != messages.shape[call.conv.node_dim]:
            raise UnsupportedModelError(
                f"Expected {type(call.conv).__name__} to send one message along each edge of the graph it is given, "
                f"but its messages are others: the protocol `{self.protocol}` is not defined there."
            )
        shape = [1] * messages.dim()
        shape[call.conv.node_dim] = -1
        return torch.where(is_reduced.view(shape), messages * factor, messages)

    @property
    def is_reducing(self) -> bool:
        """Whether any edge is reduced within layers."""
        return self._reduced is not None or bool(self._loops)

    def _is_readout(self, call: LayerCall) -> bool:
        """Whether a call pools nodes, so that it has no edges of the data."""
        assert self._graph is not None
        return self._graph.types is None and call.pools(self._graph.num_nodes)

    def _reduced_in_layer(self, call: LayerCall, edges: Any) -> Tensor | None:
        """Return which edges of a running layer the protocol reduces; None if these are no edges of the graph."""
        assert self._graph is not None
        given_edges = plain(call.given_edges)
        ids = owner_ids(self._graph, given_edges, edges, call.number)
        if ids is None:
            return None
        is_reduced = torch.zeros_like(ids, dtype=torch.bool)
        if self._reduced is not None:
            is_reduced = self._reduced[ids] if self._graph.messages is None else (ids >= 0) & self._reduced[ids]
        if self._loops:
            nodes = self._loops.get(find_type(self._graph, given_edges) or ("", "", ""))
            if nodes is not None:
                is_reduced = is_reduced | ((edges[0] == edges[1]) & torch.isin(edges[0], nodes))
        return is_reduced


def _typed_loops(graph: Graph, columns: Tensor) -> dict[EdgeType, Tensor]:
    """Return the nodes that lose all given self-loops of an edge type with some edges, by edge type."""
    types, ends = graph.types, graph.original_edge_index
    assert types is not None
    loops = (ends[0] == ends[1]).nonzero().view(-1)
    is_deleted = torch.isin(loops, columns)
    if not bool(is_deleted.any()):
        return {}
    kinds, nodes = types.type_of_edges(loops), types.local(ends[0, loops])
    key = kinds * max(graph.num_nodes, 1) + nodes
    is_gone = is_deleted & ~torch.isin(key, key[~is_deleted])
    return {types.edge_types[kind]: nodes[is_gone & (kinds == kind)] for kind in kinds[is_gone].unique().tolist()}


@contextmanager
def reduced_run(model: nn.Module, protocol: ReductionProtocol, *, deletes: bool | None = None) -> Iterator[ReducedRun]:
    """Context in which the returned run reduces edges in `model`; the hooks are removed afterwards.

    Args:
        model: The model.
        protocol: The reduction protocol.
        deletes: Whether reduced edges are deleted from the data; None if the protocol says so.
    """
    run = ReducedRun(protocol, protocol.deletes if deletes is None else deletes)
    has_layers = any(isinstance(module, MessagePassing) for module in model.modules())
    layers = instrument(model, run) if has_layers or not run.deletes else nullcontext()
    with eval_mode(model), torch.no_grad(), layers:
        yield run
