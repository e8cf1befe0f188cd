"""Reduce attention by the fastest engine that supports a model: rows, then copies of subgraphs, then the whole graph.

If an engine does not support a model, or fails on it, the next engine is used, with one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor, nn

from attree.attention.capture import Attention
from attree.attention.graph import Graph, plain
from attree.attribution.pairs import Pairs
from attree.errors import ArgumentError, UnsupportedModelError, expect, expect_bool, expect_instance
from attree.faithfulness.copies import CopiesReducer
from attree.faithfulness.exact.reducer import ExactReducer
from attree.faithfulness.protocol import ReductionProtocol, resolve_protocol
from attree.faithfulness.reduction import Progress, Reduction, ReductionEngine, ReductionPass
from attree.faithfulness.whole import WholeReducer
from attree.subject import Head, Subject
from attree.subject.part_check import NotLocalError, NotRowwiseError
from attree.tensors.limits import REDUCTION_MEMORY
from attree.tensors.ragged import Rows, are_pointers

T = TypeVar("T")

CHECKED_TARGETS = 8
"""Number of targets that an engine is checked on before it is used."""

SLOW_SECONDS = 2.0
"""If one pass per edge takes longer than this in total, the warning states the time."""

ENGINES: tuple[type[ReductionEngine], ...] = (ExactReducer, CopiesReducer, WholeReducer)
"""The engines, fastest first; the last supports any model that can be called."""

SET_ENGINES: tuple[type[ReductionEngine], ...] = (CopiesReducer, WholeReducer)
"""The engines that can reduce several edges at once."""


class Reducer:
    """Reduces attention of a subject, also repeatedly while its model trains.

    Args:
        subject: The subject to explain.
        memory: Bytes of working memory.
        engines: The engines to try, in this order.
    """

    def __init__(
        self, subject: Subject, memory: int = REDUCTION_MEMORY, engines: tuple[type[ReductionEngine], ...] = ENGINES
    ) -> None:
        expect(isinstance(memory, int) and memory > 0, "memory", "a number of bytes > 0", memory)
        _ = subject.outputs, subject.head  # found once, with the current weights
        self.subject = subject.fresh()
        self._memory = memory
        self._left = list(engines)
        self._reasons: list[str] = []
        self._engine: ReductionEngine | None = None
        self.has_warned = False

    @property
    def engine(self) -> ReductionEngine:
        """The engine in use."""
        while self._engine is None:
            try:
                self._engine = self._left[0](self.subject, self._memory)
            except (NotRowwiseError, NotLocalError) as error:
                self.use_next_engine(error)
        return self._engine

    def record(self) -> RecordedPass:
        """Run the model with its current weights, by the fastest engine that supports it."""
        return RecordedPass(self)

    def use_next_engine(self, error: Exception) -> None:
        """Replace the engine in use, which raised `error`, by the next; raise `error` if there is none."""
        if len(self._left) == 1:
            raise error
        if isinstance(error, NotRowwiseError | NotLocalError):
            reason = error.reason
        else:
            reason = f"it fails there ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        self._reasons.append(f"{self._left[0].way} do not work for it, because {reason}")
        self._left.pop(0)
        self._engine, self.has_warned = None, False

    def warn_once(self, seconds: float, pairs: Pairs) -> None:
        """Warn once if a slower engine is used: why, and how long it may take.

        Args:
            seconds: Duration of one forward pass.
            pairs: The pairs to reduce.
        """
        if not self._reasons or self.has_warned:
            return
        self.has_warned = True
        duration = ""
        if self._left[0] is WholeReducer:
            passes = pairs.edges.unique().numel()
            if passes * seconds > SLOW_SECONDS:
                duration = f" ({passes} passes, about {_time(passes * seconds)} for each protocol)"
        warnings.warn(
            f"Attention of {self.subject.call.name} is reduced by {self._left[0].way}{duration}, which takes many "
            f"times as long as exact updates: {'; '.join(self._reasons)}.",
            stacklevel=2,
        )


class RecordedPass:
    """One forward pass in which edges can be reduced; if its engine fails, the next engine is used.

    Args:
        reducer: The reducer that chooses engines.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._pass, self._seconds = self._record()
        self.attention: Attention = self._pass.attention

    @property
    def engine(self) -> ReductionEngine:
        """The engine in use."""
        return self._reducer.engine

    def _record(self) -> tuple[ReductionPass, float]:
        """Record a forward pass by the first engine that does not fail; return the pass and its seconds."""
        while True:
            engine, began = self._reducer.engine, perf_counter()
            try:
                return engine.record(), perf_counter() - began
            except ArgumentError:
                raise
            except Exception as error:
                if isinstance(engine, WholeReducer):
                    raise
                self._reducer.use_next_engine(error)

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time, and measure the effect on the pair's target."""
        return self._by_some_engine(pairs, lambda one: one.reduce(pairs, protocol, with_probability, progress))

    def effect(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """Return the dPC of every pair, [P]; cheaper than `reduce` for pairs that are reduced once."""
        return self._by_some_engine(pairs, lambda one: one.effect(pairs, protocol))

    def reduce_sets(self, pairs: Pairs, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """Return the outputs of the pairs' targets when all edges of a set are reduced at once, one row per set."""
        return self._by_some_engine(pairs, lambda one: one.reduce_sets(pairs.targets, owner, sets, protocol))

    def _by_some_engine(self, pairs: Pairs, work: Callable[[ReductionPass], T]) -> T:
        """Return the result of `work` on the recorded pass; if the engine fails, try again with the next engine."""
        pairs.check(self._reducer.subject.graph)
        while True:
            try:
                if not self._reducer.has_warned:
                    self._pass.check(pairs.targets[:CHECKED_TARGETS])
                self._reducer.warn_once(self._seconds, pairs)
                return work(self._pass)
            except ArgumentError:
                raise
            except Exception as error:
                if isinstance(self._reducer.engine, WholeReducer):
                    raise _explained(error, self._reducer.subject) from error
                self._reducer.use_next_engine(error)
                self._pass, self._seconds = self._record()


def _explained(error: Exception, subject: Subject) -> Exception:
    """Return an error of attree unchanged; wrap any other in an `UnsupportedModelError`."""
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
        model: An attention model. The fastest engine that supports it is used: exact updates of rows, else batched
            copies of subgraphs, else one forward pass over the whole graph for each edge.
        x: Node features; for a heterogeneous graph, a dict by node type.
        edge_index: Edges; for a heterogeneous graph, a dict by edge type.
        pairs: Pairs of a target and an edge to reduce; see `subject_pairs`, `subgraph_pairs` (nodes) and `graph_pairs`.
        protocol: `coefficient`, `weight`, `removal`, or `authors` (`weight` for GAT, else `coefficient`).
        *args: Further positional arguments of the model.
        graph: The graph of `edge_index` with self-loops, if you have it already.
        memory: Bytes of working memory.
        head: How the outputs are read; default: class logits, or one logit for two classes.
        node_type: The node type to explain, if the model returns outputs of several types.
        with_probability: Also return the class probabilities after each reduction.
        progress: Called as `progress(done, total)` with numbers of pairs after each batch of reductions.
        **kwargs: Further keyword arguments of the model.

    >>> import torch
    >>> from torch_geometric.nn import GAT
    >>> from attree.attribution import subgraph_pairs
    >>> from attree.attention import Graph
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> pairs = subgraph_pairs(Graph(edge_index, num_nodes=3), targets=[0], num_layers=2)
    >>> effect = reduce_attention(GAT(8, 16, 2, out_channels=3), x, edge_index, pairs, "removal").delta_pc
    >>> effect.shape  # one number per edge around node 0, self-loops included
    torch.Size([6])
    """
    expect_instance(pairs, "pairs", Pairs)
    expect_instance(graph, "graph", Graph, optional=True)
    expect_instance(head, "head", Head, optional=True)
    expect_bool(with_probability, "with_probability")
    expect(progress is None or callable(progress), "progress", "a function of two numbers, or None", progress)
    chosen = resolve_protocol(protocol, model)
    subject = Subject.of(model, x, plain(edge_index), *args, graph=graph, head=head, node_type=node_type, **kwargs)
    subject.targets(pairs.targets)  # raises if some are not in the graph
    edges, number = pairs.edges, subject.graph.num_edges
    expect(bool(((edges >= 0) & (edges < number)).all()), "pairs", f"pairs of edges in [0, {number})", "others")
    is_grouped = are_pointers(pairs.ptr, pairs.targets.numel(), edges.numel())
    expect(is_grouped, "pairs", "edges grouped by target with `ptr`", "a `ptr` that does not fit")
    return Reducer(subject, memory).record().reduce(pairs, chosen, with_probability, progress)
