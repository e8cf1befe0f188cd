"""Base class of attribution methods, and the table of methods by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Self

from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.defaults import ALL_METHODS
from attree.errors import (
    UnsupportedModelError,
    expect,
    expect_ints,
    expect_list,
    expect_name,
    expect_name_among,
    expect_seed,
)
from attree.subject import Subject
from attree.subject.target_roots import Targets


class AttributionMethod(ABC):
    """Base class of methods that score edges of a subject for its targets.

    A subclass implements `attribute`. If it can score pairs without listing all edges, it also overrides `score_pairs`.
    The attributes below declare what a method needs.

    Attributes:
        name: Name that users type and results show.
        label: Name in tables and figures.
        is_random: Whether the scores depend only on the seed; statistics are averaged over several draws.
        needs_training: Whether the method first trains a model of its own, once per subject.
        reads_effects: Whether the method reads effects of reducing edges; an evaluation passes on its measured effects.
        truth_at_end: Whether a fit compares the method with ground truth only at the end, because it runs the model
            again for every target, and there may be many targets with true edges.
    """

    name: str
    label: str
    is_random: ClassVar[bool] = False
    needs_training: ClassVar[bool] = False
    reads_effects: ClassVar[bool] = False
    truth_at_end: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Use the name as label if a method has no label."""
        super().__init_subclass__()
        if "name" in vars(cls) and "label" not in vars(cls):
            cls.label = cls.name

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        """Create the method with its defaults; used for methods given by name.

        Args:
            heads: The head to read in each layer, for methods that read attention; None averages all heads.
            seed: Seed, for methods that draw random numbers.
        """
        return cls()

    @abstractmethod
    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        """Score the edges around each target.

        Args:
            subject: The subject to explain; some methods need only its attention.
            targets: Nodes, links, or graphs: one id, several, a mask of nodes, or 'all'.
        """

    def stream(self, subject: Subject | Attention, targets: Targets = "all") -> Iterator[Attribution]:
        """Do the same as `attribute`, but yield the result in parts of consecutive targets; default: one part."""
        yield self.attribute(subject, targets)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Score the pairs on which explanations are evaluated, [P]; edges that `attribute` does not list score 0."""
        subject = as_subject(subject)
        pairs.check(subject.graph)
        return pairs.scores(self.attribute(subject, pairs.targets))

    def draws(self, count: int) -> Sequence[AttributionMethod]:
        """Return the methods whose statistics are averaged: itself, or several draws of a random method."""
        return [self]

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the method as plain values, which results store."""
        hidden = ("name", "label")  # results store these separately
        return {name: value for name, value in vars(self).items() if not name.startswith("_") and name not in hidden}


def as_subject(subject: Subject | Attention) -> Subject:
    """Return the subject; wrap attention in one."""
    if isinstance(subject, Subject):
        return subject
    expect(isinstance(subject, Attention), "subject", "a Subject, or the Attention of a model", subject)
    return Subject.of_attention(subject)


def check_runs_on_data(subject: Subject, method: AttributionMethod) -> None:
    """Raise unless all layers of a subject run on the edges of the data, for methods that mask or gate messages."""
    untraced = subject.layers.untraced
    if untraced is not None and not subject.layers.runs_on_data:
        raise UnsupportedModelError(
            f"Expected layers that run on the nodes and edges of the data for {method.label}, which masks the messages "
            f"of an edge in every layer. {untraced.reason} (Method `occlusion` works for any model.)"
        )


class MethodTable(Mapping[str, type[AttributionMethod]]):
    """Table of methods by name; the class of a method is imported when it is first needed.

    Args:
        methods: Import paths of the classes, by name.
    """

    def __init__(self, methods: Mapping[str, str]) -> None:
        self._methods: dict[str, type[AttributionMethod] | str] = dict(methods)

    def __getitem__(self, name: str) -> type[AttributionMethod]:
        method = self._methods[name]
        if isinstance(method, str):
            module, _, attribute = method.rpartition(".")
            method = self._methods[name] = getattr(import_module(module), attribute)
        return method

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def __contains__(self, name: object) -> bool:
        return name in self._methods


METHODS = MethodTable({name: path for name, (_, path) in ALL_METHODS.items()})
"""Methods by name, in the order of tables. An instance of a method can be used in place of a name."""

Methods = str | AttributionMethod | Iterable[str | AttributionMethod]
"""Accepted values of `methods`: a name, a method, or several of these."""


def make_methods(methods: Methods, heads: Sequence[int] | None = None, seed: int = 0) -> dict[str, AttributionMethod]:
    """Create methods from names; instances are returned unchanged.

    Args:
        methods: Names among `METHODS`, or methods; one or several.
        heads: The head to read in each layer; None averages all heads.
        seed: Seed of methods that draw random numbers.
    """
    expect_seed(seed)
    if heads is not None:
        heads = expect_ints(heads, "heads", "head numbers, one per layer, or None")
    accepted = f"names among {', '.join(METHODS)}, or methods"
    by_name: dict[str, AttributionMethod] = {}
    for entry in expect_list(methods, "methods", (str, AttributionMethod), accepted):
        if isinstance(entry, str):
            expect_name_among(entry, "methods", METHODS, "methods")
        method = METHODS[entry].make(heads, seed) if isinstance(entry, str) else entry
        name = expect_name(getattr(method, "name", None), "methods[...].name")
        expect(name not in by_name, "methods", "methods of different names", name)
        by_name[name] = method
    expect(len(by_name) > 0, "methods", "at least one method", "none")
    return by_name


def method_label(name: str) -> str:
    """Return the name of a method in tables and figures: its label, or its name if it is not among `METHODS`."""
    return METHODS[name].label if name in METHODS else name
