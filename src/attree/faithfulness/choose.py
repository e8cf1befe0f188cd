"""Reduce attention by the fastest engine that serves a model: rows, then copies of parts, then the whole graph.

A faster engine that cannot serve a model, or that fails on it, hands over to the next, with one warning.
"""

from __future__ import annotations

import typing
import warnings
from time import perf_counter
from typing import Any

from torch import Tensor, nn

from attree.attention.capture import Attention
from attree.attention.graph import Graph, plain
from attree.attribution.pairs import Pairs
from attree.errors import ArgumentError, UnsupportedModelError, expect, expect_bool, expect_instance
from attree.faithfulness.copies import CopiesPass, CopiesReducer
from attree.faithfulness.exact.reducer import ExactPass, ExactReducer
from attree.faithfulness.protocol import ReductionProtocol, resolve_protocol
from attree.faithfulness.reduction import Progress, Reduction
from attree.faithfulness.whole import WholeReducer
from attree.subject import Head, Subject
from attree.subject.part_check import NotLocalError, NotRowwiseError
from attree.tensors.limits import REDUCTION_MEMORY
from attree.tensors.ragged import Rows

TRIED = 8
"""How many targets copies are tried on before this engine is chosen."""

SECONDS = 2.0
"""One pass a reduced edge is announced with its time from here on."""


class ReductionPass(typing.Protocol):
    """One forward pass of a model, ready to have edges reduced in it."""

    @property
    def attention(self) -> Attention:
        """What the model attended to in the forward pass."""

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time, and measure what it does to the pair's target."""


class Engine(typing.Protocol):
    """One way to reduce attention."""

    way: str

    def record(self) -> ReductionPass:
        """Run the model with its weights of now."""


ENGINES: tuple[type[Any], ...] = (ExactReducer, CopiesReducer, WholeReducer)
"""The engines, fastest first; the last serves whatever can be called."""

SET_ENGINES: tuple[type[Any], ...] = (CopiesReducer, WholeReducer)
"""The engines that can reduce several edges at once."""


class Reducer:
    """Reduces attention of a subject, over and over as its model trains.

    Args:
        subject: What is explained.
        memory: Bytes of working memory.
        engines: The engines to try, in this order.
    """

    def __init__(
        self, subject: Subject, memory: int = REDUCTION_MEMORY, engines: tuple[type[Any], ...] = ENGINES
    ) -> None:
        expect(isinstance(memory, int) and memory > 0, "memory", "a number of bytes > 0", memory)
        _ = subject.outputs, subject.head  # found once, with the weights of now
        self.subject = subject.fresh()
        self._memory = memory
        self._left = list(engines)
        self._reasons: list[str] = []
        self._engine: Engine | None = None
        self.has_said = False

    @property
    def engine(self) -> Engine:
        """The engine in use."""
        while self._engine is None:
            try:
                self._engine = self._left[0](self.subject, self._memory)
            except (NotRowwiseError, NotLocalError) as error:
                self.hand_over(error)
        return self._engine

    def record(self) -> RecordedPass:
        """Run the model with its weights of now, by the fastest engine that can."""
        return RecordedPass(self)

    def hand_over(self, error: Exception) -> None:
        """Leave the engine in use for the next; raise where there is none."""
        if len(self._left) == 1:
            raise error
        if isinstance(error, NotRowwiseError | NotLocalError):
            reason = error.reason
        else:
            reason = f"it fails there ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        self._reasons.append(f"{self._left[0].way} cannot serve it, because {reason}")
        self._left.pop(0)
        self._engine, self.has_said = None, False

    def say(self, seconds: float, pairs: Pairs) -> None:
        """Say once which slower engine serves the model, why, and how long it may take."""
        if not self._reasons or self.has_said:
            return
        self.has_said = True
        long = ""
        if self._left[0] is WholeReducer:
            passes = pairs.edges.unique().numel()
            if passes * seconds > SECONDS:
                long = f" ({passes} passes, about {_time(passes * seconds)} for each protocol)"
        warnings.warn(
            f"Attention of {self.subject.call.name} is reduced by {self._left[0].way}{long}, which takes many times as "
            f"long as exact updates: {'; '.join(self._reasons)}.",
            stacklevel=2,
        )


class RecordedPass:
    """One forward pass; while edges are reduced in it, a slower engine may take over.

    Args:
        reducer: The engines.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._pass, self._seconds = self._record()
        self.attention: Attention = self._pass.attention

    @property
    def engine(self) -> Engine:
        """The engine that serves the model."""
        return self._reducer.engine

    def _record(self) -> tuple[Any, float]:
        while True:
            engine, began = self._reducer.engine, perf_counter()
            try:
                return engine.record(), perf_counter() - began
            except ArgumentError:
                raise
            except Exception as error:
                if isinstance(engine, WholeReducer):
                    raise
                self._reducer.hand_over(error)

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time, and measure what it does to the pair's target."""
        return self._by_some_engine(pairs, lambda one: one.reduce(pairs, protocol, with_probability, progress))

    def effect(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """The dPC of every pair, [P]: cheaper than `reduce` for pairs that are reduced once."""

        def measured(one: Any) -> Tensor:
            return one.effect(pairs, protocol) if isinstance(one, ExactPass) else one.reduce(pairs, protocol).delta_pc

        return self._by_some_engine(pairs, measured)

    def reduce_sets(self, pairs: Pairs, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """The outputs of the pairs' targets when sets of edges are reduced, all edges of a set at once."""
        return self._by_some_engine(pairs, lambda one: one.reduce_sets(pairs.targets, owner, sets, protocol))

    def _by_some_engine(self, pairs: Pairs, work: typing.Callable[[Any], Any]) -> Any:
        pairs.check(self._reducer.subject.graph)
        while True:
            try:
                if not self._reducer.has_said and isinstance(self._pass, CopiesPass):
                    self._pass.check(pairs.targets[:TRIED])
                self._reducer.say(self._seconds, pairs)
                return work(self._pass)
            except ArgumentError:
                raise
            except Exception as error:
                if isinstance(self._reducer.engine, WholeReducer):
                    raise _explained(error, self._reducer.subject) from error
                self._reducer.hand_over(error)
                self._pass, self._seconds = self._record()


def _explained(error: Exception, subject: Subject) -> Exception:
    """An error of ours as it is; others with what was tried."""
    if isinstance(error, UnsupportedModelError):
        return error
    return UnsupportedModelError(
        f"Expected {subject.call.name} to run with an edge's attention reduced, but it raised "
        f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def reduce_attention(
    model: nn.Module,
    x: Any,
    edge_index: Any,
    pairs: Pairs,
    protocol: str | ReductionProtocol,
    *args: Any,
    graph: Graph | None = None,
    memory: int = REDUCTION_MEMORY,
    head: Head | None = None,
    node_type: str | None = None,
    with_probability: bool = False,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Reduction:
    """Reduce each pair's edge, one at a time, in every layer and head at once, and measure the effect on its target.

    Args:
        model: An attention model; by exact updates of rows where its forward can be run on rows, which is checked, else
            by batched copies of subgraphs, else by one pass over the whole graph for each edge.
        x: Node features; of a heterogeneous graph, a dict by node type.
        edge_index: The graph's edges; of a heterogeneous graph, a dict by edge type.
        pairs: Which edge to reduce for which target, see `subject_pairs`, and `subgraph_pairs` for nodes and
            `graph_pairs` for graphs.
        protocol: `coefficient`, `weight`, `removal`, or `authors` (`weight` for GAT, else `coefficient`).
        *args: Further positional arguments of the model.
        graph: The looped graph of `edge_index`, if at hand.
        memory: Bytes of working memory.
        head: What the outputs mean; by default logits of classes, or the logit of one.
        node_type: Whose outputs are explained, where a model returns those of several types of nodes.
        with_probability: Also return the class probabilities after each reduction.
        progress: Called as `progress(done, total)` with numbers of pairs each time some have been reduced.
        **kwargs: Further keyword arguments of the model.

    >>> import torch
    >>> from torch_geometric.nn import GAT
    >>> from attree.attribution import subgraph_pairs
    >>> from attree.attention import Graph
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> pairs = subgraph_pairs(Graph(edge_index, num_nodes=3), targets=[0], num_layers=2)
    >>> effect = reduce_attention(GAT(8, 16, 2, out_channels=3), x, edge_index, pairs, "removal").delta_pc
    >>> effect.shape  # one number for each edge around node 0, self-loops included
    torch.Size([6])
    """
    expect_instance(pairs, "pairs", Pairs)
    expect_instance(graph, "graph", Graph, optional=True)
    expect_instance(head, "head", Head, optional=True)
    expect_bool(with_probability, "with_probability")
    expect(progress is None or callable(progress), "progress", "a function of two numbers, or None", progress)
    chosen = resolve_protocol(protocol, model)
    subject = Subject.of(model, x, plain(edge_index), *args, graph=graph, head=head, node_type=node_type, **kwargs)
    return Reducer(subject, memory).record().reduce(pairs, chosen, with_probability, progress)
