"""Reduce attention by the fastest engine that supports a model: rows, then copies of subgraphs, then the whole graph.

If an engine does not support a model, or fails on it, the next engine is used, with one warning. Protocols that delete
edges and the others may end with different engines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor, nn

from attree.attention.capture import Attention
from attree.attention.graph import Graph, plain
from attree.attribution.pairs import Pairs
from attree.errors import ArgumentError, UnsupportedModelError, expect, expect_bool, expect_instance
from attree.faithfulness.copies_engine import CopiesReducer
from attree.faithfulness.effect_measures import Progress, Reduction, ReductionEngine, ReductionPass
from attree.faithfulness.exact.exact_engine import ExactPass, ExactReducer, finds_out_deletion
from attree.faithfulness.protocol import ReductionProtocol, resolve_protocol
from attree.faithfulness.whole_graph_engine import WholeReducer, is_known_to_delete, reads_other_edges
from attree.subject import Head, Subject
from attree.subject.facts import facts_of
from attree.subject.model_call import NotLocalError, NotRowwiseError
from attree.tensors.arrays import Rows, are_pointers
from attree.tensors.memory import REDUCTION_MEMORY

T = TypeVar("T")

CHECKED_TARGETS = 8
"""Number of targets that an engine is checked on before it is used."""

SLOW_SECONDS = 2.0
"""If one pass per edge takes longer than this in total, the warning states the time."""

ENGINES: tuple[type[ReductionEngine], ...] = (ExactReducer, CopiesReducer, WholeReducer)
"""The engines, fastest first; the last supports any model that can be called."""

SET_ENGINES: tuple[type[ReductionEngine], ...] = (CopiesReducer, WholeReducer)
"""The engines that can reduce several edges at once."""


READS_NO_OTHER_EDGES = "reads no other edges"
"""The fact that a model was found to read edges in its attention layers only."""

OTHER_EDGES = (
    "it reads edges outside its attention layers (degrees, means over edges, edge features that are filled in for "
    "self-loops), and a deleted edge must be missing there, too"
)
"""Why exact updates do not delete edges of some models: they know the attention layers only."""


@dataclass
class EngineChoice:
    """The engines that are left to try for some protocols, and why others were given up.

    Attributes:
        left: The engines to try, in this order.
        reasons: Why others were given up, as sentences.
        has_warned: Whether a warning has said so.
    """

    left: list[type[ReductionEngine]]
    reasons: list[str] = field(default_factory=list)
    has_warned: bool = False

    def give_up(self, error: Exception) -> None:
        """Drop the engine in use, which raised `error`; raise `error` if there is no other."""
        if len(self.left) == 1:
            raise error
        if isinstance(error, NotRowwiseError | NotLocalError):
            reason = error.reason
        else:
            reason = f"it fails there ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        self.reasons.append(f"{self.left[0].way} do not work for it, because {reason}")
        self.left.pop(0)
        self.has_warned = False


class Reducer:
    """Reduces attention of a subject, also repeatedly while its model trains.

    It holds the engines and which of them are given up. Protocols that delete edges have a choice of their own: exact
    updates delete an edge only if the model reads edges in its attention layers alone.

    Args:
        subject: The subject to explain.
        memory: Bytes of working memory.
        engines: The engines to try, in this order.
    """

    def __init__(
        self, subject: Subject, memory: int = REDUCTION_MEMORY, engines: tuple[type[ReductionEngine], ...] = ENGINES
    ) -> None:
        expect(isinstance(memory, int) and memory > 0, "memory", "a number of bytes > 0", memory)
        _ = subject.head  # raises if effects on the outputs are not defined
        self.subject = subject
        self._memory = memory
        self._choices = {deletes: EngineChoice(list(engines)) for deletes in (False, True)}
        self._engines: dict[type[ReductionEngine], ReductionEngine] = {}
        self._is_checked = is_known_to_delete(subject)
        self._deletes_data = False

    def record(self) -> Effects:
        """Run the model with its current weights, by the fastest engine that supports it."""
        return Effects(self)

    @property
    def engine(self) -> ReductionEngine:
        """The engine that deletes edges."""
        return self.engine_for(deletes=True)

    def engine_for(self, deletes: bool) -> ReductionEngine:
        """Return the engine in use for protocols that delete edges, or for the others."""
        if deletes and not self._is_checked:
            self.check_deletion()
        while True:
            kind = self._choices[deletes].left[0]
            try:
                if kind not in self._engines:
                    self._engines[kind] = kind(self.subject, self._memory)
                return self._engines[kind]
            except (NotRowwiseError, NotLocalError) as error:
                self.give_up(kind, error)

    def give_up(self, engine: type[ReductionEngine], error: Exception) -> None:
        """Use an engine no more, because it raised `error`; raise `error` if it is the last one."""
        for choice in self._choices.values():
            if choice.left[0] is engine:
                choice.give_up(error)

    def check_deletion(self) -> None:
        """Find out with the current weights whether exact updates delete edges; give them up if they do not."""
        self._is_checked, facts = True, facts_of(self.subject.call)
        choice = self._choices[True]
        if choice.left[0] is not ExactReducer or len(choice.left) == 1 or is_known_to_delete(self.subject):
            return
        if finds_out_deletion(self.subject.model):
            return  # passes of exact updates of such layers find it out themselves
        if reads_other_edges(self.subject, self.subject.call.private(), facts.get(READS_NO_OTHER_EDGES, False)):
            choice.give_up(NotRowwiseError(OTHER_EDGES))
        else:
            facts[READS_NO_OTHER_EDGES] = True

    def has_warned(self, deletes: bool) -> bool:
        """Whether the engine in use for protocols that delete edges, or for the others, has been checked and named."""
        return self._choices[deletes].has_warned

    def check_pass(self, recorded: ReductionPass) -> None:
        """Give up exact updates for deletion if a recorded pass does not delete edges as the data would."""
        if not isinstance(recorded, ExactPass) or self._choices[True].left[0] is not ExactReducer:
            return
        if not recorded.deletes_data(self._deletes_data):
            self._choices[True].give_up(NotRowwiseError(OTHER_EDGES))
        self._deletes_data = True

    def warn_once(self, deletes: bool, seconds: float, pairs: Pairs) -> None:
        """Warn once if a slower engine is used: why, and how long it may take.

        Args:
            deletes: Whether edges are deleted.
            seconds: Duration of one forward pass.
            pairs: The pairs to reduce.
        """
        choice = self._choices[deletes]
        if not choice.reasons or choice.has_warned:
            return
        choice.has_warned = True
        other = self._choices[not deletes]
        if other.has_warned and other.reasons == choice.reasons:  # it has been said
            return
        duration = ""
        if choice.left[0] is WholeReducer:
            passes = pairs.edges.unique().numel()
            if passes * seconds > SLOW_SECONDS:
                duration = f" ({passes} passes, about {_time(passes * seconds)} for each protocol)"
        name = self.subject.call.name
        what = f"Edges of the graph of {name} are deleted" if deletes else f"Attention of {name} is reduced"
        warnings.warn(
            f"{what} by {choice.left[0].way}{duration}, which takes many times as long as exact updates: "
            f"{'; '.join(choice.reasons)}.",
            stacklevel=2,
        )


class Effects:
    """Effects of reducing edges on the predictions of a subject, with the weights of one forward pass.

    If an engine fails on a model, the next one is used. Effects of pairs are kept, so that an evaluation and the
    methods that read effects (`Occlusion`) measure each of them once.

    Args:
        reducer: The reducer that chooses engines.

    Attributes:
        attention: The attention of the forward pass.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._passes: dict[ReductionEngine, tuple[ReductionPass, float]] = {}
        self._measured: dict[tuple[int, ReductionProtocol], Reduction] = {}
        self._is_checked = False
        self.attention: Attention = self._recorded(deletes=False)[0].attention

    @classmethod
    def of(cls, subject: Subject) -> Effects:
        """Return the effects on the predictions of a subject, with its current weights."""
        return Reducer(subject).record()

    @property
    def engine(self) -> ReductionEngine:
        """The engine that deletes edges."""
        return self._reducer.engine

    def engine_for(self, protocol: ReductionProtocol) -> ReductionEngine:
        """Return the engine in use for a protocol."""
        return self._reducer.engine_for(protocol.deletes)

    def reach(self, protocol: ReductionProtocol) -> int | None:
        """Return the number of hops whose edges can affect a target, as far as is known; None if any edge can."""
        return self._recorded(protocol.deletes)[0].reach_of(protocol)

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce the edge of every pair, one at a time; a second call with the same pairs returns the same result.

        Args:
            pairs: The pairs of target and edge.
            protocol: How an edge is reduced.
            with_probability: Also return the class probabilities after each reduction.
            progress: Called as `progress(done, total)` with numbers of pairs after each batch of reductions.
        """
        measured = self._measured.get((id(pairs), protocol))
        if measured is None or (with_probability and measured.probability is None):
            measured = self._with_fallback(
                pairs, protocol, lambda recorded: recorded.reduce(pairs, protocol, with_probability, progress)
            )
            self.keep(measured, protocol)
        return measured

    def keep(self, reduction: Reduction, protocol: ReductionProtocol) -> None:
        """Keep effects for later calls of `reduce` with the same pairs."""
        self._measured[id(reduction.pairs), protocol] = reduction  # it holds its pairs, so their id is not reused

    def forget(self) -> None:
        """Forget all effects that are kept; for callers that go through many targets."""
        self._measured.clear()

    def effect(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """Return the dPC of every pair, [P]; cheaper than `reduce` for pairs that are reduced once."""
        return self._with_fallback(pairs, protocol, lambda recorded: recorded.effect(pairs, protocol))

    def reduce_sets(self, pairs: Pairs, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """Return the outputs of the pairs' targets when all edges of a set are reduced at once, one row per set."""
        return self._with_fallback(
            pairs, protocol, lambda recorded: recorded.reduce_sets(pairs.targets, owner, sets, protocol)
        )

    def _recorded(self, deletes: bool) -> tuple[ReductionPass, float]:
        """Record a forward pass by the first engine that does not fail; return the pass and its seconds."""
        if deletes and not self._is_checked:
            self._is_checked = True
            self._reducer.check_deletion()
        while True:
            engine, began = self._reducer.engine_for(deletes), perf_counter()
            if engine in self._passes:
                return self._passes[engine]
            try:
                self._passes[engine] = engine.record(), perf_counter() - began
                self._reducer.check_pass(self._passes[engine][0])
            except ArgumentError:
                raise
            except Exception as error:
                if isinstance(engine, WholeReducer):
                    raise
                self._reducer.give_up(type(engine), error)

    def _with_fallback(self, pairs: Pairs, protocol: ReductionProtocol, work: Callable[[ReductionPass], T]) -> T:
        """Return the result of `work` on the recorded pass; if the engine fails, try again with the next engine."""
        subject = self._reducer.subject
        pairs.check(subject.graph)
        if not protocol.deletes and not self.attention.runs_on_data:
            assert self.attention.untraced is not None
            raise UnsupportedModelError(
                f"Expected layers that run on the nodes and edges of the data for the protocol `{protocol}`, which "
                f"reduces an edge in every layer: use `removal`. {self.attention.untraced.reason}"
            )
        if not (protocol.deletes or self.attention.has_attention) and protocol.keeps_weights:
            raise UnsupportedModelError(
                f"Expected a network with attention along edges for the protocol `{protocol}`, but "
                f"{subject.call.name} has none: use `removal` or `weight`."
            )
        while True:
            recorded, seconds = self._recorded(protocol.deletes)
            engine = self.engine_for(protocol)
            try:
                if not self._reducer.has_warned(protocol.deletes):
                    recorded.check(pairs.targets[:CHECKED_TARGETS])
                self._reducer.warn_once(protocol.deletes, seconds, pairs)
                return work(recorded)
            except ArgumentError:
                raise
            except Exception as error:
                if isinstance(engine, WholeReducer):
                    raise _explained(error, subject) from error
                self._reducer.give_up(type(engine), error)


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
    resolved = resolve_protocol(protocol, model)
    subject = Subject.of(model, x, plain(edge_index), *args, graph=graph, head=head, node_type=node_type, **kwargs)
    subject.targets(pairs.targets)  # raises if some are not in the graph
    edges, number = pairs.edges, subject.graph.num_edges
    expect(bool(((edges >= 0) & (edges < number)).all()), "pairs", f"pairs of edges in [0, {number})", "others")
    is_grouped = are_pointers(pairs.ptr, pairs.targets.numel(), edges.numel())
    expect(is_grouped, "pairs", "edges grouped by target with `ptr`", "a `ptr` that does not fit")
    return Reducer(subject, memory).record().reduce(pairs, resolved, with_probability, progress)
