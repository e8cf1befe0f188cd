"""Graph classification: does reducing an edge change a graph's class?"""

from __future__ import annotations

from attree.paper.cells import Cell
from attree.paper.item import Item, ItemInputs, Section, Table
from attree.paper.net import GRAPHS, Net
from attree.paper.options import Options
from attree.paper.tables.faithfulness import SHOWN, faithfulness_cell, under_authors_protocol
from attree.paper.tables.rows import KEYS, agreement, beside_paper, faithfulness_rows, over_seeds


def _cells(options: Options) -> list[Cell]:
    return [
        faithfulness_cell(Net(dataset, "GAT", 3, seed, epochs=options.epochs), options)
        for dataset in options.of_datasets(GRAPHS)
        for seed in range(options.seeds)
    ]


def _sections(made: ItemInputs) -> list[Section]:
    rows = faithfulness_rows({cell: made.results[cell] for cell in _cells(made.options) if cell in made.results})
    if len(rows) == 0:
        return []
    rows = rows[(rows["statistic"] == "p_auroc") & rows["method"].isin(SHOWN)]
    paper = beside_paper(over_seeds(under_authors_protocol(rows), KEYS), "graph_level")
    notes = (
        agreement(paper),
        "The paper gives neither split nor recipe: all test graphs of a stratified fifth are explained, sum readout "
        "without bias; epochs, width and rate are ours.",
    )
    return [
        Table(
            "graph_level", "AUROC of changed predictions, protocol `weight`", paper, ("dataset",), ("method",), 3, notes
        ),
        Table(
            "graph_level_protocols",
            "The same under every protocol",
            over_seeds(rows, KEYS),
            ("dataset", "protocol"),
            ("method",),
        ),
    ]


ITEMS = (
    Item(
        "graph_level",
        "GATs of three layers with sum readout: AUROC of changed predictions",
        "appendix, table of graph-level tasks",
        "MUTAG, HIN",
        (0.5, 1),
        _cells,
        _sections,
    ),
)
