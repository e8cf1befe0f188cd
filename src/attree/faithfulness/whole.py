"""Attention reduction by one forward pass over the whole graph for each reduced edge: slow, but right for any model.

The model only has to call attention convolutions on the edges that it is given. Edges that carry no flow to a target
are reduced too, because norms or pooling over all nodes can pass on their effect.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attention.diagnostics import STATE, keeps_state
from attree.attention.locality import difference
from attree.attribution.pairs import Pairs
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import ReducedRun, ReductionProtocol, reduced_run
from attree.faithfulness.reduction import Progress, ReductionEngine, ReductionPass, ReductionWriter
from attree.subject import Subject
from attree.tensors.limits import exact_dtype
from attree.tensors.ragged import Rows, group

RANDOM = "it draws random numbers in eval mode (dropout without `training`, noise)"


class WholeReducer(ReductionEngine):
    """Reduces edges by one forward pass over the whole graph for each.

    Args:
        subject: The subject to explain.
        memory: Unused: a forward pass takes the memory that the model needs.
    """

    way = "one pass over the whole graph for each edge"

    def record(self) -> WholePass:
        """Run the model with its current weights."""
        return WholePass(self.subject.fresh())


class WholePass(ReductionPass):
    """One forward pass, and one more for each reduced edge.

    Args:
        subject: The subject to explain, with the current weights.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject, subject.attention, subject.output.to(exact_dtype(subject.device)))

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.subject.num_layers

    def measure(self, pairs: Pairs, protocol: ReductionProtocol, writer: ReductionWriter, progress: Progress) -> None:
        """Reduce every edge of the pairs in one forward pass, and read the outputs of all its targets there."""
        edges, which = pairs.edges.unique(return_inverse=True)
        by_edge, rows, done = group(which, edges.numel()), pairs.target_rows, 0
        with reduced_run(self.subject.model, protocol) as run:
            self._check(run)
            for number, edge in enumerate(edges.split(1)):
                own = by_edge.items[by_edge.ptr[number] : by_edge.ptr[number + 1]]
                writer.fill(own, self._run(run, edge)[rows[own]])
                done += own.numel()
                progress(done, len(pairs))

    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """Return the outputs of targets when all edges of a set are reduced at once, one row per set."""
        rows = self.subject.rows(targets)
        outputs = [self.output[:0]]
        with reduced_run(self.subject.model, protocol) as run:
            self._check(run)
            for number in range(owner.numel()):
                chosen = sets.items[sets.ptr[number] : sets.ptr[number + 1]]
                outputs.append(self._run(run, chosen)[rows[owner[number : number + 1]]])
        return torch.cat(outputs)

    def _run(self, run: ReducedRun, edges: Tensor) -> Tensor:
        """Return the model's output with some edges reduced; raise unless the output has the recorded shape."""
        graph = self.subject.graph
        output = run(self.subject.call.run, graph, edges)
        if not isinstance(output, Tensor) or output.shape != self.output.shape:
            raise UnsupportedModelError(
                f"Expected {self.subject.call.name} to return an output of the same shape with an edge reduced, but "
                "got another."
            )
        return output.to(self.output.dtype)

    def _check(self, run: ReducedRun) -> None:
        """Raise if a second pass with nothing reduced gives another output: then the model is random."""
        again = self._run(run, self.subject.graph.source[:0])
        found = difference(again, self.output, self.subject.output.dtype)
        if found is not None:
            has_state = keeps_state(lambda: self._run(run, self.subject.graph.source[:0]))
            reason = f"it keeps a state ({STATE})" if has_state else RANDOM
            raise UnsupportedModelError(
                f"Expected {self.subject.call.name} to return the same output in every call, but two calls differ "
                f"by {found:.2g}: {reason}."
            )
