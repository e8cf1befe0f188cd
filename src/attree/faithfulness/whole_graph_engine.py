"""Reduce edges by one forward pass each over the whole graph, and find out whether a model reads edges elsewhere.

The model only has to call attention convolutions on the edges that it is given. Edges that carry no flow to a target
are reduced too, because norms, pooling or attention over all nodes can pass on their effect.

Deleting an edge is then more than leaving it out of the softmaxes. The experiment runs the model twice without a random
half of the edges around a few targets: without them in the data, and without them in the softmaxes only. It is repeated
for the other half. If the model reads edges nowhere else, the outputs are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SumAggregation

from attree.attention.bypass_and_locality import STATE, keeps_state
from attree.attention.softmax_hook import message_passing
from attree.attention.wiring import is_plain_stack
from attree.attribution.flows import frontier_bound
from attree.attribution.pairs import Pairs
from attree.attribution.subgraphs import neighbourhoods
from attree.errors import UnsupportedModelError
from attree.faithfulness.effect_measures import Progress, ReductionEngine, ReductionPass, ReductionWriter
from attree.faithfulness.protocol import PROTOCOLS, ReducedRun, ReductionProtocol, reduced_run
from attree.faithfulness.wide_floats import ExactRun, WideFloats, WideSubject, widened
from attree.subject import ModelCall, Subject
from attree.subject.arguments import Kind
from attree.tensors.arrays import Rows, group
from attree.tensors.memory import REDUCTION_MEMORY
from attree.tensors.precision import difference, exact_dtype, resolution, same

TARGETS = 4
"""Number of targets around which edges are deleted."""

CANDIDATES = 16
"""Number of targets from which those with few edges around them are chosen."""

FEW_EDGES = 8
"""With no more edges than this, each is deleted alone."""

BYTES_PER_EDGE = 1024
"""Rough memory that an edge takes in a pass; bounds the part of the graph that the experiment runs on."""


OWN_LINKS = (
    "Expected {}, which reads edges outside its attention and messages (degrees, means), to take the links that it "
    "predicts as an argument of their own (`edge_label_index`), but it returns one row per edge that it runs on: a "
    "deleted edge would have no prediction."
)
"""Why edges of a model with one row per edge are not deleted."""


def rows_are_edges(subject: Subject) -> bool:
    """Whether a model returns one row per edge that it runs on, so that a deleted edge has no row."""
    return subject.level == "edge" and not subject.call.of_kind(Kind.IDS)


def rows_left(subject: Subject, edges: Tensor) -> Tensor:
    """Return the rows of the output that are left when some edges are deleted, for a model with one row per edge."""
    is_deleted = torch.zeros(subject.graph.num_edges, dtype=torch.bool, device=subject.device)
    return (~is_deleted.index_fill(0, edges, True)[subject.graph.position]).nonzero().view(-1)


def is_known_to_delete(subject: Subject) -> bool:
    """Whether it is known without an experiment that a model reads edges in its attention layers only."""
    return is_plain_stack(subject.call.user_model) and all(
        isinstance(conv.aggr_module, SumAggregation) and not fills_loops(conv)
        for conv in message_passing(subject.model)
    )


def fills_loops(conv: MessagePassing) -> bool:
    """Whether a layer makes the features of self-loops from those of the other edges."""
    return getattr(conv, "edge_dim", None) is not None and isinstance(getattr(conv, "fill_value", None), str)


def reads_other_edges(subject: Subject, call: ModelCall, again: bool = False) -> bool:
    """Whether a model reads edges outside its attention layers, with its current weights.

    Args:
        subject: The subject.
        call: The call of its model with the current weights.
        again: Whether the model was found not to, with other weights: a cheaper experiment is enough.

    Raises:
        UnsupportedModelError: If it does, and returns one row per edge: a deleted edge would have no row.
    """
    part = _part(subject, call)
    of_rows = rows_are_edges(subject)
    differs = True  # if the model fails, nothing shows that leaving the softmaxes is deletion
    # Some models run in their own type only, or on the whole graph only.
    for where, is_wide in ((part, True), (part, False), (call, True), (call, False)):
        try:
            with WideFloats() if is_wide else nullcontext():
                differs = _deletion_differs(widened(where) if is_wide else where, of_rows, again)
            break
        except Exception:
            continue
    if differs and of_rows:
        raise UnsupportedModelError(OWN_LINKS.format(call.name))
    return differs


def _part(subject: Subject, call: ModelCall) -> ModelCall:
    """Return the call on the neighbourhoods of a few targets, or on the whole graph if that is not larger."""
    if subject.outputs.nodes is not None or subject.level == "edge":
        return call
    graph, count = subject.graph, subject.num_targets
    targets = torch.linspace(0, count - 1, min(CANDIDATES, count), device=subject.device).round().long().unique()
    if subject.level == "node":  # those with few edges around them, but with some
        nodes = subject.nodes_of(targets)
        size, degree = frontier_bound(graph, subject.num_layers)[nodes], graph.given_entering.sizes[nodes]
        targets = targets[torch.where(degree > 1, size, torch.inf).argsort()[:TARGETS]].sort().values
    for _, _, part in neighbourhoods(subject, targets[:TARGETS], BYTES_PER_EDGE, REDUCTION_MEMORY):
        if 0 < part.edge_index.shape[1] < graph.original_edge_index.shape[1]:
            return call.on(part.take(torch.arange(part.count, device=subject.device), graph.types))
        break
    return call


@torch.no_grad()
def _deletion_differs(call: ModelCall, of_rows: bool, again: bool) -> bool:
    """Whether it makes a difference if edges are deleted from the data of a whole pass, or only leave the softmaxes."""
    graph = call.graph
    for edges in _edge_sets(graph.num_proper_edges)[: 1 if again else None]:
        edges = edges.to(graph.device)
        outputs: list[Tensor] = []
        for deletes in (True, False):
            with reduced_run(call.model, PROTOCOLS["removal"], deletes=deletes) as reduced:
                outputs.append(reduced(call, graph, edges))
        if of_rows:
            is_deleted = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
            outputs[1] = outputs[1][~is_deleted.index_fill(0, edges, True)[graph.position]]
        if outputs[0].shape != outputs[1].shape or difference(outputs[0], outputs[1], outputs[1].dtype) is not None:
            return True
    return False


def _edge_sets(count: int) -> list[Tensor]:
    """Return sets of edges to delete: a random half of all edges and the others, or each edge of a small graph."""
    if count <= FEW_EDGES:
        return list(torch.arange(count).split(1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [order[: count // 2], order[count // 2 :]]


RANDOM = "it draws random numbers in eval mode (dropout without `training`, noise)"


class WholeReducer(ReductionEngine):
    """Reduces edges by one forward pass over the whole graph for each.

    Args:
        subject: The subject to explain.
        memory: Unused: a forward pass takes the memory that the model needs.
    """

    way = "one pass over the whole graph for each edge"

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        super().__init__(subject, memory)
        self._wide = WideSubject(subject)

    def record(self) -> WholePass:
        """Run the model with its current weights."""
        return WholePass(self._wide.run())


class WholePass(ReductionPass):
    """One forward pass, and one more for each reduced edge.

    Args:
        run: The subject in the type to run it in, with the current weights.
    """

    def __init__(self, run: ExactRun) -> None:
        super().__init__(run.subject, run.attention, run.subject.output.to(exact_dtype(run.subject.device)))
        self.resolution = resolution(run.dtype)
        self._context = run.context

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.subject.num_layers

    @property
    def reach(self) -> None:
        """Any edge can affect any target."""
        return None

    def measure(self, pairs: Pairs, protocol: ReductionProtocol, writer: ReductionWriter, progress: Progress) -> None:
        """Reduce every edge of the pairs in one forward pass, and read the outputs of all its targets there."""
        edges, which = pairs.edges.unique(return_inverse=True)
        by_edge, rows, done = group(which, edges.numel()), pairs.target_rows, 0
        with self._opened(protocol) as run:
            self._check(run)
            for number in range(edges.numel()):
                edge = edges[number : number + 1]
                positions = by_edge.items[by_edge.ptr[number] : by_edge.ptr[number + 1]]
                writer.fill(positions, self._run(run, edge, rows[positions]))
                done += positions.numel()
                progress(done, len(pairs))

    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """Return the outputs of targets when all edges of a set are reduced at once, one row per set."""
        rows = self.subject.rows(targets)
        outputs = [self.output[:0]]
        with self._opened(protocol) as run:
            self._check(run)
            for number in range(owner.numel()):
                edges = sets.items[sets.ptr[number] : sets.ptr[number + 1]]
                outputs.append(self._run(run, edges, rows[owner[number : number + 1]]))
        return torch.cat(outputs)

    @contextmanager
    def _opened(self, protocol: ReductionProtocol) -> Iterator[ReducedRun]:
        """Context of a run."""
        with self._context(), reduced_run(self.subject.model, protocol) as run:
            yield run

    def _run(self, run: ReducedRun, edges: Tensor, rows: Tensor) -> Tensor:
        """Return some rows of the model's output with some edges reduced.

        If output rows are those of the edges themselves, a deleted edge has none. Then its row is that of a run in
        which the edge only leaves the layers, if the other rows show that this is deletion.
        """
        if not (run.deletes and rows_are_edges(self.subject)):
            return self._output(run, edges, self.output.shape[0])[rows]
        left = rows_left(self.subject, edges)
        without = self._output(run, edges, left.numel())
        if bool(torch.isin(rows, left).all()):
            return without[torch.searchsorted(left, rows)]
        run.deletes = False
        try:
            output = self._output(run, edges, self.output.shape[0])
        finally:
            run.deletes = True
        if not same(output[left], without, self.subject.output.dtype):
            raise UnsupportedModelError(OWN_LINKS.format(self.subject.call.name))
        return output[rows]

    def _output(self, run: ReducedRun, edges: Tensor, rows: int) -> Tensor:
        """Return the output of a run; raise unless it has the recorded shape, with this number of rows."""
        output = run(self.subject.call, self.subject.graph, edges)
        if not isinstance(output, Tensor) or output.shape != (rows, *self.output.shape[1:]):
            raise UnsupportedModelError(
                f"Expected {self.subject.call.name} to return an output of the same shape with an edge reduced, but "
                "got another."
            )
        return output.to(self.output.dtype)

    def _check(self, run: ReducedRun) -> None:
        """Raise if a second pass with nothing reduced gives another output: then the model is random."""
        again = self._output(run, self.subject.graph.source[:0], self.output.shape[0])
        change = difference(again, self.output, self.subject.output.dtype)
        if change is not None:
            has_state = keeps_state(lambda: self._output(run, self.subject.graph.source[:0], self.output.shape[0]))
            reason = f"it keeps a state ({STATE})" if has_state else RANDOM
            raise UnsupportedModelError(
                f"Expected {self.subject.call.name} to return the same output in every call, but two calls differ "
                f"by {change:.2g}: {reason}."
            )
