"""Reduction protocols as data, and forward passes of a model with edges reduced.

A protocol changes the score of a reduced edge before softmax and its weight after softmax, in every layer and head:

    score' = score_factor * score + score_shift,    weight' = weight_factor * softmax(scores)

To add a protocol, add a line to `attree.defaults.ALL_PROTOCOLS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, MessagePassing

from attree.attention.conv_edges import EdgeHook, edge_ids, hook_edges
from attree.attention.eval_mode import eval_mode
from attree.attention.graph import Graph
from attree.attention.instrument import hook_softmax
from attree.attention.softmax_hook import attention_convs
from attree.defaults import ALL_PROTOCOLS, AUTHORS
from attree.errors import UnsupportedModelError, expect, expect_list, expect_name, expect_number


@dataclass(frozen=True)
class ReductionProtocol:
    """One way to reduce an edge's attention.

    Attributes:
        name: Name that users type and results show.
        meaning: What happens to the edge, in words.
        score_factor: Factor of the edge's score before softmax.
        score_shift: Term added to the score; -inf removes the edge from the softmax.
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
    def keeps_scores(self) -> bool:
        """Whether the protocol leaves scores before softmax unchanged."""
        return self.score_factor == 1.0 and self.score_shift == 0.0

    @property
    def keeps_weights(self) -> bool:
        """Whether the protocol leaves weights after softmax unchanged."""
        return self.weight_factor == 1.0

    def reduce_scores(self, scores: Tensor) -> Tensor:
        """Return the scores of reduced edges, given their original scores."""
        if self.score_factor == 0.0 or self.score_shift == -math.inf:
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
    known = f"names among {', '.join(protocol_names())}, or protocols"
    checked = expect_list(protocols, "protocols", (str, ReductionProtocol), known)
    for one in checked:
        expect(isinstance(one, ReductionProtocol) or one in protocol_names(), "protocols", known, one)
    return checked


def resolve_protocols(protocols: Protocols, model: nn.Module) -> tuple[ReductionProtocol, ...]:
    """Return the protocols of given names, without duplicates (`weight` and `authors` can be the same).

    Raises:
        ArgumentError: Two different protocols have the same name, so their results could not be distinguished.
    """
    found: dict[str, ReductionProtocol] = {}
    for given in check_protocols(protocols):
        one = resolve_protocol(given, model)
        expect(found.get(one.name, one) == one, "protocols", "protocols of different names", one.name)
        found[one.name] = one
    return tuple(found.values())


def resolve_protocol(protocol: str | ReductionProtocol, model: nn.Module) -> ReductionProtocol:
    """Return the protocol of a name; `authors` is `weight` for GAT and `coefficient` otherwise, as in their code."""
    if isinstance(protocol, ReductionProtocol):
        return protocol
    known = isinstance(protocol, str) and protocol in protocol_names()
    expect(known, "protocol", f"one of {', '.join(protocol_names())}", protocol)
    if protocol == AUTHORS:
        is_gat = all(isinstance(conv, GATConv) for conv in attention_convs(model))
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
    if protocol.score_shift == -math.inf:
        # If all edges that enter a node are removed, the node receives nothing; softmax would give 0 / 0.
        return weights.index_fill(0, reduced, 0.0)
    if protocol.keeps_weights:
        return weights
    return weights.index_copy(0, reduced, protocol.reduce_weights(weights[reduced]))


class ReducedRun:
    """Runs a model with edges reduced; created by `reduced_run`.

    Args:
        protocol: The reduction protocol.
    """

    def __init__(self, protocol: ReductionProtocol) -> None:
        self.protocol = protocol
        self.edges = EdgeHook()
        self._graph: Graph | None = None
        self._reduced = torch.zeros(0, dtype=torch.bool)

    def __call__(self, call: Callable[[], Any], graph: Graph, reduced: Tensor) -> Any:
        """Return the result of a call with edges reduced.

        Args:
            call: Function that calls the model.
            graph: The graph that the model is called on.
            reduced: Ids of the reduced edges in `graph.edge_index`. Every copy of a self-loop is reduced; a layer may
                have none, one or several.
        """
        self._graph = graph
        self._reduced = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device).index_fill(0, reduced, True)
        return call()

    def reduce(self, conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute the softmax of a convolution with edges reduced; called in place of its softmax."""
        relation = self.edges.next_relation(conv)
        if scores.shape[0] == 0:
            return softmax(scores)
        assert self._graph is not None
        edges = self.edges.scored(conv, scores.shape[0] if relation is None else relation.numel())
        ids = None if edges is None else edge_ids(self._graph, self.edges.given(conv), edges)
        if ids is not None and relation is not None:
            ids = ids[relation]
        if ids is None:
            got = f"{scores.shape[0]} scores are not one for each" if edges is None else "its edges are others"
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to apply its softmax to one score per edge of the graph it is given, "
                f"but {got}: the protocol `{self.protocol}` is not defined there."
            )
        return reduced_softmax(self.protocol, scores, self._reduced[ids].nonzero().view(-1), softmax)


@contextmanager
def reduced_run(model: nn.Module, protocol: ReductionProtocol) -> Iterator[ReducedRun]:
    """Context in which the returned run reduces edges in `model`; the hooks are removed afterwards."""
    run = ReducedRun(protocol)
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.no_grad())
        convs = stack.enter_context(hook_softmax(model, run.reduce))
        stack.enter_context(hook_edges(convs, run.edges))
        yield run
