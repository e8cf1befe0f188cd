"""Explanation accuracy of ten methods, their runtimes, and the two against each other."""

from __future__ import annotations

import math

import pandas as pd

from attree.attribution import METHODS, method_label
from attree.paper.cells import Cell, Explanation
from attree.paper.item import NEAR, Item, ItemInputs, Picture, Section, Table
from attree.paper.net import SYNTHETIC, Net
from attree.paper.options import Options
from attree.paper.printed_numbers import add_printed, printed
from attree.paper.tables.rows import over_seeds
from attree.report.accuracy_runtime import MethodPoint, accuracy_runtime_figure

PAPER_METHODS = (
    *("gatt", "avgatt", "saliency", "guided_backprop", "integrated_gradients"),
    *("gnn_explainer", "pg_explainer", "graph_mask", "fastdnx", "random"),
)
ORDER = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", *PAPER_METHODS[2:])
ATTENTION = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random")
GRADIENTS = ("saliency", "guided_backprop", "integrated_gradients")
KNOWN = {
    "graph_mask": "PyG's own GraphMask leaves its gates as they were drawn: its scores are those of an untrained one",
    "pg_explainer": "it depends on the seed and the rate more than the difference, and may collapse to one score, 0.5",
    "fastdnx": "it depends on how long its surrogate is distilled, which the paper does not say",
    "gnn_explainer": "it moves as far with its epochs, rate and penalties, which the paper does not give",
}
"""What benchmarks/sensitivity.py shows of methods that learn."""
ONCE = ("pg_explainer",)
"""Methods that take a minute a network: measured on the authors' networks and the first of the others."""
KEYS = ("dataset", "model", "weights", "self_loops", "layers", "method", "statistic")
MASKED, ZERO = "masked", "0"
"""What self-loops are to methods that mask edges: edges like others, as on graphs that hold them, or 0 as in PyG."""


def _nets(options: Options) -> list[Net]:
    """GATs with the authors' weights, networks trained by the recipe, and the same before they are trained."""
    nets = []
    for dataset in options.of_datasets(SYNTHETIC):
        for model in options.of_models(("GAT", "GATv2")):
            nets += [Net(dataset, model, 3, seed, epochs=options.epochs) for seed in range(options.seeds)]
            nets += [Net(dataset, model, 3, seed, weights="untrained") for seed in range(options.seeds)]
            if model == "GAT":
                nets.append(Net(dataset, model, 3, weights="authors"))
    return nets


def known_methods() -> list[str]:
    """The paper's methods and attree's that this version knows, in the order of tables."""
    return [name for name in ORDER if name in METHODS]


def _cells(options: Options) -> list[Cell]:
    cells: list[Cell] = []
    for net in _nets(options):
        first = net.weights == "authors" or (net.model == "GATv2" and net.seed == 0)
        for method in known_methods():
            if net.weights == "untrained" and method not in (*ATTENTION, *GRADIENTS):
                continue
            if method in ONCE and not first:
                continue
            cells.append(Explanation(net, method))
            if "self_loops" in METHODS[method]().settings():
                cells.append(Explanation(net, method, self_loops=True))
    return cells


def _rows(made: ItemInputs) -> pd.DataFrame:
    rows = []
    for cell in _cells(made.options):
        if isinstance(cell, Explanation) and cell in made.results:
            result = made.results[cell]
            rows.append(
                {
                    "dataset": cell.net.dataset,
                    "model": cell.net.model,
                    "weights": cell.net.weights,
                    "self_loops": MASKED if cell.self_loops else ZERO,
                    "layers": cell.net.layers,
                    "method": cell.method,
                    "statistic": "truth_auroc",
                    "seed": cell.net.seed,
                    "ours": result["auroc"],
                    "accuracy": result["accuracy"],
                    "targets": result["targets"],
                    "runtime": result["runtime"],
                }
            )
    rows.sort(key=lambda row: ORDER.index(row["method"]))
    return pd.DataFrame(rows)


def _accuracy(made: ItemInputs) -> list[Section]:
    rows = _rows(made)
    if len(rows) == 0:
        return []
    paper = add_printed(over_seeds(rows, KEYS), "explanation")
    paper = paper.assign(reason=[_why(row, rows) for _, row in paper.iterrows()])
    notes = (
        "Self-loops: `0` as PyG's explainers leave them, `masked` where a method masks them like other edges, as on "
        "graphs that hold them, which the paper's numbers come from. Methods that mask nothing have one row.",
        *(_sentence(row) for _, row in _far(paper).iterrows()),
    )
    title = "AUROC against ground truth, networks of 3 layers"
    index = ("dataset", "model", "weights", "self_loops")
    parts: list[Section] = [Table("explanation", title, paper, index, ("method",), 4, notes)]
    parts.append(Table("explanation_networks", "Network by network", rows, (), (), csv_only=True))
    return parts


def _far(paper: pd.DataFrame) -> pd.DataFrame:
    """The numbers of the paper's own networks that are far from it: of a method's two, the one it should be."""
    far = paper[(paper["reason"] != "") & ~paper["reason"].str.startswith("other weights")]
    return far.drop_duplicates(["dataset", "model", "weights", "method"], keep="last")


def _sentence(row: pd.Series) -> str:
    return f"{method_label(row['method'])}, {row['dataset']}, {row['model']}: {row['reason']}."


def _why(row: pd.Series, rows: pd.DataFrame) -> str:
    """Why a number is more than 0.05 from the paper's, as far as the numbers tell."""
    if not abs(row["difference"]) > NEAR:
        return ""
    method, meant = row["method"], row["paper"]
    if row["weights"] == "untrained" or (row["weights"] == "trained" and row["model"] == "GAT"):
        return "other weights than the paper's"
    if isinstance(row["slip"], str):
        return row["slip"]
    same = rows[(rows["dataset"] == row["dataset"]) & (rows["model"] == row["model"]) & (rows["method"] == method)]
    masked = same[(same["self_loops"] == MASKED) & (same["weights"] == row["weights"])]["ours"]
    if row["self_loops"] == ZERO and (masked - meant).abs().min() <= NEAR:
        return f"with self-loops masked {masked.mean():.4f}, for the paper's {meant:.4f}"
    if method in KNOWN:
        return f"{row['ours']:.4f} for the paper's {meant:.4f}: {KNOWN[method]}"
    found = f"{row['ours']:.4f} for the paper's {meant:.4f}"
    for which, are in (
        ("trained alike", same["weights"] != "untrained"),
        ("before training", same["weights"] == "untrained"),
    ):
        low, high = same[are]["ours"].min(), same[are]["ours"].max()
        if low - NEAR <= meant <= high + NEAR:
            return f"{found}: networks {which} give {low:.4f} to {high:.4f}"
        if math.isfinite(low):
            found += f" ({low:.4f} to {high:.4f} with networks {which})"
    return f"{found}: unexplained"


def _runtime(made: ItemInputs) -> list[Section]:
    rows = _rows(made)
    if len(rows) == 0:
        return []
    rows = _of_the_authors(rows)
    paper = add_printed(rows.assign(ours=rows["runtime"], unit="seconds"), "runtime").assign(difference=math.nan)
    arxiv = printed("runtime")
    notes = (
        "One thread of a CPU here, a graphics card in the paper. Each is the time from a trained network to the scores "
        "of all pairs, measured once; medians of several rounds: docs/runtime.md. GAtt's in the paper: `runtime_gatt`.",
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


def _of_the_authors(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the authors' networks; of methods that mask edges, those where self-loops are edges."""
    own = rows[(rows["model"] == "GAT") & (rows["weights"] == "authors")]
    return own.sort_values("self_loops", kind="stable").drop_duplicates(["dataset", "method"], keep="last")


def _plot(made: ItemInputs) -> list[Section]:
    rows = _rows(made)
    if len(rows) == 0:
        return []
    rows = _of_the_authors(rows)
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
        (9, 10),
        _cells,
        _accuracy,
    ),
    Item(
        "runtime",
        "Seconds that every method takes for all targets",
        "appendix, table of runtimes",
        "the authors' BA-Shapes and Infection, with their weights",
        (9, 10),
        _cells,
        _runtime,
    ),
    Item(
        "accuracy_runtime",
        "Explanation accuracy against runtime",
        "appendix, accuracy-runtime figure",
        "the authors' BA-Shapes and Infection, with their weights",
        (9, 10),
        _cells,
        _plot,
    ),
)
