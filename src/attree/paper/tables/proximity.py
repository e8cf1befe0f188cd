"""The proximity table: closer edges occur more often in the computation tree."""

from __future__ import annotations

import pandas as pd

from attree.paper.cells import Cell, Proximity
from attree.paper.item import Item, Made
from attree.paper.net import DATASETS
from attree.paper.options import Options
from attree.paper.printed_numbers import add_printed
from attree.paper.sections import Section, Table

ORDER = (
    "BA-Shapes",
    "Infection",
    "Cora",
    "CiteSeer",
    "PubMed",
    "Arxiv",
    "MUTAG",
    "HIN",
    "Cornell",
    "Texas",
    "Wisconsin",
)


def _cells(options: Options) -> list[Cell]:
    few = 1000 if options.quick else None
    return [
        Proximity(dataset, layers, 100 if dataset == "Arxiv" else few)
        for dataset in options.of_datasets(tuple(name for name in ORDER if name in DATASETS))
        for layers in (2, 3)
    ]


def _sections(made: Made) -> list[Section]:
    rows = [
        {
            "dataset": cell.name,
            "layers": cell.layers,
            "statistic": "spearman",
            "ours": made.results[cell]["rho"],
            "targets": made.results[cell]["targets"],
            "defined": made.results[cell]["defined"],
        }
        for cell in _cells(made.options)
        if isinstance(cell, Proximity) and cell in made.results
    ]
    if not rows:
        return []
    note = (
        "The paper does not say how deep the trees are, what the distance of an edge is, or whether self-loops count. "
        "Here it is the hops from the node that the edge enters to the target, self-loops included."
    )
    paper = add_printed(pd.DataFrame(rows), "proximity")
    title = "Spearman's rho between an edge's distance and its occurrences, mean over targets"
    return [Table("proximity", title, paper, ("dataset",), ("layers",), 3, (note,))]


ITEMS = (
    Item(
        "proximity",
        "Distance of an edge from the target against its occurrences in the computation tree",
        "appendix, table of the proximity effect",
        "all datasets",
        (1, 5),
        _cells,
        _sections,
    ),
)
