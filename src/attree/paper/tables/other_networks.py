"""The tables of faithfulness of other networks: several heads, SuperGAT, and regularised GATs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attree.metrics.functional.faithfulness import STATISTICS
from attree.paper.cells import Cell, HeadSelection
from attree.paper.cells.faithfulness import REPORTED
from attree.paper.networks import PLANETOID, Net
from attree.paper.printed_numbers import add_printed
from attree.paper.report_items import Item, ItemInputs, Options, Picture, Section, Table, nets_of_seeds
from attree.paper.tables.faithfulness import SHOWN, faithfulness_cell, under_authors_protocol
from attree.paper.tables.rows import KEYS, agreement, beside_paper, faithfulness_rows, over_seeds
from attree.report.sweep_figures import SETTING, sweep_figure

HEADS = (1, 2, 4, 8)


def _datasets(options: Options) -> tuple[str, ...]:
    quick = options.quick and options.datasets is None
    return ("Cora",) if quick else options.of_datasets(PLANETOID)


def _multihead_cells(options: Options) -> list[Cell]:
    return [faithfulness_cell(net, options) for net in nets_of_seeds(options, _datasets(options), heads=HEADS)]


def _multihead(inputs: ItemInputs) -> list[Section]:
    """Return the table of Pearson's correlation with dPC for networks of several heads, beside the paper's numbers."""
    rows = faithfulness_rows(inputs.of(_multihead_cells(inputs.options)))
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[(rows["statistic"] == "pc_pearson") & rows["method"].isin(SHOWN)]
    paper = beside_paper(over_seeds(rows, KEYS), "multihead")
    notes = (
        agreement(paper),
        "All layers except the last have this number of heads, with 64 channels each; the last has one head, as in the "
        "authors' code. The printed caption says Spearman, but the numbers are Pearson's: for one head they equal "
        "those of the main table.",
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
    nets = nets_of_seeds(options, _datasets(options), layers=(3,), heads=(4,))
    return [HeadSelection(net, options.targets) for net in nets]


def _selection(inputs: ItemInputs) -> list[Section]:
    """Return the table on head selection: the deviation of Pearson's correlation over choices of one head per layer."""
    rows = []
    for cell in _selection_cells(inputs.options):
        if cell in inputs.results and isinstance(cell, HeadSelection):
            correlations = np.array(list(inputs.results[cell]["pearson"].values()))
            rows.append(
                {
                    "dataset": cell.net.dataset,
                    "seed": cell.net.seed,
                    "statistic": "std_pc_pearson",
                    "ours": float(correlations.std()),
                    "mean": float(correlations.mean()),
                    "choices": correlations.size,
                }
            )
    if not rows:
        return []
    means = over_seeds(pd.DataFrame(rows), ("dataset", "statistic", "choices"))
    paper = add_printed(means, "head_selection")
    note = (
        "The standard deviation is over all choices of one head in each of the first two layers; the last has one head."
    )
    title = "Standard deviation of Pearson with dPC over choices of one head per layer (3 layers, 4 heads)"
    return [Table("head_selection", title, paper, ("dataset", "choices"), ("statistic",), 4, (note,))]


SUPERGATS = ("SuperGAT-MX", "SuperGAT-SD", "SuperGAT-MX-authors")
SUPERGAT_NOTES = (
    "SuperGAT-MX-authors is the network that the authors' code calls MX: it weights messages by plain dot products. "
    "`gatt (reported)` is GAtt of the MX weights that the code returns as attention without using them; its numbers "
    "are compared with those printed for MX.",
    "The paper gives no recipe for SuperGAT. Dropout 0.6 on features and attention and 80 % of the edges in the "
    "edge-prediction loss are from the authors' code; 200 epochs, rate 0.005 and loss weight 4 are our choice.",
)


def _supergat_cells(options: Options) -> list[Cell]:
    nets = nets_of_seeds(options, options.of_datasets(("Cora",)), options.of_models(SUPERGATS))
    return [faithfulness_cell(net, options) for net in nets]


def _supergat(inputs: ItemInputs) -> list[Section]:
    """Return the table of the faithfulness of SuperGATs on Cora, beside the paper's numbers."""
    rows = faithfulness_rows(inputs.of(_supergat_cells(inputs.options)))
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[rows["statistic"].isin(STATISTICS) & rows["method"].isin((*SHOWN, REPORTED))]
    means = over_seeds(rows, KEYS)
    as_the_paper_names = means.assign(
        model=means["model"].replace("SuperGAT-MX-authors", "SuperGAT-MX"),
        method=means["method"].where(
            means["model"] != "SuperGAT-MX-authors", means["method"].replace(REPORTED, "gatt")
        ),
    )
    without_number = means["method"].eq("gatt") & means["model"].eq("SuperGAT-MX-authors")
    paper = beside_paper(as_the_paper_names, "faithfulness").assign(model=means["model"], method=means["method"])
    paper.loc[without_number.to_numpy(), ["paper", "meant", "difference"]] = float("nan")
    paper.loc[without_number.to_numpy(), "reason"] = ""
    title = "Cora, protocol `coefficient`"
    return [
        Table(
            "supergat",
            title,
            paper,
            ("model", "statistic"),
            ("layers", "method"),
            3,
            (agreement(paper), *SUPERGAT_NOTES),
        )
    ]


WEIGHT_DECAYS = (0.0, 0.0005, 0.001, 0.005, 0.01)
DROPOUTS = (0.0, 0.2, 0.4, 0.6, 0.8)


def _regularization_cells(options: Options) -> list[Cell]:
    """Return cells for the faithfulness of GATs on Cora, one per seed and weight decay or attention dropout."""
    shapes = [(decay, 0.0) for decay in WEIGHT_DECAYS] + [(0.0, rate) for rate in DROPOUTS[1:]]
    return [
        faithfulness_cell(
            Net("Cora", "GAT", 2, seed, weight_decay=decay, attention_dropout=rate, epochs=options.epochs), options
        )
        for decay, rate in (shapes if options.of_datasets(("Cora",)) else [])
        for seed in range(options.seeds)
    ]


def _regularization(inputs: ItemInputs) -> list[Section]:
    """Return the figure and the table on the effect of weight decay and attention dropout on faithfulness."""
    rows = faithfulness_rows(inputs.of(_regularization_cells(inputs.options)))
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
    """Return one row per network: its setting, its accuracy and the faithfulness of every method."""
    wide = part.pivot_table(index=[SETTING, "seed"], columns="method", values="ours", sort=False).reset_index()
    accuracy = part.groupby([SETTING, "seed"], sort=False)["accuracy"].first().reset_index()
    wide = wide.merge(accuracy, on=[SETTING, "seed"]).sort_values(SETTING, kind="stable")
    names = {name: f"explain/{name}/weight/faithfulness" for name in SHOWN}
    return wide.rename(columns={**names, "accuracy": "test/acc"})


ITEMS = (
    Item("multihead", _multihead_cells, _multihead),
    Item("head_selection", _selection_cells, _selection),
    Item("supergat", _supergat_cells, _supergat),
    Item("regularization", _regularization_cells, _regularization),
)
