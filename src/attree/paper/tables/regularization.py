"""The regularisation figure: does weight decay or dropout change faithfulness?"""

from __future__ import annotations

import pandas as pd

from attree.paper.cells import Cell
from attree.paper.item import Item, ItemInputs, Picture, Section, Table
from attree.paper.net import Net
from attree.paper.options import Options
from attree.paper.tables.faithfulness import SHOWN, faithfulness_cell, under_authors_protocol
from attree.paper.tables.rows import faithfulness_rows, over_seeds
from attree.report.sweep_figure import SETTING, sweep_figure

WEIGHT_DECAYS = (0.0, 0.0005, 0.001, 0.005, 0.01)
DROPOUTS = (0.0, 0.2, 0.4, 0.6, 0.8)


def _cells(options: Options) -> list[Cell]:
    shapes = [(decay, 0.0) for decay in WEIGHT_DECAYS] + [(0.0, rate) for rate in DROPOUTS[1:]]
    return [
        faithfulness_cell(
            Net("Cora", "GAT", 2, seed, weight_decay=decay, attention_dropout=rate, epochs=options.epochs), options
        )
        for decay, rate in (shapes if options.of_datasets(("Cora",)) else [])
        for seed in range(options.seeds)
    ]


def _sections(made: ItemInputs) -> list[Section]:
    rows = faithfulness_rows({cell: made.results[cell] for cell in _cells(made.options) if cell in made.results})
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[(rows["statistic"] == "faithfulness") & rows["method"].isin(SHOWN)]
    kinds = {
        "weight decay": rows[rows["attention_dropout"] == 0.0].rename(columns={"weight_decay": SETTING}),
        "attention dropout of the first layer": rows[rows["weight_decay"] == 0.0].rename(
            columns={"attention_dropout": SETTING}
        ),
    }
    tables, wide = [], {}
    for name, part in kinds.items():
        tables.append(over_seeds(part, (SETTING, "method")).assign(regularisation=name))
        wide[name] = _runs(part)
    metrics = [f"explain/{name}/weight/faithfulness" for name in SHOWN if name in set(rows["method"])]
    figure = sweep_figure(wide, ["test/acc", *metrics], "Cora, GAT of 2 layers: regularisation")
    title = "Mean of the seven statistics, protocol `weight`, Cora, GAT of 2 layers"
    return [
        Picture("regularization", "Effect of regularisation on accuracy and faithfulness", figure),
        Table("regularization", title, pd.concat(tables), ("regularisation", SETTING), ("method",)),
    ]


def _runs(part: pd.DataFrame) -> pd.DataFrame:
    """One row a network: its setting, its accuracy and every method's faithfulness."""
    wide = part.pivot_table(index=[SETTING, "seed"], columns="method", values="ours", sort=False).reset_index()
    accuracy = part.groupby([SETTING, "seed"], sort=False)["accuracy"].first().reset_index()
    wide = wide.merge(accuracy, on=[SETTING, "seed"]).sort_values(SETTING, kind="stable")
    names = {name: f"explain/{name}/weight/faithfulness" for name in SHOWN}
    return wide.rename(columns={**names, "accuracy": "test/acc"})


ITEMS = (
    Item(
        "regularization",
        "Weight decay and attention dropout against faithfulness and accuracy",
        "appendix, figure on regularisation",
        "Cora",
        (1, 3),
        _cells,
        _sections,
    ),
)
