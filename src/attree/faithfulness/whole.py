"""Attention reduction by one pass over the whole graph for each reduced edge: slow, and right for any model.

Nothing is assumed of the model but that it calls attention convolutions on the edges it is given. Edges that carry no
flow are reduced too: a model with norms or pooling over all nodes may see them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.locality import difference
from attree.attribution.pairs import Pairs
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import ReductionProtocol
from attree.faithfulness.reduced_run import ReducedRun, reduced_run
from attree.faithfulness.reduction import Progress, Reduction, ReductionWriter
from attree.subject import Subject
from attree.tensors.limits import REDUCTION_MEMORY, exact_dtype
from attree.tensors.ragged import Rows, group


class WholeReducer:
    """Reduces edges by one pass of the model over the whole graph each.

    Args:
        subject: What is explained.
        memory: Unused: a pass takes what the model takes.
    """

    way = "one pass over the whole graph for each edge"

    def __init__(self, subject: Subject, memory: int = REDUCTION_MEMORY) -> None:
        self.subject = subject

    def record(self) -> WholePass:
        """Run the model with its weights of now."""
        return WholePass(self.subject.fresh())


class WholePass:
    """One forward pass, and one more for each edge that is reduced.

    Args:
        subject: What is explained, with the weights of now.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.attention: Attention = subject.attention
        self._output = subject.output.to(exact_dtype(subject.device))

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        with_probability: bool = False,
        progress: Progress | None = None,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time."""
        graph = self._subject.graph
        pairs.check(graph, self._subject.num_layers)
        writer = ReductionWriter(pairs, self._output, self._subject.head, with_probability)
        edges, which = pairs.edges.unique(return_inverse=True)
        by_edge, rows, done = group(which, edges.numel()), pairs.target_rows, 0
        with reduced_run(self._subject.model, protocol) as run:
            self._check(run)
            for number, edge in enumerate(edges.split(1)):
                own = by_edge.items[by_edge.ptr[number] : by_edge.ptr[number + 1]]
                writer.fill(own, self._run(run, edge)[rows[own]])
                done += own.numel()
                if progress is not None:
                    progress(done, len(pairs))
        return writer.result

    def reduce_sets(self, targets: Tensor, owner: Tensor, sets: Rows, protocol: ReductionProtocol) -> Tensor:
        """The outputs of targets when sets of edges are reduced, all edges of a set at once: a row each set."""
        rows = self._subject.rows(targets)
        outputs = [self._output[:0]]
        with reduced_run(self._subject.model, protocol) as run:
            self._check(run)
            for number in range(owner.numel()):
                chosen = sets.items[sets.ptr[number] : sets.ptr[number + 1]]
                outputs.append(self._run(run, chosen)[rows[owner[number : number + 1]]])
        return torch.cat(outputs)

    def _run(self, run: ReducedRun, edges: Tensor) -> Tensor:
        graph = self._subject.graph
        output = run(self._subject.call.run, graph, edges)
        if not isinstance(output, Tensor) or output.shape != self._output.shape:
            raise UnsupportedModelError(
                f"Expected {self._subject.call.name} to return the same rows with an edge reduced, but got others."
            )
        return output.to(self._output.dtype)

    def _check(self, run: ReducedRun) -> None:
        """Refuse a model that does not return the same when nothing is reduced: its outputs are random."""
        again = self._run(run, self._subject.graph.source[:0])
        found = difference(again, self._output, self._subject.output.dtype)
        if found is not None:
            raise UnsupportedModelError(
                f"Expected {self._subject.call.name} to return the same whenever it is called, but two passes differ "
                f"by {found:.2g}: it draws random numbers in eval mode (dropout without `training`, noise)."
            )
