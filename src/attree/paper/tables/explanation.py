"""The table of explanation accuracy: how well ten methods find the edges of the ground truth."""

from __future__ import annotations

import math

import pandas as pd

from attree.attribution import METHODS, method_label
from attree.paper.cells import Cell, Explanation
from attree.paper.item import NEAR, Item, ItemInputs, Options, Section, Table
from attree.paper.net import SYNTHETIC, Net
from attree.paper.printed_numbers import add_printed
from attree.paper.tables.rows import over_seeds

PAPER_METHODS = (
    *("gatt", "avgatt", "saliency", "guided_backprop", "integrated_gradients"),
    *("gnn_explainer", "pg_explainer", "graph_mask", "fastdnx", "random"),
)
ORDER = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", *PAPER_METHODS[2:])
"""All methods of the table, the paper's and attree's, in order."""

ATTENTION = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random")
GRADIENTS = ("saliency", "guided_backprop", "integrated_gradients")
KNOWN = {
    "graph_mask": "PyG's own GraphMask leaves its gates as they were drawn: its scores are those of an untrained one",
    "pg_explainer": "it depends on the seed and the rate more than the difference, and may collapse to one score, 0.5",
    "fastdnx": "it depends on how long its surrogate is distilled, which the paper does not say",
    "gnn_explainer": "it moves as far with its epochs, rate and penalties, which the paper does not give",
}
"""Why methods that learn differ from the paper, as benchmarks/sensitivity.py shows."""
ONCE = ("pg_explainer",)
"""Methods that take a minute per network: measured on the authors' networks and on one GATv2."""
KEYS = ("dataset", "model", "weights", "self_loops", "layers", "method", "statistic")
MASKED, ZERO = "masked", "0"
"""How methods that mask edges treat self-loops: masked like other edges, or left with a score of 0 as in PyG."""


def _nets(options: Options) -> list[Net]:
    """GATs with the authors' weights, networks trained by the recipe, and the same networks untrained."""
    nets = []
    for dataset in options.of_datasets(SYNTHETIC):
        for model in options.of_models(("GAT", "GATv2")):
            nets += [Net(dataset, model, 3, seed, epochs=options.epochs) for seed in range(options.seeds)]
            nets += [Net(dataset, model, 3, seed, weights="untrained") for seed in range(options.seeds)]
            if model == "GAT":
                nets.append(Net(dataset, model, 3, weights="authors"))
    return nets


def explanation_cells(options: Options) -> list[Cell]:
    """Return a cell for every method on every network that takes reasonable time."""
    cells: list[Cell] = []
    for net in _nets(options):
        first = net.weights == "authors" or (net.model == "GATv2" and net.seed == 0)
        for method in ORDER:
            if net.weights == "untrained" and method not in (*ATTENTION, *GRADIENTS):
                continue
            if method in ONCE and not first:
                continue
            cells.append(Explanation(net, method))
            if "self_loops" in METHODS[method]().settings():
                cells.append(Explanation(net, method, self_loops=True))
    return cells


def explanation_rows(made: ItemInputs) -> pd.DataFrame:
    """Return one row per method and network, with its AUROC and seconds."""
    rows = []
    for cell in explanation_cells(made.options):
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
    rows = explanation_rows(made)
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
    """Return the numbers far from the paper's; of a method's two rows, the one with masked self-loops."""
    far = paper[(paper["reason"] != "") & ~paper["reason"].str.startswith("other weights")]
    return far.drop_duplicates(["dataset", "model", "weights", "method"], keep="last")


def _sentence(row: pd.Series) -> str:
    return f"{method_label(row['method'])}, {row['dataset']}, {row['model']}: {row['reason']}."


def _why(row: pd.Series, rows: pd.DataFrame) -> str:
    """Return why a number differs from the paper's by more than 0.05, as far as the numbers tell."""
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


ITEMS = (Item("explanation", explanation_cells, _accuracy),)
