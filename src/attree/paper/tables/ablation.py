"""The ablation: GAtt without contribution adjustment and without the proximity effect."""

from __future__ import annotations

from attree.paper.cells import Cell
from attree.paper.item import Item, ItemInputs, Section, Table
from attree.paper.net import PLANETOID, Net
from attree.paper.options import Options
from attree.paper.tables.faithfulness import faithfulness_cell, under_authors_protocol
from attree.paper.tables.rows import KEYS, agreement, beside_paper, faithfulness_rows, over_seeds

METHODS = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform")


def cells(options: Options) -> list[Cell]:
    """GATs on the citation graphs: the same networks as those of the faithfulness tables."""
    return [
        faithfulness_cell(Net(dataset, "GAT", layers, seed, epochs=options.epochs), options)
        for dataset in options.of_datasets(PLANETOID)
        for layers in (2, 3)
        for seed in range(options.seeds)
    ]


def _sections(made: ItemInputs, name: str, statistic: str, title: str) -> list[Section]:
    rows = faithfulness_rows({cell: made.results[cell] for cell in cells(made.options) if cell in made.results})
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[(rows["statistic"] == statistic) & rows["method"].isin(METHODS)]
    paper = beside_paper(over_seeds(rows, KEYS), "ablation")
    return [Table(name, title, paper, ("dataset", "layers"), ("method",), notes=(agreement(paper),))]


def _pearson(made: ItemInputs) -> list[Section]:
    return _sections(made, "ablation", "pc_pearson", "Pearson with dPC, protocol `weight`")


def _mean(made: ItemInputs) -> list[Section]:
    return _sections(made, "ablation_full", "faithfulness", "Mean of the seven statistics, protocol `weight`")


ITEMS = (
    Item(
        "ablation",
        "GAtt, GAtt-sim, GAtt-avg and AvgAtt of GATs: Pearson with dPC",
        "table of the ablation study",
        "Cora, CiteSeer, PubMed",
        (3, 5),
        cells,
        _pearson,
    ),
    Item(
        "ablation_full",
        "GAtt, GAtt-sim, GAtt-avg and AvgAtt of GATs: mean of all seven statistics",
        "appendix, full table of the ablation study",
        "Cora, CiteSeer, PubMed",
        (3, 5),
        cells,
        _mean,
    ),
)
