"""The proximity table: closer edges occur more often in the computation tree."""

from __future__ import annotations

import pandas as pd

from attree.paper.cells import Cell, Proximity
from attree.paper.item import Item, ItemInputs, Section, Table
from attree.paper.net import DATASETS
from attree.paper.options import Options
from attree.paper.printed_numbers import add_printed

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
LARGE = 2000
"""Targets of Arxiv, which has too many for all."""


def _cells(options: Options) -> list[Cell]:
    few = 1000 if options.quick else None
    return [
        Proximity(dataset, layers, few or (LARGE if dataset == "Arxiv" else None))
        for dataset in options.of_datasets(tuple(name for name in ORDER if name in DATASETS))
        for layers in (2, 3)
    ]


def _sections(made: ItemInputs) -> list[Section]:
    rows = []
    for cell in _cells(made.options):
        if isinstance(cell, Proximity) and cell in made.results:
            result = made.results[cell]
            for undefined, name in (("left out", "rho"), ("as 0", "rho_with_zeros")):
                rows.append(
                    {
                        "dataset": cell.name,
                        "layers": cell.layers,
                        "undefined": undefined,
                        "statistic": "spearman",
                        "ours": result[name],
                        "targets": result["targets"],
                        "defined": result["defined"],
                    }
                )
    if not rows:
        return []
    note = (
        "The paper does not say how high the trees are, what the distance of an edge is, which edges count, nor what "
        "becomes of targets where rho is undefined. Here: the mean of both ends' hops to the target, over all edges "
        "of the subgraph, self-loops included; targets without rho left out, or counted as 0."
    )
    paper = add_printed(pd.DataFrame(rows), "proximity")
    title = "Spearman's rho between an edge's distance and its occurrences, mean over targets"
    return [Table("proximity", title, paper, ("dataset",), ("layers", "undefined"), 3, (note,))]


ITEMS = (
    Item(
        "proximity",
        "Distance of an edge from the target against its occurrences in the computation tree",
        "appendix, table of the proximity effect",
        "all datasets",
        (0.5, 3),
        _cells,
        _sections,
    ),
)
