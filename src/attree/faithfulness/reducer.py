"""Choose how to reduce attention: by exact row updates where a network can be taken apart, generically elsewhere."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.faithfulness.exact import ExactReducer
from attree.faithfulness.generic import GenericReducer
from attree.faithfulness.protocol import resolve_protocol
from attree.faithfulness.protocol import Protocol as ReductionProtocol
from attree.faithfulness.reduction import Reduction
from attree.faithfulness.trace import can_trace
from attree.models.attention_net import AttentionNet


class Reducer(Protocol):
    """One forward pass of a model, ready to have edges reduced in it."""

    attention: Attention

    def reduce(self, pairs: Pairs, protocol: ReductionProtocol, with_probability: bool = False) -> Reduction:
        """Reduce every pair's edge, one at a time, and measure what it does to the pair's target."""


def make_reducer(
    model: nn.Module, x: Tensor, edge_index: Tensor, *args: Any, graph: LoopedGraph | None = None, **kwargs: Any
) -> Reducer:
    """Run `model(x, edge_index, *args, **kwargs)` once and prepare it for reductions.

    Args:
        model: An attention model.
        x: Node features.
        edge_index: The graph's edges.
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        **kwargs: Further keyword arguments of the model.
    """
    graph = LoopedGraph(edge_index, x.shape[0]) if graph is None else graph
    if isinstance(model, AttentionNet) and can_trace(model) and not args and not kwargs:
        return ExactReducer(model, x, graph)
    return GenericReducer(model, x, edge_index, *args, graph=graph, **kwargs)


def reduce_attention(
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    pairs: Pairs,
    protocol: str = "coefficient",
    *args: Any,
    graph: LoopedGraph | None = None,
    with_probability: bool = False,
    **kwargs: Any,
) -> Reduction:
    """Reduce the attention of every pair's edge, one at a time, in every layer and head at once, and measure the effect.

    Args:
        model: An attention model; `attree.models` by exact row updates, any other by batched copies of subgraphs.
        x: Node features.
        edge_index: The graph's edges.
        pairs: Which edge to reduce for which target, see `attree.attribution.subgraph_pairs`.
        protocol: `coefficient`, `weight`, `removal`, or `authors` (`weight` for GAT, else `coefficient`).
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        with_probability: Also return the class probabilities after each reduction.
        **kwargs: Further keyword arguments of the model.
    """
    reducer = make_reducer(model, x, edge_index, *args, graph=graph, **kwargs)
    return reducer.reduce(pairs, resolve_protocol(protocol, model), with_probability)
