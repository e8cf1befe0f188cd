"""A table or figure of the paper: what the user asked for, what must be measured, and what its report consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from attree.errors import expect
from attree.faithfulness.protocol import protocol_names
from attree.paper.cells import Cell, CellContext, Result
from attree.paper.net import DATASETS, MODELS


@dataclass(frozen=True)
class Options:
    """How much of a table or figure is made, and where it goes.

    Attributes:
        datasets: Names of datasets; None for all of the table.
        models: Names of networks; None for all of the table.
        seeds: Networks of each kind, which numbers are averaged over.
        protocols: Reduction protocols of the faithfulness tables, `authors` among them for the paper's columns.
        quick: Do the smaller version where a table has one.
        epochs: Train for as many epochs instead of the recipe's; for trying things out.
        targets: Nodes whose predictions are explained in the faithfulness tables.
        root: Data folder.
        out: Folder of tables and figures; finished cells are kept in `cells` in it.
        jobs: Cells that are measured at a time.
    """

    datasets: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    seeds: int = 3
    protocols: tuple[str, ...] = ("authors", "coefficient", "weight", "removal")
    quick: bool = False
    epochs: int | None = None
    targets: int = 100
    root: str = "data"
    out: Path = Path("logs/paper")
    jobs: int = 1

    def __post_init__(self) -> None:
        for argument, given, known in (
            ("datasets", self.datasets or (), DATASETS),
            ("models", self.models or (), MODELS),
            ("protocols", self.protocols, tuple(protocol_names())),
        ):
            for name in given:
                expect(name in known, argument, f"names among {', '.join(known)}", name)
        for argument, number in (("seeds", self.seeds), ("jobs", self.jobs), ("targets", self.targets)):
            expect(number >= 1, argument, "an integer >= 1", number)
        expect(self.epochs is None or self.epochs >= 0, "epochs", "an integer >= 0", self.epochs)
        expect(not Path(self.root).is_file(), "root", "a folder", self.root)
        expect(len(self.protocols) > 0, "protocols", "at least one", "none")

    def of_datasets(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a table's datasets that are asked for."""
        return names if self.datasets is None else tuple(name for name in names if name in self.datasets)

    def of_models(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a table's networks that are asked for."""
        return names if self.models is None else tuple(name for name in names if name in self.models)


def resolve_name(given: str, known: tuple[str, ...]) -> str:
    """A name as it is spelled, however it was typed: case, hyphens and underscores do not matter.

    >>> resolve_name("citeseer", ("Cora", "CiteSeer")), resolve_name("ba_shapes", ("BA-Shapes",))
    ('CiteSeer', 'BA-Shapes')
    """

    def plain(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    return next((name for name in known if plain(name) == plain(given)), given)


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
