"""How an edge's attention is reduced: each protocol as data, read alike by all engines.

A protocol says what happens to the reduced edge's score before softmax and to its weight after it, in every layer and
head at once:

    score' = score_factor * score + score_shift,    weight' = weight_factor * softmax(scores)

A new one is one more line of `attree.defaults.ALL_PROTOCOLS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch_geometric.nn import GATConv

from attree.attention.softmax_hook import attention_convs
from attree.defaults import ALL_PROTOCOLS, AUTHORS
from attree.errors import expect, expect_list, expect_name, expect_number


@dataclass(frozen=True)
class ReductionProtocol:
    """One way to reduce an edge's attention.

    Attributes:
        name: What users type and results are named by.
        meaning: What happens to the edge, in words.
        score_factor: Factor of its score before softmax.
        score_shift: What is added to that; -inf takes the edge out of the softmax.
        weight_factor: Factor of its weight after softmax; nothing renormalises.
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
        """Whether the edge's score before softmax is as it was."""
        return self.score_factor == 1.0 and self.score_shift == 0.0

    @property
    def keeps_weights(self) -> bool:
        """Whether the edge's weight is what softmax gives."""
        return self.weight_factor == 1.0

    def reduce_scores(self, scores: Tensor) -> Tensor:
        """Scores of reduced edges."""
        if self.score_factor == 0.0 or self.score_shift == -math.inf:
            return scores.new_full((), self.score_shift).expand_as(scores)  # also where a score is infinite
        return scores * self.score_factor + self.score_shift

    def reduce_weights(self, weights: Tensor) -> Tensor:
        """Weights of reduced edges."""
        return weights if self.keeps_weights else weights * self.weight_factor


PROTOCOLS: dict[str, ReductionProtocol] = {
    name: ReductionProtocol(name, meaning, **fields) for name, (meaning, fields) in ALL_PROTOCOLS.items()
}
"""The protocols by name: the paper's text, the authors' code for GAT, and true edge removal."""


def protocol_names() -> list[str]:
    """Every name that users may type."""
    return [*PROTOCOLS, AUTHORS]


Protocols = str | ReductionProtocol | Iterable[str | ReductionProtocol]
"""What users may give as `protocols`: names or protocols, one or several; none is fine too."""


def check_protocols(protocols: Protocols) -> list[str | ReductionProtocol]:
    """The protocols as a list; raise unless each is a known name or a `ReductionProtocol`."""
    known = f"names among {', '.join(protocol_names())}, or protocols"
    checked = expect_list(protocols, "protocols", (str, ReductionProtocol), known)
    for one in checked:
        expect(isinstance(one, ReductionProtocol) or one in protocol_names(), "protocols", known, one)
    return checked


def resolve_protocols(protocols: Protocols, model: nn.Module) -> tuple[ReductionProtocol, ...]:
    """The protocols of names; one that is named twice (`weight` and `authors`, say) is taken once.

    Raises:
        ArgumentError: Two different protocols have one name: results could not tell them apart.
    """
    found: dict[str, ReductionProtocol] = {}
    for given in check_protocols(protocols):
        one = resolve_protocol(given, model)
        expect(found.get(one.name, one) == one, "protocols", "protocols of different names", one.name)
        found[one.name] = one
    return tuple(found.values())


def resolve_protocol(protocol: str | ReductionProtocol, model: nn.Module) -> ReductionProtocol:
    """The protocol of a name; `authors` is `weight` for GAT and `coefficient` otherwise, as in the authors' code."""
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
    """Attention weights with some edges reduced.

    Args:
        protocol: What happens to the reduced edges.
        scores: Scores before softmax, [edges] or [edges, heads].
        reduced: Positions of the reduced edges.
        softmax: The softmax over the edges that enter a node.
    """
    if not protocol.keeps_scores:
        scores = scores.index_copy(0, reduced, protocol.reduce_scores(scores[reduced]))
    weights = softmax(scores)
    if protocol.score_shift == -math.inf:
        # A node whose every entering edge has left receives nothing; softmax would say 0 / 0.
        return weights.index_fill(0, reduced, 0.0)
    if protocol.keeps_weights:
        return weights
    return weights.index_copy(0, reduced, protocol.reduce_weights(weights[reduced]))
