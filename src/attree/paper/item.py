"""A table or figure of the paper: what it needs, how it is made, and what its report consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from attree.paper.cells import Cell, CellContext, Result
from attree.paper.options import Options

CLOSE, NEAR, FAR = 0.02, 0.05, 0.1
"""Differences from the paper that are told apart by colour; beyond the last one a reason is asked for."""


@dataclass(frozen=True)
class Table:
    """Numbers, one a row, and how they are laid out.

    Attributes:
        name: Name of its files.
        title: Its heading.
        rows: One number a row in the column `ours`; `paper`, `difference` and more where there is something to compare
            with.
        index: Columns whose values head the rows of the laid-out table.
        columns: Columns whose values head its columns.
        digits: Digits after the point.
        notes: Sentences below it.
        csv_only: Too long to be laid out: written as CSV alone.
    """

    name: str
    title: str
    rows: pd.DataFrame
    index: tuple[str, ...]
    columns: tuple[str, ...]
    digits: int = 3
    notes: tuple[str, ...] = ()
    csv_only: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        name: Name of its file.
        title: Its heading.
        figure: The figure.
        notes: Sentences below it.
    """

    name: str
    title: str
    figure: Figure
    notes: tuple[str, ...] = ()


Section = Table | Picture


@dataclass
class Report:
    """One item of the paper, made.

    Attributes:
        name: Name of the item.
        title: Its heading.
        sections: Tables and pictures.
        notes: What a reader must know of all of them: what was left out and why.
    """

    name: str
    title: str
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
