"""Several heads: their mean, and one at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attree.paper.cells import Cell, HeadSelection
from attree.paper.item import Item, ItemInputs, Section, Table
from attree.paper.net import PLANETOID, Net
from attree.paper.options import Options
from attree.paper.printed_numbers import add_printed
from attree.paper.tables.faithfulness import SHOWN, faithfulness_cell, under_authors_protocol
from attree.paper.tables.rows import KEYS, agreement, beside_paper, faithfulness_rows, over_seeds

HEADS = (1, 2, 4, 8)


def _datasets(options: Options) -> tuple[str, ...]:
    quick = options.quick and options.datasets is None
    return ("Cora",) if quick else options.of_datasets(PLANETOID)


def _multihead_cells(options: Options) -> list[Cell]:
    return [
        faithfulness_cell(Net(dataset, "GAT", layers, seed, heads, epochs=options.epochs), options)
        for dataset in _datasets(options)
        for layers in (2, 3)
        for heads in HEADS
        for seed in range(options.seeds)
    ]


def _multihead(made: ItemInputs) -> list[Section]:
    wanted = [cell for cell in _multihead_cells(made.options) if cell in made.results]
    rows = faithfulness_rows({cell: made.results[cell] for cell in wanted})
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[(rows["statistic"] == "pc_pearson") & rows["method"].isin(SHOWN)]
    paper = beside_paper(over_seeds(rows, KEYS), "multihead")
    notes = (
        agreement(paper),
        "All layers but the last have that many heads of 64 channels each; the last has one, as in the authors' code. "
        "The caption in print says Spearman, but the numbers are Pearson's: those of one head are the main table's.",
    )
    return [
        Table(
            "multihead",
            "Pearson with dPC, protocol `weight`",
            paper,
            ("dataset", "layers", "method"),
            ("heads",),
            3,
            notes,
        )
    ]


def _selection_cells(options: Options) -> list[Cell]:
    return [
        HeadSelection(Net(dataset, "GAT", 3, seed, 4, epochs=options.epochs), options.targets)
        for dataset in _datasets(options)
        for seed in range(options.seeds)
    ]


def _selection(made: ItemInputs) -> list[Section]:
    rows = []
    for cell in _selection_cells(made.options):
        if cell in made.results and isinstance(cell, HeadSelection):
            found = np.array(list(made.results[cell]["pearson"].values()))
            rows.append(
                {
                    "dataset": cell.net.dataset,
                    "seed": cell.net.seed,
                    "statistic": "std_pc_pearson",
                    "ours": float(found.std()),
                    "mean": float(found.mean()),
                    "choices": found.size,
                }
            )
    if not rows:
        return []
    means = over_seeds(pd.DataFrame(rows), ("dataset", "statistic", "choices"))
    paper = add_printed(means, "head_selection")
    note = (
        "The standard deviation is over all choices of one head in each of the first two layers, the last having one."
    )
    title = "Standard deviation of Pearson with dPC over choices of one head a layer (3 layers, 4 heads)"
    return [Table("head_selection", title, paper, ("dataset", "choices"), ("statistic",), 4, (note,))]


ITEMS = (
    Item(
        "multihead",
        "GATs of 1, 2, 4 and 8 heads: Pearson with dPC",
        "appendix, table of multi-head attention",
        "Cora (quick); Cora, CiteSeer, PubMed (full)",
        (1, 45),
        _multihead_cells,
        _multihead,
    ),
    Item(
        "head_selection",
        "One head a layer instead of their mean: standard deviation over all choices",
        "appendix, table of single heads",
        "Cora (quick); Cora, CiteSeer, PubMed (full)",
        (0.5, 8),
        _selection_cells,
        _selection,
    ),
)
