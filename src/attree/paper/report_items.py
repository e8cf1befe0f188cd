"""The types of `attree paper`: options, items (tables and figures to make), and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from attree.errors import expect, expect_name_among
from attree.faithfulness.protocol import protocol_names
from attree.paper.cells import Cell, CellContext, Result
from attree.paper.command import CONTENTS, Entry
from attree.paper.networks import DATASETS, MODELS, Net


@dataclass(frozen=True)
class Options:
    """The options of `attree paper`.

    Attributes:
        datasets: Names of datasets; None for all of the table.
        models: Names of networks; None for all of the table.
        seeds: Number of networks of each kind; numbers are averaged over them.
        protocols: Reduction protocols of the faithfulness tables; the paper's columns need `authors`.
        quick: Make the smaller version of tables that have one.
        epochs: Epochs of training, for trials; None for the recipe's.
        targets: Number of nodes whose predictions are explained in the faithfulness tables.
        root: Data folder.
        out: Folder of tables and figures. Its subfolder `cells` keeps finished cells.
        jobs: Number of cells that are measured in parallel.
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
        """Raise unless the options of `attree paper` have known names and numbers in range."""
        for argument, names, accepted in (
            ("datasets", self.datasets or (), DATASETS),
            ("models", self.models or (), MODELS),
            ("protocols", self.protocols, tuple(protocol_names())),
        ):
            for name in names:
                expect_name_among(name, argument, accepted)
        for argument, number in (("seeds", self.seeds), ("jobs", self.jobs), ("targets", self.targets)):
            expect(number >= 1, argument, "an integer >= 1", number)
        expect(self.epochs is None or self.epochs >= 1, "epochs", "an integer >= 1", self.epochs)
        expect(not Path(self.root).is_file(), "root", "a folder", self.root)
        expect(len(self.protocols) > 0, "protocols", "at least one", "none")

    def of_datasets(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the datasets of a table that the options select."""
        return names if self.datasets is None else tuple(name for name in names if name in self.datasets)

    def of_models(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the networks of a table that the options select."""
        return names if self.models is None else tuple(name for name in names if name in self.models)


def nets_of_seeds(
    options: Options,
    datasets: Iterable[str],
    models: Iterable[str] = ("GAT",),
    layers: Iterable[int] = (2, 3),
    heads: Iterable[int] = (1,),
) -> list[Net]:
    """Return trained networks of every dataset, model, depth and number of heads, one for each seed of the options."""
    return [
        Net(dataset, model, depth, seed, number, epochs=options.epochs)
        for dataset, model, depth, number in product(datasets, models, layers, heads)
        for seed in range(options.seeds)
    ]


def resolve_name(typed: str, names: tuple[str, ...]) -> str:
    """Return the known name that the user means, without regard to case, hyphens and underscores.

    An unknown name is returned unchanged.

    >>> resolve_name("citeseer", ("Cora", "CiteSeer")), resolve_name("ba_shapes", ("BA-Shapes",))
    ('CiteSeer', 'BA-Shapes')
    """

    def letters(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    return next((name for name in names if letters(name) == letters(typed)), typed)


FEW_CHANGED = 30
"""With fewer changed predictions per network than this, an AUROC depends mostly on chance."""

CLOSE, NEAR, FAR = 0.02, 0.05, 0.1
"""Bounds on the difference from the paper. They set the colours of cells; beyond FAR, a reason is given."""


@dataclass(frozen=True)
class Table:
    """A table: one number per row, and how the rows are laid out.

    Attributes:
        name: Name of its files.
        title: Its heading.
        rows: One number per row in the column `ours`; also `paper` and `difference` where the paper has a number.
        index: Columns of `rows` whose values become row headings.
        columns: Columns of `rows` whose values become column headings.
        digits: Digits after the decimal point.
        notes: Sentences below the table.
        csv_only: Write the rows to CSV only, because they are too many to lay out.
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
        notes: Sentences below the figure.
    """

    name: str
    title: str
    figure: Figure
    notes: tuple[str, ...] = ()


Section = Table | Picture


@dataclass
class Report:
    """The finished report of an item.

    Attributes:
        name: Name of the item.
        title: Its heading.
        sections: Tables and pictures.
        notes: Sentences on the whole report, such as what was left out and why.
    """

    name: str
    title: str
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ItemInputs:
    """The inputs of an item's sections.

    Attributes:
        options: The options of the command.
        results: Results by cell, without cells that failed.
        context: Data and networks, for figures.
    """

    options: Options
    results: Mapping[Cell, Result]
    context: CellContext

    def of(self, cells: Sequence[Cell]) -> dict[Cell, Result]:
        """Return the results of some cells, without those that failed."""
        return {cell: self.results[cell] for cell in cells if cell in self.results}


@dataclass(frozen=True)
class Item:
    """A table or figure to make: the cells that it needs, and its sections.

    Attributes:
        name: Its name in `CONTENTS`, which users type.
        cells: Returns the cells to measure.
        sections: Makes the tables and pictures from the results.
    """

    name: str
    cells: Callable[[Options], Sequence[Cell]]
    sections: Callable[[ItemInputs], Sequence[Section]]

    @property
    def entry(self) -> Entry:
        """Its title, place in the paper, data and duration."""
        return CONTENTS[self.name]
