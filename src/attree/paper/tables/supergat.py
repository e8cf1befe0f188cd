"""SuperGAT: what PyG has, and what the authors' code has."""

from __future__ import annotations

from attree.metrics.functional.faithfulness import STATISTICS
from attree.paper.cells import Cell
from attree.paper.cells.faithfulness import REPORTED
from attree.paper.item import Item, ItemInputs, Section, Table
from attree.paper.net import Net
from attree.paper.options import Options
from attree.paper.tables.faithfulness import SHOWN, faithfulness_cell, under_authors_protocol
from attree.paper.tables.rows import KEYS, agreement, beside_paper, faithfulness_rows, over_seeds

MODELS = ("SuperGAT-MX", "SuperGAT-SD", "SuperGAT-MX-authors")
NOTES = (
    "SuperGAT-MX-authors is what the authors' code computes under the name of MX: plain dot products weigh the "
    "messages, and `gatt (reported)` is GAtt of the MX weights that it reports without using them; "
    "its numbers stand beside those printed for MX.",
    "The paper gives no recipe for SuperGAT. Dropout 0.6 on features and attention and 80 % of the edges in the "
    "edge-prediction loss are the authors' code's; 200 epochs at a rate of 0.005 and the loss's weight 4 are ours.",
)


def _cells(options: Options) -> list[Cell]:
    return [
        faithfulness_cell(Net("Cora", model, layers, seed, epochs=options.epochs), options)
        for model in options.of_models(MODELS)
        for layers in (2, 3)
        for seed in range(options.seeds)
        if options.of_datasets(("Cora",))
    ]


def _sections(made: ItemInputs) -> list[Section]:
    rows = faithfulness_rows({cell: made.results[cell] for cell in _cells(made.options) if cell in made.results})
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[rows["statistic"].isin(STATISTICS) & rows["method"].isin((*SHOWN, REPORTED))]
    means = over_seeds(rows, KEYS)
    asked = means.assign(
        model=means["model"].replace("SuperGAT-MX-authors", "SuperGAT-MX"),
        method=means["method"].where(
            means["model"] != "SuperGAT-MX-authors", means["method"].replace(REPORTED, "gatt")
        ),
    )
    own = means["method"].eq("gatt") & means["model"].eq("SuperGAT-MX-authors")
    paper = beside_paper(asked, "faithfulness").assign(model=means["model"], method=means["method"])
    paper.loc[own.to_numpy(), ["paper", "meant", "difference"]] = float("nan")
    paper.loc[own.to_numpy(), "reason"] = ""
    title = "Cora, protocol `coefficient`"
    return [
        Table("supergat", title, paper, ("model", "statistic"), ("layers", "method"), 3, (agreement(paper), *NOTES))
    ]


ITEMS = (
    Item(
        "supergat",
        "SuperGAT-MX, SuperGAT-SD and the authors' SuperGAT-MX: all seven statistics",
        "appendix, table of SuperGAT",
        "Cora",
        (2, 7),
        _cells,
        _sections,
    ),
)
