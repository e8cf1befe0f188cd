"""The tables of faithfulness: main, full, ablation of GAtt, and graph classification."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from attree.defaults import AUTHORS
from attree.faithfulness.protocol import PROTOCOLS
from attree.metrics.functional.faithfulness import STATISTICS
from attree.paper.cells import Cell, FaithfulnessCell
from attree.paper.cells.faithfulness import MOST_PROBABLE, NOISE
from attree.paper.networks import GRAPHS, PLANETOID, REAL, Net
from attree.paper.report_items import Item, ItemInputs, Options, Section, Table, nets_of_seeds
from attree.paper.tables.rows import (
    KEYS,
    agreement,
    authors_protocol,
    beside_paper,
    faithfulness_rows,
    over_seeds,
)

MODELS = ("GAT", "GATv2")
MAIN = ("pc_pearson", "ne_pearson", "p_auroc")
SHOWN = ("gatt", "avgatt", "uniform", "random")


def faithfulness_cell(net: Net, options: Options) -> FaithfulnessCell:
    """Return the cell of a network under the protocols of the options. `authors` is replaced by the protocol's name."""
    requested = [authors_protocol(net.model) if name == AUTHORS else name for name in options.protocols]
    return FaithfulnessCell(net, tuple(name for name in PROTOCOLS if name in requested), options.targets)


def cells(options: Options, models: tuple[str, ...] = MODELS) -> list[Cell]:
    """Return cells for networks of two and three layers on every dataset."""
    nets = nets_of_seeds(options, options.of_datasets(REAL), options.of_models(models))
    return [faithfulness_cell(net, options) for net in nets]


def under_authors_protocol(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the protocol that the authors' code uses for each network."""
    return rows[rows["protocol"] == rows["model"].map(authors_protocol)]


def selected_rows(
    inputs: ItemInputs, models: tuple[str, ...], statistics: Sequence[str], methods: Sequence[str]
) -> pd.DataFrame:
    """Return the rows of some networks, statistics and methods, in the order of the paper."""
    rows = faithfulness_rows(inputs.of(cells(inputs.options, models)))
    if len(rows) == 0:
        return rows
    return rows[rows["statistic"].isin(statistics) & rows["method"].isin(methods)]


def _otherwise(inputs: ItemInputs, models: tuple[str, ...]) -> dict[str, pd.DataFrame]:
    """Return means of other measurements that may explain a difference, under the names of the statistics."""
    ranks = ("kendall", "spearman")
    names = {
        "authors_dpc": {f"{MOST_PROBABLE}_{kind}": f"pc_{kind}" for kind in ("pearson", *ranks)},
        "noise": {f"{measure}_{NOISE}_{kind}": f"{measure}_{kind}" for measure in ("pc", "ne") for kind in ranks},
    }
    means = {}
    for name, meant in names.items():
        rows = selected_rows(inputs, models, tuple(meant), SHOWN)
        means[name] = over_seeds(rows.assign(statistic=rows["statistic"].map(meant)), KEYS)
    return means


def _sections(inputs: ItemInputs, name: str, models: tuple[str, ...], statistics: Sequence[str]) -> list[Section]:
    """Return the tables on faithfulness: beside the paper's, GAtt under every protocol, and network by network."""
    rows = selected_rows(inputs, models, statistics, SHOWN)
    if len(rows) == 0:
        return []
    sections: list[Section] = []
    if AUTHORS in inputs.options.protocols:
        paper = beside_paper(over_seeds(under_authors_protocol(rows), KEYS), "faithfulness", _otherwise(inputs, models))
        title = "Under the authors' protocols: `weight` for GAT, `coefficient` for GATv2"
        sections.append(
            Table(
                name, title, paper, ("dataset", "model", "statistic"), ("layers", "method"), notes=(agreement(paper),)
            )
        )
    by_protocol = over_seeds(rows[rows["method"] == "gatt"], KEYS)
    sections.append(
        Table(
            f"{name}_protocols",
            "GAtt under every protocol, so that GAT and GATv2 can be compared under the same one",
            by_protocol,
            ("dataset", "statistic"),
            ("model", "layers", "protocol"),
        )
    )
    title = "Network by network, with intervals over targets (low, high), pairs and changed predictions"
    sections.append(Table(f"{name}_networks", title, rows, (), (), csv_only=True))
    return sections


ABLATED = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform")


def _ablation_cells(options: Options) -> list[Cell]:
    """Return cells for GATs on citation graphs: the networks of the faithfulness tables."""
    return [faithfulness_cell(net, options) for net in nets_of_seeds(options, options.of_datasets(PLANETOID))]


def _ablation(inputs: ItemInputs, name: str, statistic: str, title: str) -> list[Section]:
    rows = faithfulness_rows(inputs.of(_ablation_cells(inputs.options)))
    if len(rows) == 0:
        return []
    rows = under_authors_protocol(rows)
    rows = rows[(rows["statistic"] == statistic) & rows["method"].isin(ABLATED)]
    paper = beside_paper(over_seeds(rows, KEYS), "ablation")
    return [Table(name, title, paper, ("dataset", "layers"), ("method",), notes=(agreement(paper),))]


def _graph_cells(options: Options) -> list[Cell]:
    nets = nets_of_seeds(options, options.of_datasets(GRAPHS), layers=(3,))
    return [faithfulness_cell(net, options) for net in nets]


def _graph_level(inputs: ItemInputs) -> list[Section]:
    """Return the tables on faithfulness in graph classification: AUROC of changed predictions by dataset and method."""
    rows = faithfulness_rows(inputs.of(_graph_cells(inputs.options)))
    if len(rows) == 0:
        return []
    rows = rows[(rows["statistic"] == "p_auroc") & rows["method"].isin(SHOWN)]
    paper = beside_paper(over_seeds(under_authors_protocol(rows), KEYS), "graph_level")
    notes = (
        agreement(paper),
        "The paper gives neither split nor recipe. Here the test set is a stratified fifth of the graphs, and all of "
        "it is explained; the networks have a sum readout without bias; epochs, width and rate are our choice.",
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
    Item("faithfulness", cells, lambda inputs: _sections(inputs, "faithfulness", MODELS, MAIN)),
    Item(
        "faithfulness_gat",
        lambda options: cells(options, ("GAT",)),
        lambda inputs: _sections(inputs, "faithfulness_gat", ("GAT",), tuple(STATISTICS)),
    ),
    Item(
        "faithfulness_gatv2",
        lambda options: cells(options, ("GATv2",)),
        lambda inputs: _sections(inputs, "faithfulness_gatv2", ("GATv2",), tuple(STATISTICS)),
    ),
    Item(
        "ablation",
        _ablation_cells,
        lambda inputs: _ablation(inputs, "ablation", "pc_pearson", "Pearson with dPC, protocol `weight`"),
    ),
    Item(
        "ablation_full",
        _ablation_cells,
        lambda inputs: _ablation(
            inputs, "ablation_full", "faithfulness", "Mean of the seven statistics, protocol `weight`"
        ),
    ),
    Item("graph_level", _graph_cells, _graph_level),
)
