"""The one interface of every attribution method: `attribute` and `score_pairs`, of a subject."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.errors import expect
from attree.subject import Subject
from attree.subject.roots import Targets


class AttributionMethod(ABC):
    """Scores edges of a subject for its targets.

    A subclass implements `attribute`; a method that can score pairs without listing all edges overrides `score_pairs`
    too. The attributes below tell the rest of the package what a method needs.

    Attributes:
        name: The name that users type and results have.
        label: Its name in tables and figures.
        is_random: Whether its scores depend on the seed alone; its statistics are averaged over several draws.
        needs_training: Whether it trains a model of its own first, once per subject.
        reads_effects: Whether it reads the effects of reducing edges; an evaluation passes its measured effects on.
    """

    name: str
    label: str
    is_random: ClassVar[bool] = False
    needs_training: ClassVar[bool] = False
    reads_effects: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """A method without a label of its own is called by its name."""
        super().__init_subclass__()
        if "name" in vars(cls) and "label" not in vars(cls):
            cls.label = cls.name

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        """Make the method with its defaults, where it is asked for by name.

        Args:
            heads: The head to read in each layer, for methods that read attention; None averages all.
            seed: Seed, for methods that draw.
        """
        return cls()

    @abstractmethod
    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        """Score the edges around each target.

        Args:
            subject: What is explained; attention alone serves the methods that read nothing else.
            targets: Nodes, or graphs of a graph-level subject: one id, several, a mask of nodes, or 'all'.
        """

    def stream(self, subject: Subject | Attention, targets: Targets = "all") -> Iterator[Attribution]:
        """As `attribute`, but yields the result in parts of consecutive targets; by default in one."""
        yield self.attribute(subject, targets)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Score the pairs that explanations are judged on, [P]; edges that `attribute` does not list score 0."""
        subject = as_subject(subject)
        pairs.check(subject.graph)
        return pairs.scores(self.attribute(subject, pairs.targets))

    def draws(self, count: int) -> Sequence[AttributionMethod]:
        """The method as often as its statistics are averaged over: itself, or several draws of a random one."""
        return [self]

    def settings(self) -> dict[str, Any]:
        """What the method was made with, as plain values, for results to name it by."""
        hidden = ("name", "label")  # results have them anyway
        return {name: value for name, value in vars(self).items() if not name.startswith("_") and name not in hidden}


def as_subject(subject: Subject | Attention) -> Subject:
    """A subject, also where only attention was given."""
    if isinstance(subject, Subject):
        return subject
    expect(isinstance(subject, Attention), "subject", "a Subject, or the Attention of a model", subject)
    return Subject.of_attention(subject)
