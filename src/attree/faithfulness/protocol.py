"""How an edge's attention is reduced: the three protocols, and which one the paper's authors used for which model."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv

from attree.attention.softmax_tap import attention_convs
from attree.errors import ArgumentError


class Protocol(StrEnum):
    """What happens to the reduced edge, in every layer and head at once.

    - `COEFFICIENT`: its score before softmax becomes 0 and softmax renormalises (the paper's text).
    - `WEIGHT`: its weight after softmax becomes 0 and nothing renormalises.
    - `REMOVAL`: its score becomes -inf, so that it leaves the softmax: true edge removal.
    """

    COEFFICIENT = "coefficient"
    WEIGHT = "weight"
    REMOVAL = "removal"


PROTOCOLS = (*(protocol.value for protocol in Protocol), "authors")
"""What users may type: the three protocols, and `authors`, which picks one per model."""


def resolve_protocol(name: str, model: nn.Module) -> Protocol:
    """The protocol of a name; `authors` is `weight` for GAT and `coefficient` otherwise, as in the authors' code."""
    if name == "authors":
        is_gat = all(isinstance(conv, GATConv) for conv in attention_convs(model))
        return Protocol.WEIGHT if is_gat else Protocol.COEFFICIENT
    if name not in PROTOCOLS:
        raise ArgumentError(f"Expected argument `protocol` to be one of {', '.join(PROTOCOLS)}, but got {name!r}.")
    return Protocol(name)


def reduced_softmax(protocol: Protocol, scores: Tensor, reduced: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
    """Attention weights with some edges reduced.

    Args:
        protocol: What happens to the reduced edges.
        scores: Scores before softmax, [edges] or [edges, heads].
        reduced: Positions of the reduced edges.
        softmax: The softmax over the edges that enter a node.
    """
    if protocol is Protocol.WEIGHT:
        return softmax(scores).index_fill(0, reduced, 0.0)
    fill = 0.0 if protocol is Protocol.COEFFICIENT else -torch.inf
    weights = softmax(scores.index_fill(0, reduced, fill))
    # A node whose every entering edge has left receives nothing; softmax would say 0 / 0.
    return weights if protocol is Protocol.COEFFICIENT else weights.index_fill(0, reduced, 0.0)
