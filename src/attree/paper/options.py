"""What a user asks of `attree paper`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attree.errors import expect
from attree.faithfulness.protocol import protocol_names
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
