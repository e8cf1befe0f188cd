"""Explanation accuracy of ten methods, their runtimes, and the two against each other."""

from __future__ import annotations

import math

import pandas as pd

from attree.attribution import METHODS
from attree.paper.cells import Cell, Explanation
from attree.paper.item import Item, Made
from attree.paper.net import SYNTHETIC, Net
from attree.paper.options import Options
from attree.paper.printed_numbers import add_printed, printed
from attree.paper.sections import Picture, Section, Table
from attree.paper.tables.rows import over_seeds, with_reasons
from attree.report.accuracy_runtime import MethodPoint, accuracy_runtime_figure

PAPER_METHODS = (
    *("gatt", "avgatt", "saliency", "guided_backprop", "integrated_gradients"),
    *("gnn_explainer", "pg_explainer", "graph_mask", "fastdnx", "random"),
)
ORDER = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", *PAPER_METHODS[2:])
ATTENTION = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random")
SLOW = ("integrated_gradients", "gnn_explainer", "pg_explainer", "graph_mask")
"""Methods that optimise or integrate for every target; the quick version explains some of the targets by them."""
FEW = 20
SLOWEST = ("pg_explainer",)
"""Methods that first fit a network of their own to all targets, for minutes; the quick version leaves them out."""
KEYS = ("dataset", "model", "weights", "layers", "method", "statistic")


def _nets(options: Options) -> list[Net]:
    """GATs with the authors' weights, and networks trained by the recipe."""
    nets = []
    for dataset in options.of_datasets(SYNTHETIC):
        for model in options.of_models(("GAT", "GATv2")):
            nets += [Net(dataset, model, 3, seed, epochs=options.epochs) for seed in range(options.seeds)]
            if model == "GAT":
                nets.append(Net(dataset, model, 3, weights="authors"))
            else:
                nets += [Net(dataset, model, 3, seed, weights="untrained") for seed in range(options.seeds)]
    return nets


def known_methods() -> list[str]:
    """The paper's methods and attree's that this version knows, in the order of tables."""
    return [name for name in ORDER if name in METHODS]


def _cells(options: Options) -> list[Cell]:
    cells: list[Cell] = []
    for net in _nets(options):
        first = net.weights == "authors" or (net.model == "GATv2" and net.weights == "trained" and net.seed == 0)
        for method in known_methods():
            # Post-hoc methods once a network that the paper has; attention on every network.
            if method in ATTENTION or (first and not (options.quick and method in SLOWEST)):
                cells.append(Explanation(net, method, FEW if options.quick and method in SLOW else None))
    return cells


def _rows(made: Made) -> pd.DataFrame:
    rows = []
    for cell in _cells(made.options):
        if isinstance(cell, Explanation) and cell in made.results:
            result = made.results[cell]
            rows.append(
                {
                    "dataset": cell.net.dataset,
                    "model": cell.net.model,
                    "weights": cell.net.weights,
                    "layers": cell.net.layers,
                    "method": cell.method,
                    "statistic": "truth_auroc",
                    "seed": cell.net.seed,
                    "ours": result["auroc"],
                    "accuracy": result["accuracy"],
                    "explained": result["targets"],
                    "of": result["of"],
                    "runtime": result["runtime"],
                }
            )
    rows.sort(key=lambda row: ORDER.index(row["method"]))
    return pd.DataFrame(rows)


def _left_out(options: Options) -> tuple[str, ...]:
    """Which of the paper's methods are not measured, and why."""
    unknown = [name for name in PAPER_METHODS if name not in METHODS]
    notes = [f"Not measured, as this version of attree does not know them: {', '.join(unknown)}."] if unknown else []
    if options.quick:
        notes.append(f"Left out of the quick version: {', '.join(SLOWEST)}.")
    return tuple(notes)


def _accuracy(made: Made) -> list[Section]:
    rows = _rows(made)
    if len(rows) == 0:
        return []
    means = over_seeds(rows, KEYS).merge(rows.groupby([*KEYS], sort=False)[["explained", "of"]].first().reset_index())
    paper = with_reasons(add_printed(means, "explanation"))
    paper = paper.assign(reason=[_why(row) for _, row in paper.iterrows()])
    some = paper[paper["explained"] < paper["of"]]
    notes = _left_out(made.options)
    if len(some):
        notes += (
            "Of some targets only: "
            + ", ".join(f"{row.method} on {row.dataset} ({row.explained} of {row.of})" for row in some.itertuples())
            + ".",
        )
    title = "AUROC against ground truth, networks of 3 layers"
    index = ("dataset", "model", "weights")
    parts: list[Section] = [Table("explanation", title, paper, index, ("method",), 4, notes)]
    parts.append(Table("explanation_networks", "Network by network", rows, (), (), csv_only=True))
    return parts


def _why(row: pd.Series) -> str:
    if row["weights"] == "untrained" or (row["weights"] == "trained" and row["model"] == "GAT"):
        return "other weights than the paper's" if row["reason"] else ""
    if row["reason"] == "unexplained" and row["method"] in PAPER_METHODS[2:-1]:
        return "the paper gives no settings for this method"
    return str(row["reason"])


def _runtime(made: Made) -> list[Section]:
    rows = _rows(made)
    if len(rows) == 0:
        return []
    rows = rows[(rows["model"] == "GAT") & (rows["weights"] == "authors")]
    rows = rows.assign(ours=rows["runtime"] * rows["of"] / rows["explained"], unit="seconds")
    paper = add_printed(rows, "runtime")
    paper = paper.assign(scaled=paper["explained"] < paper["of"], difference=math.nan)
    arxiv = printed("runtime")
    notes = (
        "One thread of a CPU here, a graphics card in the paper. Where only some targets were explained, the time is "
        "scaled to all. Each is the time from a trained network to the scores of all pairs; GAtt's in the paper: "
        "`runtime_gatt`.",
        *_left_out(made.options),
        f"Arxiv ({', '.join(arxiv[arxiv.dataset == 'Arxiv'].paper.iloc[:2])} s for GAtt mat and batch in print) needs "
        "its trained network: see benchmarks/arxiv.py.",
    )
    return [
        Table(
            "runtime",
            "Seconds to explain all targets (400 and 974), GAT of 3 layers",
            paper,
            ("dataset",),
            ("method",),
            2,
            notes,
        )
    ]


def _plot(made: Made) -> list[Section]:
    rows = _rows(made)
    if len(rows) == 0:
        return []
    rows = rows[(rows["model"] == "GAT") & (rows["weights"] == "authors")]
    rows = rows.assign(runtime=rows["runtime"] * rows["of"] / rows["explained"])
    panels = {
        str(dataset): [
            MethodPoint(method, seconds, auroc)
            for method, seconds, auroc in zip(own["method"], own["runtime"], own["ours"], strict=True)
        ]
        for dataset, own in rows.groupby("dataset", sort=False)
    }
    return [Picture("accuracy_runtime", "Explanation accuracy against runtime", accuracy_runtime_figure(panels))]


ITEMS = (
    Item(
        "explanation",
        "Explanation accuracy of the ten methods, the GAtt variants and uniform attention",
        "main table on explanation accuracy",
        "the authors' BA-Shapes and Infection, with their weights",
        (6, 60),
        _cells,
        _accuracy,
    ),
    Item(
        "runtime",
        "Seconds that every method takes for all targets",
        "appendix, table of runtimes",
        "the authors' BA-Shapes and Infection, with their weights",
        (6, 60),
        _cells,
        _runtime,
    ),
    Item(
        "accuracy_runtime",
        "Explanation accuracy against runtime",
        "appendix, accuracy-runtime figure",
        "the authors' BA-Shapes and Infection, with their weights",
        (6, 60),
        _cells,
        _plot,
    ),
)
