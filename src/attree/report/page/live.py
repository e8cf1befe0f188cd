"""Pages with a live model: the model's answers to a page's queries, and the page as a notebook widget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import torch

from attree.errors import ArgumentError, AttreeError, expect, expect_instance
from attree.evaluation import Evaluation
from attree.faithfulness import resolve_protocol
from attree.faithfulness.whole_graph_engine import WholeReducer
from attree.io.files import json_ready
from attree.report.page.content import page_content
from attree.report.page.write import asset
from attree.subject import Subject
from attree.tensors.arrays import Rows

MOST_EDGES = 10_000


class LiveModel:
    """Answers the queries of a page by running the model once per query.

    Args:
        subject: The explained model and its inputs.
        evaluation: The evaluation that the page shows. Questions are about its targets.
    """

    def __init__(self, subject: Subject, evaluation: Evaluation) -> None:
        expect_instance(subject, "subject", Subject)
        expect_instance(evaluation, "evaluation", Evaluation)
        evaluation.pairs.check(subject.graph)
        self._subject = subject
        self._targets = evaluation.pairs.targets
        self._protocols = tuple(evaluation.reductions)
        self._pass = WholeReducer(subject).record()
        self._lock = Lock()  # the hooks on a model belong to one pass at a time

    def answer(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a browser's query, `{"target", "edges", "protocol"}`. All its values are checked."""
        expect(isinstance(query, Mapping), "question", "target, edges and protocol", type(query).__name__)
        question: dict[str, Any] = {name: query.get(name) for name in ("target", "edges", "protocol")}
        return self.what_if(**question)

    def what_if(self, target: int, edges: Sequence[int], protocol: str) -> dict[str, Any]:
        """Return the model's prediction for a target, without and with a reduction of some edges.

        Args:
            target: Position of the target in the evaluation.
            edges: Ids of the edges to reduce together.
            protocol: Name of one of the evaluation's protocols.

        Returns:
            The class probabilities `now` and `then`; for a regression, both numbers as `value`.
        """
        num_targets, graph = self._targets.numel(), self._subject.graph
        expect(_is_index(target, num_targets), "target", f"an integer in [0, {num_targets})", target)
        are_edges = isinstance(edges, list | tuple) and all(_is_index(edge, graph.num_edges) for edge in edges)
        expect(are_edges, "edges", f"a list of integers in [0, {graph.num_edges})", edges)
        expect(len(edges) <= MOST_EDGES, "edges", f"at most {MOST_EDGES:,}", len(edges))
        if not isinstance(protocol, str) or protocol not in self._protocols:
            raise ArgumentError(f"Expected argument `protocol` to be one of {', '.join(self._protocols)}.")
        edge_ids = torch.tensor(sorted(set(edges)), dtype=torch.int64, device=graph.device)
        sets = Rows(torch.tensor([0, edge_ids.numel()], device=graph.device), edge_ids)
        owner = torch.zeros(1, dtype=torch.int64, device=graph.device)
        node = self._targets[target : target + 1]
        with self._lock:
            then = self._pass.reduce_sets(node, owner, sets, resolve_protocol(protocol, self._subject.model))
        head, row = self._subject.head, self._subject.rows(node)
        now = self._subject.output[row].to(then.dtype)
        measured = head.measured(self._subject.output)
        label = None if measured is None else measured[row]
        before, after = head.logits(now, label), head.logits(then, label)
        if head.mode == "regression":
            return {"value": [float(before), float(after)]}
        return {"now": before.softmax(-1)[0].tolist(), "then": after.softmax(-1)[0].tolist()}


def _is_index(value: Any, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size


class MissingWidgetError(AttreeError, ImportError):
    """anywidget is not installed."""


def show(evaluation: Evaluation, subject: Subject | None = None, **options: Any) -> Any:
    """Show an evaluation in a notebook: the page of `write_page`, as a widget.

    Args:
        evaluation: The evaluation to show.
        subject: The explained model and its inputs. With a subject, users can take edges out of the graph on screen,
            and the page shows what the model then predicts.
        **options: Options of `write_page`: `attention`, `predictions`, `truth`, ...

    Returns:
        The widget, which a notebook displays.

    Raises:
        MissingWidgetError: anywidget is not installed.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingWidgetError("The notebook widget needs anywidget: pip install anywidget.") from error
    live = None if subject is None else LiveModel(subject, evaluation)
    synced = traitlets.Dict(json_ready(page_content(evaluation, is_live=live is not None, **options))).tag(sync=True)
    names = {"_esm": asset("explorer.js"), "_css": asset("explorer.css"), "content": synced}
    widget = type("ExplorerWidget", (anywidget.AnyWidget,), names)()
    if live is not None:
        widget.on_msg(lambda _, query, buffers: widget.send(reply(live, query)))
    return widget


def reply(live: LiveModel, query: Any) -> dict[str, Any]:
    """Return the answer to a message of the widget, with the number of the query."""
    number = query.get("number") if isinstance(query, dict) else None
    try:
        return {"number": number, **live.answer(query)}
    except Exception as error:  # shown in the notebook
        return {"number": number, "error": str(error)}
