"""A table or figure of the paper: what it is, what it needs and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attree.paper.cells import Cell, CellContext, Result
from attree.paper.options import Options
from attree.paper.sections import Section


@dataclass(frozen=True)
class ItemInputs:
    """What the sections of an item are made of.

    Attributes:
        options: What was asked for.
        results: What the cells came to; those that could not be measured are absent.
        context: Data and networks, for figures.
    """

    options: Options
    results: Mapping[Cell, Result]
    context: CellContext


@dataclass(frozen=True)
class Item:
    """One table or figure, or several that are made of the same numbers.

    Attributes:
        name: What users type.
        title: What it shows, in a line.
        place: Where it stands in the paper.
        data: The datasets that it wants.
        minutes: About how long the quick and the full version take on two cores.
        cells: What must be measured.
        sections: Its tables and pictures, of what was measured.
    """

    name: str
    title: str
    place: str
    data: str
    minutes: tuple[float, float]
    cells: Callable[[Options], Sequence[Cell]]
    sections: Callable[[ItemInputs], Sequence[Section]]
