"""The targets of a call of `attree explain`: what they are called, and how their rows are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.attribution import AttributionMethod
from attree.data import GroundTruth
from attree.errors import expect
from attree.evaluation import Evaluation
from attree.explain_run.rows import ScoredRows
from attree.faithfulness import ReductionProtocol
from attree.subject import Subject
from attree.tensors.limits import chunk_bounds


class ExplainedTargets(ABC):
    """The targets of a run that are explained. Subclasses compute their rows.

    Attributes:
        ids: Ids of the targets: nodes, columns of pairs, or positions of graphs in the dataset.
        labels: True class of each target.
        truth: True edges of the nodes that have some.
        methods: The attribution methods.
        protocols: The reduction protocols.
        graphs: The graphs that the network runs on.
        class_names: Names of the classes, if known.
        node_types: Meanings of the columns of one-hot node features, if known.
        name: Name of the dataset, if known.
    """

    truth: GroundTruth | None = None
    ids: Tensor
    labels: Tensor
    graphs: Sequence[Data]
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None
    name: str | None = None

    def __init__(self, methods: Mapping[str, AttributionMethod], protocols: Sequence[ReductionProtocol]) -> None:
        self.methods = methods
        self.protocols = protocols

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
        """Return some of the targets.

        Args:
            part: Their positions among all targets.
        """
        some = copy(self)
        some.ids, some.labels = self.ids[part], self.labels[part]
        return some

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
        """Return the first and last target of each part; a part has at most `rows` rows, or one target."""
        return chunk_bounds(self.sizes(), rows)

    def evaluated_table(self, evaluation: Evaluation, begin: int, end: int) -> pa.Table:
        """Return the same rows as `table`, from an evaluation of all targets."""
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
    expect(subject.head.mode != "regression", "targets", "others than errors, as the model predicts numbers", "errors")
    return subject.head.logits(subject.output).argmax(dim=-1)


def true_labels(y: Any, number: int) -> Tensor:
    """Return true classes; -1 for all if the data has no class labels."""
    if isinstance(y, Tensor) and y.is_floating_point() and bool((y == y.round()).all()):
        y = y.long()  # PyG labels pairs by 0.0 and 1.0
    if isinstance(y, Tensor) and not y.is_floating_point() and y.numel() >= number and y.numel() == y.shape[0]:
        return y.view(-1)[:number] if number == 1 else y.view(-1)
    return torch.full((number,), -1)
