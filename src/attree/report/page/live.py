"""What a live page asks its model: what is predicted when some edges are reduced, all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import torch

from attree.errors import ArgumentError, expect, expect_instance
from attree.evaluation import Evaluation
from attree.faithfulness import resolve_protocol
from attree.faithfulness.whole import WholeReducer
from attree.subject import Subject
from attree.tensors.ragged import Rows

MOST_EDGES = 10_000


class LiveModel:
    """Answers questions of a page by running the model itself, once a question.

    Args:
        subject: What is explained.
        evaluation: What the page shows; its targets are asked about.
    """

    def __init__(self, subject: Subject, evaluation: Evaluation) -> None:
        expect_instance(subject, "subject", Subject)
        expect_instance(evaluation, "evaluation", Evaluation)
        evaluation.pairs.check(subject.graph)
        self._subject = subject
        self._targets = evaluation.targets
        self._protocols = tuple(evaluation.reductions)
        self._pass = WholeReducer(subject).record()
        self._lock = Lock()  # hooks on a model are of one pass at a time

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question as it came from a browser: `{"target", "edges", "protocol"}`, none of it trusted."""
        expect(isinstance(asked, Mapping), "question", "target, edges and protocol", type(asked).__name__)
        target, edges, protocol = (asked.get(name) for name in ("target", "edges", "protocol"))
        return self.what_if(target, edges, protocol)  # type: ignore[arg-type]  # checked there

    def what_if(self, target: int, edges: Sequence[int], protocol: str) -> dict[str, Any]:
        """What the model predicts for a target, now and when edges are reduced.

        Args:
            target: Position of the target in the evaluation.
            edges: Ids of the reduced edges in the looped graph.
            protocol: What happens to them: one of the evaluation's protocols.

        Returns:
            `now` and `then`, the class probabilities; or `value`, both numbers of a regression.
        """
        known, graph = self._targets.numel(), self._subject.graph
        expect(_is_index(target, known), "target", f"an integer in [0, {known})", target)
        listed = isinstance(edges, list | tuple) and all(_is_index(edge, graph.num_edges) for edge in edges)
        expect(listed, "edges", f"a list of integers in [0, {graph.num_edges})", edges)
        expect(len(edges) <= MOST_EDGES, "edges", f"at most {MOST_EDGES:,}", len(edges))
        if not isinstance(protocol, str) or protocol not in self._protocols:
            raise ArgumentError(f"Expected argument `protocol` to be one of {', '.join(self._protocols)}.")
        chosen = torch.tensor(sorted(set(edges)), dtype=torch.int64, device=graph.device)
        sets = Rows(torch.tensor([0, chosen.numel()], device=graph.device), chosen)
        owner = torch.zeros(1, dtype=torch.int64, device=graph.device)
        own = self._targets[target : target + 1]
        with self._lock:
            then = self._pass.reduce_sets(own, owner, sets, resolve_protocol(protocol, self._subject.model))
        head, row = self._subject.head, self._subject.rows(own)
        now = self._subject.output[row].to(then.dtype)
        measured = head.measured(self._subject.output)
        kept = None if measured is None else measured[row]
        before, after = head.logits(now, kept), head.logits(then, kept)
        if head.mode == "regression":
            return {"value": [float(before), float(after)]}
        return {"now": before.softmax(-1)[0].tolist(), "then": after.softmax(-1)[0].tolist()}


def _is_index(value: Any, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
