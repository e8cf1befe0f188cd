"""Choose how to reduce attention: by exact updates of rows where a model can be run on rows, else by copies."""

from __future__ import annotations

import typing
import warnings
from typing import Any

from torch import Tensor, nn
from torch_geometric import EdgeIndex

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.attribution.pairs import Pairs
from attree.faithfulness.copies.reducer import CopiesReducer
from attree.faithfulness.exact.reducer import ExactReducer
from attree.faithfulness.exact.refusal import CannotTakeApartError
from attree.faithfulness.protocol import Protocol, resolve_protocol
from attree.faithfulness.reduction import Progress, Reduction
from attree.memory import REDUCTION_MEMORY
from attree.subject.head import Head


class Reducer(typing.Protocol):
    """One forward pass of a model, ready to have edges reduced in it."""

    @property
    def attention(self) -> Attention:
        """What the model attended to in the forward pass."""

    def forget(self) -> None:
        """Drop the forward pass: whatever is asked next is answered by a new one, with the weights of then."""

    def reduce(
        self, pairs: Pairs, protocol: Protocol, with_probability: bool = False, progress: Progress | None = None
    ) -> Reduction:
        """Reduce every pair's edge, one at a time, and measure what it does to the pair's target."""


def make_reducer(
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    *args: Any,
    graph: LoopedGraph | None = None,
    memory: int = REDUCTION_MEMORY,
    head: Head | None = None,
    **kwargs: Any,
) -> Reducer:
    """Run `model(x, edge_index, *args, **kwargs)` once and prepare it for reductions.

    Args:
        model: An attention model.
        x: Node features.
        edge_index: The graph's edges.
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        memory: Bytes of working memory.
        head: What the outputs mean; by default logits of classes, or the logit of one.
        **kwargs: Further keyword arguments of the model.
    """
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    try:
        return ExactReducer(model, x, edge_index, *args, graph=graph, memory=memory, head=head, **kwargs)
    except CannotTakeApartError as error:
        reason = error.reason
    reducer = CopiesReducer(model, x, edge_index, *args, graph=graph, memory=memory, head=head, **kwargs)
    warnings.warn(
        f"Attention of {type(model).__name__} is reduced by forward passes over copies of subgraphs, which takes "
        f"many times as long as exact updates, because {reason}.",
        stacklevel=2,
    )
    return reducer


def reduce_attention(
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    pairs: Pairs,
    protocol: str | Protocol,
    *args: Any,
    graph: LoopedGraph | None = None,
    memory: int = REDUCTION_MEMORY,
    head: Head | None = None,
    with_probability: bool = False,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Reduction:
    """Reduce each pair's edge, one at a time, in every layer and head at once, and measure the effect on its target.

    Args:
        model: An attention model; by exact updates of rows where its forward can be run on rows, which is checked, else
            by batched copies of subgraphs.
        x: Node features.
        edge_index: The graph's edges.
        pairs: Which edge to reduce for which target, see `subgraph_pairs` and, for graph-level models, `graph_pairs`.
        protocol: `coefficient`, `weight`, `removal`, or `authors` (`weight` for GAT, else `coefficient`).
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        memory: Bytes of working memory.
        head: What the outputs mean; by default logits of classes, or the logit of one.
        with_probability: Also return the class probabilities after each reduction.
        progress: Called as `progress(done, total)` with numbers of pairs each time some have been reduced.
        **kwargs: Further keyword arguments of the model.
    """
    chosen = resolve_protocol(protocol, model)
    reducer = make_reducer(model, x, edge_index, *args, graph=graph, memory=memory, head=head, **kwargs)
    return reducer.reduce(pairs, chosen, with_probability, progress)
