"""What a report consists of: tables, pictures and sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

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
