"""Attention reduction by one forward pass over the whole graph for each reduced edge: slow, but right for any model.

The model only has to call attention convolutions on the edges that it is given. Edges that carry no flow to a target
are reduced too, because norms, pooling or attention over all nodes can pass on their effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from attree.attention.diagnostics import STATE, keeps_state
from attree.attention.locality import difference
from attree.attribution.pairs import Pairs
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import ReducedRun, ReductionProtocol, reduced_run
from attree.faithfulness.reading_edges import rows_are_edges
from attree.faithfulness.reduction import Progress, ReductionEngine, ReductionPass, ReductionWriter
from attree.faithfulness.wide_floats import ExactRun, WideSubject
from attree.subject import Subject
from attree.tensors.limits import REDUCTION_MEMORY, exact_dtype, resolution
from attree.tensors.ragged import Rows, group

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
            for number, edge in enumerate(edges.split(1)):
                positions = by_edge.items[by_edge.ptr[number] : by_edge.ptr[number + 1]]
                writer.fill(positions, self._run(run, edge)[rows[positions]])
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
                outputs.append(self._run(run, edges)[rows[owner[number : number + 1]]])
        return torch.cat(outputs)

    @contextmanager
    def _opened(self, protocol: ReductionProtocol) -> Iterator[ReducedRun]:
        """Context of a run; if output rows are those of the edges themselves, the rows of deleted edges must stay."""
        deletes = protocol.deletes and not rows_are_edges(self.subject)
        with self._context(), reduced_run(self.subject.model, protocol, deletes=deletes) as run:
            yield run

    def _run(self, run: ReducedRun, edges: Tensor) -> Tensor:
        """Return the model's output with some edges reduced; raise unless the output has the recorded shape."""
        output = run(self.subject.call, self.subject.graph, edges)
        if not isinstance(output, Tensor) or output.shape != self.output.shape:
            raise UnsupportedModelError(
                f"Expected {self.subject.call.name} to return an output of the same shape with an edge reduced, but "
                "got another."
            )
        return output.to(self.output.dtype)

    def _check(self, run: ReducedRun) -> None:
        """Raise if a second pass with nothing reduced gives another output: then the model is random."""
        again = self._run(run, self.subject.graph.source[:0])
        change = difference(again, self.output, self.subject.output.dtype)
        if change is not None:
            has_state = keeps_state(lambda: self._run(run, self.subject.graph.source[:0]))
            reason = f"it keeps a state ({STATE})" if has_state else RANDOM
            raise UnsupportedModelError(
                f"Expected {self.subject.call.name} to return the same output in every call, but two calls differ "
                f"by {change:.2g}: {reason}."
            )
