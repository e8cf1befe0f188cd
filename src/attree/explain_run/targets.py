"""The targets of a call of `attree explain`: the `--targets` argument, and the base class of explained targets."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from attree.attribution import AttributionMethod
from attree.data import GroundTruth
from attree.errors import ArgumentError, expect
from attree.evaluation import Evaluation
from attree.explain_run.rows import ScoredRows
from attree.faithfulness import ReductionProtocol
from attree.source import Source, TargetLabels, choose_targets
from attree.subject import Subject
from attree.tensors.limits import chunk_bounds

FORMS = "ids and ranges (2,44,100-110), random:20, errors, errors:20, truth, truth:20 or all"
"""Forms of the `--targets` argument, for messages."""


def needs_predictions(text: str) -> bool:
    """Whether `--targets` needs predictions, because it selects misclassified targets.

    >>> needs_predictions("errors:5"), needs_predictions("random:5")
    (True, False)
    """
    return text.strip().partition(":")[0] == "errors"


def parse_targets(
    text: str, count: int, wrong: Tensor | None = None, true: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Parse the `--targets` argument into ids.

    Args:
        text: Ids and ranges (`2,44,100-110`), `random:20`, `errors` (misclassified targets), `truth` (targets with
            true edges) or `all`. `errors:20` and `truth:20` draw 20 of them at random. A list of ids may be in
            brackets.
        count: Number of nodes, pairs or graphs.
        wrong: Ids of the misclassified targets.
        true: Ids of the targets with true edges; None if the data has no ground truth.
        seed: Seed of random draws.

    >>> parse_targets("2, 7-9", count=10).tolist(), parse_targets("[2,7]", count=10).tolist()
    ([2, 7, 8, 9], [2, 7])
    """
    text = text.strip()
    if text == "all":
        return torch.arange(count)
    if words := re.fullmatch(r"(random|errors|truth)(?::(\d+))?", text):
        kind, number = words.groups()
        if kind == "errors":
            expect(wrong is not None and wrong.numel() > 0, "targets", "other targets, as no prediction is wrong", text)
        if kind == "truth":
            expect(true is not None, "targets", "other targets, as this data has no ground truth", text)
        available = {"random": torch.arange(count), "errors": wrong, "truth": true}[kind]
        if available is not None and (number is not None or kind != "random"):
            return available if number is None else available[choose_targets(int(number), available.numel(), seed)]
    ids: list[int] = []
    for part in text.removeprefix("[").removesuffix("]").split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if ends is None:
            raise ArgumentError(f"Expected argument `targets` to be {FORMS}, but got {text!r}.")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        inside = first <= last < count
        expect(inside, "targets", f"ids in [0, {count}), ranges from low to high", part.strip())
        ids += range(first, last + 1)
    return torch.tensor(list(dict.fromkeys(ids)), dtype=torch.int64)


@dataclass(frozen=True)
class ExplainRequest:
    """The user's request: targets, methods and protocols.

    Attributes:
        targets: The nodes, pairs or graphs, as in `--targets`; see `parse_targets`.
        seed: Seed of random targets.
        methods: The attribution methods.
        protocols: The reduction protocols.
        by_neighbourhood: Never run the network on the whole graph.
    """

    targets: str
    seed: int
    methods: Mapping[str, AttributionMethod]
    protocols: Sequence[ReductionProtocol]
    by_neighbourhood: bool = False


class ExplainedTargets(ABC):
    """The explained targets of a run. Subclasses compute their rows.

    Args:
        source: The run's data.
        request: The user's request.

    Attributes:
        ids: Ids of the targets: nodes, columns of pairs, or positions of graphs in the dataset.
        labels: True class of each target.
        truth: True edges of the nodes that have some.
        methods: The attribution methods.
        protocols: The reduction protocols.
        graphs: The graphs that the network runs on.
    """

    ids: Tensor
    labels: Tensor
    graphs: Sequence[Data]

    def __init__(self, source: Source, request: ExplainRequest) -> None:
        self.source = source
        self.methods, self.protocols = request.methods, request.protocols
        self.truth: GroundTruth | None = None

    @property
    @abstractmethod
    def subject(self) -> Subject:
        """One subject with all targets."""

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Indices of the targets in the subject."""

    def sample(self) -> Subject:
        """Return a subject with all targets, or with enough of them to see what attention misses."""
        return self.subject

    @property
    def first_nodes(self) -> Tensor | None:
        """For graphs in a batch, the id of each graph's first node; None otherwise."""
        return None

    def only(self, part: Tensor) -> ExplainedTargets:
        """Return the targets at some positions.

        Args:
            part: Positions among all targets.
        """
        explained = copy(self)
        explained.ids, explained.labels = self.ids[part], self.labels[part]
        return explained

    def target_labels(self) -> TargetLabels:
        """Return true classes and names, for tables, figures and the page."""
        graph = self.graphs[0] if self.first_nodes is None else Batch.from_data_list(list(self.graphs))
        return self.source.labels(graph, self.subject, self.ids)

    @abstractmethod
    def sizes(self) -> Tensor:
        """Return an upper bound on each target's number of rows, [T]."""

    @abstractmethod
    def predictions(self) -> Tensor | None:
        """Return class probabilities of the targets, [T, classes]; None if the model predicts no probabilities."""

    @property
    def has_truth(self) -> Tensor | None:
        """Whether each target has ground truth, [T]; None if the data has none."""
        return None if self.truth is None else torch.isin(self.ids, self.truth.targets.to(self.ids))

    @abstractmethod
    def table(self, begin: int, end: int) -> pa.Table:
        """Return the rows of the targets `begin` to `end` (exclusive)."""

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return the first and last target of each part. A part has at most `rows` rows, or a single target."""
        return chunk_bounds(self.sizes(), rows)

    def evaluated_table(self, evaluation: Evaluation, begin: int, end: int) -> pa.Table:
        """Return the same rows as `table`, taken from an evaluation of all targets."""
        pairs, part = evaluation.pairs, torch.arange(begin, end)
        inside = (pairs.owner >= begin) & (pairs.owner < end)
        rows = ScoredRows.of(pairs, evaluation.pair_scores, evaluation.reductions).only(inside)
        rows = ScoredRows(pairs.of_targets(part), rows.columns)
        if not self.protocols:
            rows = rows.only(rows.pairs.flow)
        first = self.first_nodes
        return rows.table(self.ids[begin:end], None if first is None else first[begin:end])


def predicted_labels(subject: Subject) -> Tensor:
    """Return the predicted classes of all targets of a subject."""
    expect(
        subject.head.mode != "regression",
        "targets",
        "other targets than errors, as the model predicts numbers",
        "errors",
    )
    return subject.head.logits(subject.output).argmax(dim=-1).cpu()


def true_labels(y: Any, number: int) -> Tensor:
    """Return the true classes. They are all -1 if the data has no class labels."""
    if isinstance(y, Tensor) and y.is_floating_point() and bool((y == y.round()).all()):
        y = y.long()  # PyG labels pairs by 0.0 and 1.0
    if isinstance(y, Tensor) and not y.is_floating_point() and y.numel() >= number and y.numel() == y.shape[0]:
        return y.view(-1)[:number] if number == 1 else y.view(-1)
    return torch.full((number,), -1)
