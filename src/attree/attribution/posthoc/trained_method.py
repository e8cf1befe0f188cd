"""Base class of the methods that are trained once per model and then score any target."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.neighbourhoods import subject_pairs
from attree.attribution.pairs import Pairs
from attree.attribution.posthoc.frozen_model import frozen_subject
from attree.attribution.result import Attribution
from attree.errors import UnsupportedModelError, expect_seed
from attree.subject import Subject
from attree.subject.roots import Targets

Fit = TypeVar("Fit")


class TrainedMethod(AttributionMethod, Generic[Fit]):
    """Base class of methods that score pairs with an object that was first fitted to the model.

    A method is fitted once per subject with its current weights, for any targets. Fitting is seeded, so that all
    processes of a run get the same result.

    Args:
        seed: Seed of fitting.
    """

    needs_training: ClassVar[bool] = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = expect_seed(seed)
        self._fitted: tuple[weakref.ref[Attention], Fit] | None = None

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(seed=seed)

    @abstractmethod
    def fit(self, subject: Subject) -> Fit:
        """Fit to a subject, whose model is frozen meanwhile."""

    @abstractmethod
    def score(self, subject: Subject, fitted: Fit, pairs: Pairs) -> Tensor:
        """Return the scores of the pairs, [P]."""

    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        """Score, for every target, the edges around it on which explanations are evaluated.

        Args:
            subject: The subject to explain, with its model.
            targets: Nodes or graphs.
        """
        subject = as_subject(subject)
        fitted = self.fitted(subject)
        pairs = subject_pairs(subject, targets)
        scores = self.score(subject, fitted, pairs)
        return Attribution(self.name, subject.graph, pairs.targets, pairs.ptr, pairs.edges, scores)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        subject = as_subject(subject)
        pairs.check(subject.graph)
        return self.score(subject, self.fitted(subject), pairs)

    def fitted(self, subject: Subject) -> Fit:
        """Return the fitted object of the subject; fit again if its attention, and so its weights, changed."""
        if (types := subject.graph.types) is not None:
            raise UnsupportedModelError(
                f"Expected a graph with one type of nodes and edges for {self.label}, but "
                f"{subject.call.name} runs on the node types {', '.join(types.node_types)}: methods that are trained "
                "first do not support heterogeneous graphs; all others do."
            )
        if subject.level == "edge":
            raise UnsupportedModelError(
                f"Expected outputs of nodes or graphs for {self.label}, but {subject.call.name} returns one row per "
                "pair of nodes: methods that are trained first do not support these; all others do."
            )
        attention = subject.attention
        if self._fitted is None or self._fitted[0]() is not attention:
            with frozen_subject(subject, self.seed) as frozen:
                self._fitted = weakref.ref(attention), self.fit(frozen)
        return self._fitted[1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the fitted object; copies of a method are fitted again."""
        return {**vars(self), "_fitted": None}
